// Calls the tools of three servers from npm by code in a box, with a stock client of the
// official TypeScript SDK, whose user approves one of two calls. Usage:
//
//   node codemode.mjs v1|v2 legacy|modern DIR stdio PROGRAM [ARG…]
//
// DIR has the file prices.csv. Exits 1 with the reason on the first answer that is not as
// expected.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { connect } from './connect.mjs';

const [sdk, era, dir, ...rest] = process.argv.slice(2);
const questions = [];
const elicit = (params) => {
  questions.push(params.message);
  return { action: 'accept', content: { call_1: questions.length === 1 ? 'once' : 'deny' } };
};
const { client, call } = await connect(sdk, era, ...rest, { elicit });
const text = (r) => r.content.map((c) => c.text ?? '').join('');

const listed = (await client.listTools()).tools;
for (const name of ['search_tools', 'describe_tools']) assert.ok(listed.some((t) => t.name === name), name);
assert.match(listed.find((t) => t.name === 'execute_code').description, /tools\.SERVER\.TOOL/);

// A model searches, reads about the tools, and writes one program.
let r;
const deadline = Date.now() + 120_000;
do { // on a slow machine servers from npm start for longer than a search waits for them
  r = await call('search_tools', { query: 'read text file' });
} while (/Search again in a moment/.test(text(r)) && Date.now() < deadline);
assert.match(text(r), /^tools\.files\.read_text_file\(\*, path: str/m);
r = await call('describe_tools', { names: ['files.read_text_file', 'memory.read_graph'], language: 'javascript' });
assert.match(text(r), /declare const tools: \{\n {2}files: \{\n {4}\/\*\* [^]*read_text_file\(args: \{path: string/);

r = await call('execute_code', { code: `
import asyncio, csv, io
text, _ = await asyncio.gather(
    tools.files.read_text_file(path=${JSON.stringify(dir + '/prices.csv')}),
    tools.memory.create_entities(entities=[{"name": "basket", "entityType": "list", "observations": ["bread 2", "milk 5"]}]))
prices = {row["item"]: int(row["price"]) for row in csv.DictReader(io.StringIO(text["content"]))}
total = 0
for line in (await tools.memory.read_graph())["entities"][0]["observations"]:
    item, n = line.split()
    total += prices[item] * int(n)
    print(f"{item:6} {n} {prices[item] * int(n):3}")
print("total", total, "|", await tools.everything.get_sum(a=total, b=1))
image = await tools.everything.get_tiny_image()
for call in (lambda: tools.files.create_directory(path=${JSON.stringify(dir + '/new')}),
             lambda: tools.files.create_directory(path=${JSON.stringify(dir + '/denied')}),
             lambda: tools.files.write_file(path=${JSON.stringify(dir + '/x')}, content="x"),
             lambda: tools.files.read_text_file(path="/etc/passwd")):
    try:
        await call()
        print("done")
    except ToolError as e:
        print(e.server, e.code)
` });
assert.ok(!r.isError, text(r));
assert.ok(text(r).startsWith(`bread  2   6
milk   5  10
total 16 | The sum of 16 and 1 is 17.
done
files denied
files denied
files tool_error
[session `), text(r));
assert.equal(questions.length, 2);
assert.match(questions[0], /^1\. files\.create_directory .*\n   The server describes it as: .*\n   path: "[^"]*\/new"$/m);
assert.ok(existsSync(dir + '/new') && !existsSync(dir + '/denied'), 'directories');
assert.deepEqual(r.content.map((c) => c.type), ['text', 'image']);
const id = r.structuredContent.session_id;

r = await call('execute_code', { session_id: id, language: 'javascript', code: 'x' });
assert.ok(r.isError, 'a Python session ran JavaScript');
r = await call('execute_code', { language: 'javascript', code: 'console.log((await Promise.all([1, 2].map((b) => tools.everything.get_sum({a: 1, b})))).join())' });
assert.match(text(r), /^The sum of 1 and 1 is 2\.,The sum of 1 and 2 is 3\.\n/);
r = await call('execute_command', { session_id: id, command: `glovebox-tool files.list_directory path=${dir} | grep -c prices` });
assert.match(text(r), /^1\n/);
await client.close();
console.log('ok');
