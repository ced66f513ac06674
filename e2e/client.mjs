// Drives Glovebox with a stock client of the official TypeScript SDK and calls
// every tool that the server lists. Usage:
//
//   node client.mjs v1|v2 legacy|modern http URL
//   node client.mjs v1|v2 legacy|modern stdio PROGRAM [ARG…]
//
// Over HTTP it prints the line "restart" when the server is to be restarted, and
// waits for a line that says that this is done. In the end it prints one JSON
// object: the protocol version, the tools, how often each was called. Exits 1 with
// the reason on the first answer that is not as expected.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { connect } from './connect.mjs';

const how = process.argv.slice(2);
const [, era, transport] = how;
let { client, version, call } = await connect(...how);
const listed = (await client.listTools()).tools.map((t) => t.name).sort();
const calls = Object.fromEntries(listed.map((n) => [n, 0]));

// ok calls a tool and expects success; its structured content comes back.
async function ok(name, a = {}, options = {}) {
  assert.ok(name in calls, `${name} is not listed; listed are ${listed}`);
  const r = await call(name, a, { timeout: 60_000, ...options });
  assert.ok(!r.isError, `${name}(${JSON.stringify(a)}) failed: ${JSON.stringify(r.content)}`);
  calls[name]++;
  return r;
}

