// UTCP's code mode over the servers of an mcp.json. For each line of input, a JSON object with
// an op, it prints one line of JSON: what a model would read. The wording and the shape of
// the answers are those of the library's MCP bridge, which is not on npm.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import "@utcp/mcp";
import { CodeModeUtcpClient } from "@utcp/code-mode";

// Its messages go to standard output, which belongs to the answers.
const print = console.log;
console.log = console.info = console.warn = console.error;

const client = await CodeModeUtcpClient.create();
const { mcpServers } = JSON.parse(readFileSync(process.argv[2], "utf8"));
for (const [name, { command, args, env }] of Object.entries(mcpServers)) {
	const { success, errors } = await client.registerManual({
		name, call_template_type: "mcp",
		config: { mcpServers: { [name]: { transport: "stdio", command, args, env: { ...process.env, ...env } } } },
	});
	if (!success) throw new Error(`register ${name}: ${errors}`);
}

const text = { type: "string" };
const tools = [
	{ name: "search_tools", description: "Searches for relevant tools based on a task description.", input_schema: { type: "object", properties: { task_description: { ...text, description: "A natural language description of the task." }, limit: { type: "number", default: 10 } }, required: ["task_description"] } },
	{ name: "tools_info", description: "Get complete information about a specified list of tools, including TypeScript interface definition.", input_schema: { type: "object", properties: { tool_names: { type: "array", items: text, description: "Names of the tools to get complete information for." } }, required: ["tool_names"] } },
	{ name: "call_tool_chain", description: "Execute TypeScript code with direct access to all registered tools as hierarchical functions (e.g., manual.tool()).", input_schema: { type: "object", properties: { code: { ...text, description: "TypeScript code to execute with access to all registered tools." }, timeout: { type: "number", default: 30000, description: "Optional timeout in milliseconds (default: 30000)." } }, required: ["code"] } },
];

// A tool is called manual.server_tool in code.
const inCode = (name) => {
	const [manual, ...rest] = name.split(".");
	return manual + "." + rest.join("_").replace(/\W/g, "_");
};

const ops = {
	catalogue: () => CodeModeUtcpClient.AGENT_PROMPT_TEMPLATE + "\n" + JSON.stringify(tools),
	search: async ({ query }) => JSON.stringify({
		tools: (await client.searchTools(query, 10)).map((t) => ({ name: inCode(t.name), description: t.description, typescript_interface: client.toolToTypeScriptInterface(t) })),
	}),
	describe: async ({ names }) => {
		const all = await client.getTools();
		return names.map((n) => client.toolToTypeScriptInterface(all.find((t) => inCode(t.name) === n))).join("\n\n");
	},
	run: async ({ code }) => {
		const { result, logs } = await client.callToolChain(code, 60_000);
		return JSON.stringify({ success: true, nonMcpContentResults: result, logs });
	},
};

for await (const line of createInterface({ input: process.stdin })) {
	const { op, ...args } = JSON.parse(line);
	let answer;
	try {
		answer = { text: await ops[op](args) };
	} catch (e) {
		answer = { error: String(e?.message ?? e) };
	}
	print(JSON.stringify(answer));
}
await client.close?.();
process.exit(0);
