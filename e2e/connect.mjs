// Connects a stock client of the official TypeScript SDK, of either generation,
// to Glovebox.
import assert from 'node:assert/strict';

const identity = { name: 'glovebox-e2e', version: '1.0.0' };

// connect starts a client: sdk v1 or v2, era legacy or modern, over http with the
// endpoint's URL or over stdio with the program and its arguments; era auto probes
// for modern. A last argument may be an object with env for the program, and elicit, which
// answers the parameters of an elicitation. The result has the client, the protocol version, and call for a tool's name and arguments.
export async function connect(sdk, era, transportName, target, ...args) {
  const { env = process.env, elicit } = typeof args.at(-1) === 'object' ? args.pop() : {};
  const options = elicit ? { capabilities: { elicitation: { form: {} } } } : {};
  const stdio = { command: target, args, stderr: 'inherit', env };
  if (sdk === 'v1') {
    const { Client } = await import('@modelcontextprotocol/sdk/client/index.js');
    const { StdioClientTransport } = await import('@modelcontextprotocol/sdk/client/stdio.js');
    const { StreamableHTTPClientTransport } = await import('@modelcontextprotocol/sdk/client/streamableHttp.js');
    const { CallToolResultSchema, ElicitRequestSchema } = await import('@modelcontextprotocol/sdk/types.js');
    assert.equal(era, 'legacy', 'the first SDK speaks the legacy era only');
    const client = new Client(identity, options);
    if (elicit) client.setRequestHandler(ElicitRequestSchema, (request) => elicit(request.params));
    const transport = transportName === 'stdio'
      ? new StdioClientTransport(stdio)
      : new StreamableHTTPClientTransport(new URL(target));
    await client.connect(transport);
    return {
      client,
      version: transport.protocolVersion ?? '', // over stdio it does not tell
      call: (name, a, options) => client.callTool({ name, arguments: a }, CallToolResultSchema, options),
    };
  }
  const { Client, StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client');
  const { StdioClientTransport } = await import('@modelcontextprotocol/client/stdio');
  const mode = era === 'modern' ? { pin: '2026-07-28' } : era;
  const client = new Client(identity, { ...options, versionNegotiation: { mode } });
  if (elicit) client.setRequestHandler('elicitation/create', (request) => elicit(request.params));
  const transport = transportName === 'stdio'
    ? new StdioClientTransport(stdio)
    : new StreamableHTTPClientTransport(new URL(target));
  await client.connect(transport);
  return {
    client,
    version: client.getNegotiatedProtocolVersion(),
    call: (name, a, options) => client.callTool({ name, arguments: a }, options),
  };
}
