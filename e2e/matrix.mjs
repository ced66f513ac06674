// Drives every server with one stock client, and prints what a model would see.
//
//   node matrix.mjs CLIENT < SERVERS
//
// SERVERS is a JSON array of {name, session, url} or {name, session, command, args,
// env}, with the session to run code in. It prints a JSON array with one object for
// each server, in their order: its name and either error, or tools (name, and whether
// the input schema has properties) and what the calls gave: figures (the answer to
// code that prints), failure (to code that fails) and quiet (to code that prints
// nothing), each a list of texts.
import assert from 'node:assert/strict';
import { connect } from './connect.mjs';

const limit = { timeout: 60_000 };
const texts = (result) => result.content.filter((c) => c.type === 'text').map((c) => c.text);
const described = (tools, schema) => tools.map((t) => ({ name: t.name, properties: typeof schema(t)?.properties === 'object' }));

// sdk is a generation of the official SDK in one of its eras.
const sdk = (generation, era) => async (server) => {
  const target = server.url ? ['http', server.url] : ['stdio', server.command, ...server.args];
  const { client, call } = await connect(generation, era, ...target, { env: server.env });
  return {
    list: async () => described((await client.listTools()).tools, (t) => t.inputSchema),
    call: async (name, args) => texts(await call(name, args, limit)),
    close: () => client.close(),
  };
};

// remote is a bridge from standard streams to HTTP, behind a client that speaks the
// former only.
const remote = async (server) => {
  assert.ok(server.url, 'not applicable');
  const args = ['node_modules/mcp-remote/dist/proxy.js', server.url, '--allow-http', '--transport', 'http-only'];
  return sdk('v1', 'legacy')({ command: process.execPath, args, env: server.env });
};

// ai is the Vercel AI SDK, which probes for the newer era.
const ai = async (server) => {
  const { createMCPClient } = await import('@ai-sdk/mcp');
  const { Experimental_StdioMCPTransport: Stdio } = await import('@ai-sdk/mcp/mcp-stdio');
  const client = await createMCPClient({
    transport: server.url ? { type: 'http', url: server.url } : new Stdio({ command: server.command, args: server.args, env: server.env }),
  });
  const tools = await client.tools();
  return {
    list: async () => described((await client.listTools()).tools, (t) => t.inputSchema),
    call: async (name, args) => {
      const tool = tools[name];
      const output = await tool.execute(args, { toolCallId: '1', messages: [] });
      const seen = tool.toModelOutput ? await tool.toModelOutput({ toolCallId: '1', input: args, output }) : { type: 'content', value: output.content };
      assert.equal(seen.type, 'content', JSON.stringify(seen));
      return seen.value.filter((c) => c.type === 'text').map((c) => c.text);
    },
    close: () => client.close(),
  };
};

// agents is the OpenAI Agents SDK, which hands the content to the model as JSON.
const agents = async (server) => {
  const { MCPServerStdio, MCPServerStreamableHttp, mcpToFunctionTool, RunContext } = await import('@openai/agents-core');
  const of = server.url
    ? new MCPServerStreamableHttp({ url: server.url, name: server.name, clientSessionTimeoutSeconds: 60 })
    : new MCPServerStdio({ command: server.command, args: server.args, env: server.env, name: server.name, clientSessionTimeoutSeconds: 60 });
  await of.connect();
  const listed = await of.listTools();
  return {
    // It turns schemas into strict ones where it can; one without properties cannot
    // be sent to the API.
    list: async () => described(listed, (t) => mcpToFunctionTool(t, of, true).parameters),
    call: async (name, args) => {
      const output = await mcpToFunctionTool(listed.find((t) => t.name === name), of, false).invoke(new RunContext(), JSON.stringify(args));
      return [typeof output === 'string' ? output : JSON.stringify(output)].flatMap((text) => {
        try {
          const parsed = [JSON.parse(text)].flat();
          return parsed.every((c) => typeof c?.text === 'string') ? parsed.map((c) => c.text) : [text];
        } catch {
          return [text];
        }
      });
    },
    close: () => of.close(),
  };
};

// langchain is LangChain's adapter, which throws the text of a failed call.
const langchain = async (server) => {
  const { MultiServerMCPClient } = await import('@langchain/mcp-adapters');
  const client = new MultiServerMCPClient({
    mcpServers: { it: server.url ? { transport: 'http', url: server.url } : { transport: 'stdio', command: server.command, args: server.args, env: server.env } },
    useStandardContentBlocks: true,
  });
  const tools = await client.getTools();
  return {
    list: async () => described(tools, (t) => t.schema),
    call: async (name, args) => {
      try {
        const seen = await tools.find((t) => t.name === name).invoke(args);
        return typeof seen === 'string' ? [seen] : [seen].flat().filter((c) => c.type === 'text').map((c) => c.text);
      } catch (err) {
        return [err.message];
      }
    },
    close: () => client.close(),
  };
};

const clients = {
  'sdk-v1': sdk('v1', 'legacy'),
  'sdk-v2-legacy': sdk('v2', 'legacy'),
  'sdk-v2-modern': sdk('v2', 'modern'),
  'sdk-v2-auto': sdk('v2', 'auto'),
  'mcp-remote': remote,
  'ai-sdk': ai,
  'openai-agents': agents,
  langchain,
};

async function visit(server) {
  const client = await clients[process.argv[2]](server);
  try {
    const tools = await client.list();
    const name = tools.map((t) => t.name).find((n) => n === 'execute_code' || n.endsWith('__execute_code'));
    assert.ok(name, `execute_code is not among ${tools.map((t) => t.name)}`);
    const run = (code) => client.call(name, { code, session_id: server.session });
    return { name: server.name, tools, figures: await run('print(6 * 7)'), failure: await run('1 / 0'), quiet: await run('x = 1') };
  } finally {
    await client.close();
  }
}

let input = '';
for await (const part of process.stdin) input += part;
const visits = JSON.parse(input).map((server) => visit(server).catch((err) => ({ name: server.name, error: err.stack ?? String(err) })));
process.stdout.write(JSON.stringify(await Promise.all(visits)) + '\n', () => process.exit(0));
