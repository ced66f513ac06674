// Drives Glovebox with a stock client of the official TypeScript SDK and calls
// every tool that the server lists. Usage:
//
//   node client.mjs v1|v2 legacy|modern http URL
//   node client.mjs v1|v2 legacy|modern stdio PROGRAM [ARG…]
//
// Prints one JSON object: the protocol version, the tools, how often each was
// called. Exits 1 with the reason on the first answer that is not as expected.
import assert from 'node:assert/strict';

const [sdk, era, transportName, target, ...args] = process.argv.slice(2);
const identity = { name: 'glovebox-e2e', version: '1.0.0' };

async function connect() {
  if (sdk === 'v1') {
    const { Client } = await import('@modelcontextprotocol/sdk/client/index.js');
    const { StdioClientTransport } = await import('@modelcontextprotocol/sdk/client/stdio.js');
    const { StreamableHTTPClientTransport } = await import('@modelcontextprotocol/sdk/client/streamableHttp.js');
    assert.equal(era, 'legacy', 'the first SDK speaks the legacy era only');
    const client = new Client(identity);
    const transport = transportName === 'stdio'
      ? new StdioClientTransport({ command: target, args, stderr: 'inherit', env: process.env })
      : new StreamableHTTPClientTransport(new URL(target));
    await client.connect(transport);
    const { CallToolResultSchema } = await import('@modelcontextprotocol/sdk/types.js');
    return {
      client,
      version: transport.protocolVersion ?? 'legacy',
      call: (name, a, options) => client.callTool({ name, arguments: a }, CallToolResultSchema, options),
    };
  }
  const { Client, StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client');
  const { StdioClientTransport } = await import('@modelcontextprotocol/client/stdio');
  const mode = era === 'modern' ? { pin: '2026-07-28' } : 'legacy';
  const client = new Client(identity, { versionNegotiation: { mode } });
  const transport = transportName === 'stdio'
    ? new StdioClientTransport({ command: target, args, stderr: 'inherit', env: process.env })
    : new StreamableHTTPClientTransport(new URL(target));
  await client.connect(transport);
  return {
    client,
    version: client.getNegotiatedProtocolVersion(),
    call: (name, a, options) => client.callTool({ name, arguments: a }, options),
  };
}

const { client, version, call } = await connect();
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
r = await ok('list_files', { context_id, path: 'data' });
assert.equal(r.structuredContent.entries[0].name, 'in.txt');
r = await ok('download_file', { context_id, path: 'data/in.txt' });
assert.equal(r.structuredContent.content, 'äöü\n');
r = await ok('run_code', {
  context_id,
  code: 'class P:\n  def _repr_png_(self):\n    import base64\n    return base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+M8AAAMBAQDJ/pLvAAAAAElFTkSuQmCC")\nP()',
});
assert.ok(r.content.some((c) => c.type === 'image' && c.mimeType === 'image/png'), 'no image came back');

// Snapshots: roll back, start over from one, go two ways at once.
const value = async (id) => (await ok('run_code', { context_id: id, code: 'print(total)' })).structuredContent.stdout.trim();
r = await ok('snapshot_context', { context_id, name: 'before' });
const { snapshot_id } = r.structuredContent;
await ok('run_code', { context_id, code: 'total = 1' });
r = await ok('fork_context', { context_id, name: `e2e-fork-${process.pid}` });
const fork = r.structuredContent.context_id;
assert.equal(r.structuredContent.source, 'fork');
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

// Progress with partial output, then cancel: the variables survive it.
const progress = [];
const abort = new AbortController();
await assert.rejects(
  call('run_code', { context_id, code: 'import time\nprint("begun", flush=True)\ntime.sleep(25)' }, {
    timeout: 60_000,
    signal: abort.signal,
    onprogress: (p) => { progress.push(p); abort.abort(new Error('enough')); },
  }),
);
assert.ok(progress.some((p) => /begun/.test(p.message ?? '')), `no partial output: ${JSON.stringify(progress)}`);
const started = Date.now();
r = await ok('run_code', { context_id, code: 'print(total)' });
assert.equal(r.structuredContent.stdout, '45\n');
assert.ok(Date.now() - started < 15_000, 'the cancelled call went on');

// Errors are told, not thrown away.
await assert.rejects(call('no_such_tool', {}), /no_such_tool/);

r = await ok('stop_context', { context_id });
assert.equal(r.structuredContent.status, 'stopped');
await ok('stop_session', { session_id });
await ok('stop_session', { session_id: nodeSession });

const missed = listed.filter((n) => calls[n] === 0);
assert.deepEqual(missed, [], `tools that were listed and not called: ${missed}`);
await client.close();
console.log(JSON.stringify({ version, tools: listed.length, calls }));