// Sessions.
let r = await ok('execute_code', { code: 'x = 41\nprint(x + 1)' });
const session_id = r.structuredContent.session_id;
assert.equal(r.structuredContent.stdout, '42\n');
assert.equal(r.structuredContent.session_created, true);
assert.match(r.content[0].text, /42/);
r = await ok('execute_code', { code: 'print(x)', session_id });
assert.equal(r.structuredContent.stdout, '41\n');
assert.equal(r.structuredContent.session_created, false);
r = await ok('execute_command', { command: 'echo one two | wc -w', session_id });
assert.equal(r.structuredContent.stdout.trim(), '2');
assert.equal(r.structuredContent.exit_code, 0);
r = await call('execute_command', { command: 'sh', args: ['-c', 'exit 3'], session_id });
assert.equal(r.structuredContent.exit_code, 3);
r = await ok('execute_code', { code: 'process.version', template: 'node' });
assert.match(r.structuredContent.stdout, /^'?v\d+/);
const nodeSession = r.structuredContent.session_id;
r = await ok('get_sessions');
assert.ok(JSON.stringify(r.structuredContent).includes(session_id));
await ok('get_volume_path');
await ok('get_volume_mappings');

// Contexts.
r = await ok('create_context', { name: `e2e-${process.pid}`, language: 'python' });
const context_id = r.structuredContent.context_id;
assert.match(context_id, /^ctx-/);
await ok('run_code', { context_id, code: 'total = sum(range(10))' });
r = await ok('run_code', { context_id, code: 'print(total)\ntotal * 2' });
assert.equal(r.structuredContent.stdout, '45\n90\n');
r = await call('run_code', { context_id, code: '1/0' });
assert.equal(r.structuredContent.success, false);
assert.match(r.structuredContent.stderr, /ZeroDivisionError/);
r = await ok('list_contexts');
assert.ok(r.structuredContent.contexts.some((c) => c.context_id === context_id));

// Files and images.
await ok('upload_file', { context_id, path: 'data/in.txt', content: 'äöü\n' });
const bytes = Buffer.from([0, 1, 0xfe, 0xff, 0x0a]);
await ok('upload_file', { context_id, path: 'data/raw.bin', content: bytes.toString('base64'), encoding: 'base64' });
r = await ok('list_files', { context_id, path: 'data' });
assert.deepEqual(r.structuredContent.entries.map((e) => e.name).sort(), ['in.txt', 'raw.bin']);
r = await ok('download_file', { context_id, path: 'data/in.txt' });
assert.equal(r.structuredContent.content, 'äöü\n');
r = await ok('download_file', { context_id, path: 'data/raw.bin' });
assert.equal(r.structuredContent.encoding, 'base64');
assert.deepEqual(Buffer.from(r.structuredContent.content, 'base64'), bytes);
r = await ok('run_code', {
  context_id,
  code: 'import matplotlib.pyplot as plt\nplt.figure(figsize=(3, 2), dpi=100)\nplt.plot([1, 4, 2])\nplt.show()',
});
const figure = r.content.find((c) => c.type === 'image');
assert.equal(figure?.mimeType, 'image/png', 'no image came back');
const png = Buffer.from(figure.data, 'base64');
assert.equal(png.subarray(0, 8).toString('latin1'), '\x89PNG\r\n\x1a\n');
assert.ok(png.readUInt32BE(16) > 100 && png.readUInt32BE(20) > 100, 'the image is smaller than what was drawn');

// Snapshots: roll back, start over from one, go two ways at once.
const value = async (id) => (await ok('run_code', { context_id: id, code: 'print(total)' })).structuredContent.stdout.trim();
r = await ok('snapshot_context', { context_id, name: 'before' });
const { snapshot_id } = r.structuredContent;
await ok('run_code', { context_id, code: 'total = 1' });
r = await ok('fork_context', { context_id, name: `e2e-fork-${process.pid}` });
const fork = r.structuredContent.context_id;
assert.equal(r._meta['glovebox/source'], 'fork');
await ok('run_code', { context_id: fork, code: 'total = 2' });
r = await ok('restore_context', { snapshot_id, context_id });
assert.equal(r.structuredContent.rolled_back, true);
assert.equal(await value(context_id), '45');
assert.equal(await value(fork), '2');
await ok('stop_context', { context_id: fork });
r = await ok('list_snapshots');
assert.ok(r.structuredContent.snapshots.some((s) => s.snapshot_id === snapshot_id && s.context_id === context_id));
r = await ok('snapshot_session', { session_id });
const sessionSnapshot = r.structuredContent.snapshot_id;
r = await ok('fork_session', { session_id });
await ok('stop_session', { session_id: r.structuredContent.session_id });
r = await ok('restore_session', { snapshot_id: sessionSnapshot });
const restored = r.structuredContent.session_id;
assert.equal(r.structuredContent.rolled_back, false);
r = await ok('execute_code', { code: 'print(x)', session_id: restored });
assert.equal(r.structuredContent.stdout, '41\n');
await ok('stop_session', { session_id: restored });
await ok('delete_snapshot', { snapshot_id });
await ok('delete_snapshot', { snapshot_id: sessionSnapshot });

// Progress with partial output, then cancel: the code is interrupted, and the
// variables survive it.
const progress = [];
const abort = new AbortController();
await assert.rejects(
  call('run_code', { context_id, code: `
import time
cancelled = False
try:
    print("begun", flush=True)
    time.sleep(25)
except KeyboardInterrupt:
    cancelled = True
    raise` }, {
    timeout: 60_000,
    signal: abort.signal,
    onprogress: (p) => { progress.push(p); abort.abort(new Error('enough')); },
  }),
);
assert.ok(progress.some((p) => /begun/.test(p.message ?? '')), `no partial output: ${JSON.stringify(progress)}`);
const started = Date.now();
r = await ok('run_code', { context_id, code: 'print(total, cancelled)' });
assert.equal(r.structuredContent.stdout, '45 True\n');
assert.ok(Date.now() - started < 15_000, 'the cancelled call went on');

// Errors are told, not thrown away.
await assert.rejects(call('no_such_tool', {}), /no_such_tool/);

await ok('stop_session', { session_id });
await ok('stop_session', { session_id: nodeSession });

// Another client is killed in the middle of a call. Over HTTP an older one's call
// goes on, for it cancels by a message; a newer one's is over with its connection,
// and so is that of a server over stdio with its client.
const goesOn = transport === 'http' && era === 'legacy';
const victim = spawn(process.execPath, ['victim.mjs', goesOn ? '3' : '25', ...how], { stdio: ['ignore', 'pipe', 'inherit'] });
const [line] = await once(createInterface(victim.stdout), 'line');
victim.kill('SIGKILL');
r = await ok('run_code', { context_id, code: 'print(total)' });
assert.equal(r.structuredContent.stdout, '45\n');
r = await another(line, 'print(end)');
assert.equal(r.structuredContent.stdout, goesOn ? 'finished\n' : 'interrupted\n');
await ok('stop_context', { context_id: line });

// another runs code in a context of the victim's: where that had a server of its
// own, as soon as it has ended.
async function another(id, code) {
  for (const end = Date.now() + 60_000; ;) {
    const got = await call('run_code', { context_id: id, code }, { timeout: 60_000 });
    if (!got.isError || transport === 'http' || Date.now() > end) {
      assert.ok(!got.isError, `the victim's context: ${JSON.stringify(got.content)}`);
      return got;
    }
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}

// The server is restarted. A client with an MCP session has to begin another one;
// the context is found under its id, with its variables.
if (transport === 'http') {
  console.log('restart');
  await once(process.stdin, 'data');
  process.stdin.unref();
  if (era === 'legacy') {
    await assert.rejects(call('run_code', { context_id, code: 'print(total)' }), /session/i);
  }
} else {
  await client.close();
}
if (transport === 'stdio' || era === 'legacy') {
  ({ client, call } = await connect(...how));
}
r = await ok('run_code', { context_id, code: 'print(total, cancelled)' });
assert.equal(r.structuredContent.stdout, '45 True\n');

r = await ok('stop_context', { context_id });
assert.equal(r.structuredContent.status, 'stopped');

const missed = listed.filter((n) => calls[n] === 0);
assert.deepEqual(missed, [], `tools that were listed and not called: ${missed}`);
await client.close();
console.log(JSON.stringify({ version, tools: listed.length, calls }));
