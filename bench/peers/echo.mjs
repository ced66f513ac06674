// The MCP server of the official TypeScript SDK that the benchmark compares Glovebox
// with: one tool, on Node's own HTTP server, answering in JSON, which is its fastest
// way. It serves sessions at /session and requests without one at /bare, tells its
// address on standard output and ends with its input.
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { z } from "zod";

// connect makes a server for one transport: the SDK's cannot be shared.
async function connect(transport) {
	const server = new McpServer({ name: "echo", version: "1" });
	server.registerTool("echo", { description: "Says what it is told.", inputSchema: { text: z.string() } },
		async ({ text }) => ({ content: [{ type: "text", text }] }));
	await server.connect(transport);
	return server;
}

const sessions = new Map();

async function session(req, res) {
	const id = req.headers["mcp-session-id"];
	let transport = sessions.get(id);
	if (!transport) {
		transport = new StreamableHTTPServerTransport({
			sessionIdGenerator: randomUUID,
			enableJsonResponse: true,
			onsessioninitialized: (id) => { sessions.set(id, transport); },
		});
		transport.onclose = () => { sessions.delete(transport.sessionId); };
		await connect(transport);
	}
	await transport.handleRequest(req, res);
}

async function bare(req, res) {
	const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined, enableJsonResponse: true });
	const server = await connect(transport);
	res.on("close", () => server.close());
	await transport.handleRequest(req, res);
}

const http = createServer((req, res) => {
	(req.url === "/session" ? session : bare)(req, res).catch((e) => {
		console.error(e);
		if (!res.headersSent) res.writeHead(500);
		res.end();
	});
});
http.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${http.address().port}`));
process.stdin.resume().on("end", () => process.exit(0));
