package mcpjson

import (
	"regexp"

	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
)

// spec describes a dialect.
type spec struct {
	dialect  Dialect
	title    string   // for messages
	file     string   // its usual name
	root     []string // path of the servers
	toml     bool
	comments bool // JSON with comments and trailing commas
	strict   bool // unknown members are refused
	settings bool // the file has other settings, and need not have servers
	syntax   syntax

	// names restricts the names of servers; nil allows any printable text.
	names func() *regexp.Regexp

	// fields are the known members of a server. The dialects with mcpServers share one
	// permissive set, because people copy definitions between files. nil marks members
	// that are known and ignored.
	fields fields

	scopeText bool // the scopes of OAuth are written as one string

	// bareURL is the transport of an address without a type.
	bareURL  Transport
	fallback bool // an address without a type leaves the kind of HTTP open

	// words are types with a meaning that differs from other dialects.
	words map[string]meaning

	// write writes the members of a server.
	write func(w *writer)
}

// meaning is the meaning of a word for a transport.
type meaning struct {
	transport Transport
	fallback  bool
}

// transportWords are the words for transports in all dialects.
var transportWords = map[string]meaning{
	"stdio": {TransportStdio, false}, "local": {TransportStdio, false},
	"unix": {TransportUnix, false},
	"http": {TransportHTTP, false}, "streamable-http": {TransportHTTP, false}, "streamable_http": {TransportHTTP, false},
	"streamableHttp": {TransportHTTP, false}, "streamableHTTP": {TransportHTTP, false}, "streamable": {TransportHTTP, false},
	"remote": {TransportHTTP, true},
	"sse":    {TransportSSE, false},
}

// permissiveFields are the members of all dialects with mcpServers, and a few that
// people copy from other clients.
var permissiveFields = fields{
	"name": nil, "title": titleField, "description": descriptionField, "$schema": nil,
	"type": typeField, "transport": typeField, "transportType": typeField,
	"command": commandField, "argv": commandField, "args": argsField,
	"env": envField, "environment": envField, "envFile": envFileField, "cwd": cwdField, "workingDirectory": cwdField,
	"inherit_env": inheritField, "env_vars": passEnvField, "stdout_log": stdoutLogField, "unix_path": socketField,
	"url": urlField, "serverUrl": urlField, "baseUrl": urlField, "httpUrl": urlField, "http_url": urlField, "sse_url": sseURLField,
	"headers": headersField, "http_headers": headersField, "env_http_headers": envHeadersField,
	"bearer_token_env_var": bearerEnvField, "bearerTokenEnv": bearerEnvField,
	"oauth": oauthField, "auth": authField, "oauth_resource": oauthOutside("resource"), "scopes": oauthOutside("scopes"),
	"timeout": requestMillis, "requestTimeout": requestMillis, "connectionTimeout": connectMillis,
	"startup_timeout_sec": connectSeconds, "startup_timeout_ms": connectMillis, "tool_timeout_sec": requestSeconds,
	"enabled": enabledField, "disabled": disabledField, "required": requiredField,
	"tools": toolListField, "enabled_tools": allowField, "includeTools": allowField, "allowedTools": allowField,
	"disabled_tools": denyField, "excludeTools": denyField, "disabledTools": denyField, "blockedTools": denyField,
	"roots":       rootsField,
	"alwaysAllow": nil, "autoApprove": nil, "trust": nil,
	"headersHelper": ignore("it names a command that makes headers, which is not run", "write the headers, or a variable that holds the secret"),
}

// v1Fields are the members of the strict schema.
var v1Fields = fields{
	"transport": typeField, "argv": commandField, "inherit_env": inheritField, "env": envField, "stdout_log": stdoutLogField,
	"unix_path": socketField, "url": urlField, "sse_url": sseURLField, "http_url": urlField,
	"bearer_token_env_var": bearerEnvField, "http_headers": headersField, "env_http_headers": envHeadersField,
}

var codexFields = fields{
	"name": nil, "command": commandField, "args": argsField, "env": envField, "env_vars": passEnvField, "cwd": cwdField,
	"url": urlField, "http_headers": headersField, "env_http_headers": envHeadersField, "bearer_token_env_var": bearerEnvField,
	"oauth": oauthField, "oauth_resource": oauthOutside("resource"), "scopes": oauthOutside("scopes"),
	"startup_timeout_sec": connectSeconds, "startup_timeout_ms": connectMillis, "tool_timeout_sec": requestSeconds,
	"enabled": enabledField, "required": requiredField, "enabled_tools": allowField, "disabled_tools": denyField,
	"tools": nil, "default_tools_approval_mode": nil, "supports_parallel_tool_calls": nil, "experimental_environment": nil,
	"headers":      ignore("Codex takes no notice of it", "call it http_headers"),
	"bearer_token": refuse("a token must not stand in the file", "put it into a variable and name that in bearer_token_env_var"),
}

var openCodeFields = fields{
	"type": typeField, "command": commandField, "environment": envField, "cwd": cwdField, "url": urlField, "headers": headersField,
	"oauth": oauthField, "timeout": connectMillis, "enabled": enabledField, "disabled": disabledField,
}

var zedFields = fields{
	"command": zedCommandField, "args": argsField, "env": envField, "url": urlField, "headers": headersField, "oauth": oauthField,
	"timeout": requestSeconds, "enabled": enabledField, "source": nil, "settings": nil, "remote": nil,
}

var (
	plainNames = lazyregexp.New(`^[A-Za-z0-9_-]+$`)
	sepNames   = lazyregexp.New(`^[A-Za-z0-9_\[\]-]+$`)
)

var editorDirs = map[string]string{
	DirRoot: "${workspaceFolder}", DirRootName: "${workspaceFolderBasename}", DirHome: "${userHome}", DirSeparator: "${pathSeparator}",
}

var specs = titled(map[Dialect]*spec{
	V1: {
		title: "the strict schema", file: "mcp.json", root: []string{"servers"}, strict: true, names: plainNames, fields: v1Fields,
		words:  map[string]meaning{"stdio": {TransportStdio, false}, "unix": {TransportUnix, false}, "streamable_http": {TransportHTTP, false}},
		syntax: syntax{braces: true, writes: forms{env: "${%s}", fallback: true, chain: true, input: true, dirs: map[string]string{DirRoot: "${MCP_ROOT}"}}}, // others as ${dir:…}
		write:  writeV1,
	},
	ClaudeCode: {
		title: "Claude Code", file: ".mcp.json", root: []string{"mcpServers"}, comments: true, fields: permissiveFields,
		bareURL: TransportHTTP, fallback: true,
		syntax:    syntax{braces: true, writes: forms{env: "${%s}", fallback: true, dirs: map[string]string{DirRoot: "${CLAUDE_PROJECT_DIR:-.}"}}},
		scopeText: true,
		write:     writeClaudeCode,
	},
	ClaudeDesktop: {
		title: "Claude Desktop", file: "claude_desktop_config.json", root: []string{"mcpServers"}, settings: true, comments: true, fields: permissiveFields,
		bareURL: TransportHTTP, fallback: true,
		write: writeClaudeDesktop,
	},
	Cursor: {
		title: "Cursor", file: ".cursor/mcp.json", root: []string{"mcpServers"}, comments: true, fields: permissiveFields,
		bareURL: TransportHTTP, fallback: true,
		syntax: syntax{braces: true, writes: forms{env: "${env:%s}", dirs: editorDirs}},
		write:  writeCursor,
	},
	VSCode: {
		title: "VS Code", file: ".vscode/mcp.json", root: []string{"servers"}, comments: true,
		fields:  permissiveFields.with(fields{"sandboxEnabled": nil, "sandbox": nil, "dev": nil, "gallery": nil, "version": nil}),
		bareURL: TransportHTTP, fallback: true,
		// VS Code tries the older transport if Streamable HTTP is refused.
		words:  map[string]meaning{"http": {TransportHTTP, true}},
		syntax: syntax{braces: true, writes: forms{env: "${env:%s}", input: true, command: true, dirs: editorDirs}},
		write:  writeVSCode,
	},
	Codex: {
		title: "Codex", file: ".codex/config.toml", root: []string{"mcp_servers"}, settings: true, toml: true, names: plainNames, fields: codexFields,
		bareURL: TransportHTTP,
		write:   writeCodex,
	},
	Gemini: {
		title: "Gemini CLI", file: ".gemini/settings.json", root: []string{"mcpServers"}, settings: true, comments: true, fields: permissiveFields,
		bareURL: TransportSSE,
		syntax:  syntax{braces: true, dollar: true, writes: forms{env: "${%s}"}},
		write:   writeGemini,
	},
	OpenCode: {
		title: "OpenCode", file: "opencode.json", root: []string{"mcp"}, settings: true, comments: true, fields: openCodeFields,
		bareURL: TransportHTTP, fallback: true,
		syntax:    syntax{curly: true, writes: forms{env: "{env:%s}", file: true}},
		scopeText: true,
		write:     writeOpenCode,
	},
	OpenCode2: {
		title: "OpenCode 2", file: "opencode.json", root: []string{"mcp", "servers"}, settings: true, comments: true, fields: openCodeFields,
		bareURL: TransportHTTP, fallback: true,
		syntax:    syntax{curly: true, writes: forms{env: "{env:%s}", file: true}},
		scopeText: true,
		write:     writeOpenCode2,
	},
	Windsurf: {
		title: "Windsurf", file: "mcp_config.json", root: []string{"mcpServers"}, comments: true, fields: permissiveFields,
		bareURL: TransportHTTP, fallback: true,
		syntax: syntax{braces: true, writes: forms{env: "${env:%s}"}},
		write:  writeWindsurf,
	},
	Cline: {
		title: "Cline", file: "cline_mcp_settings.json", root: []string{"mcpServers"}, comments: true,
		fields:  permissiveFields.with(fields{"timeout": requestSeconds}),
		bareURL: TransportSSE,
		syntax:  syntax{braces: true, writes: forms{env: "${env:%s}"}},
		write:   writeCline,
	},
	Zed: {
		title: "Zed", file: "settings.json", root: []string{"context_servers"}, settings: true, comments: true, fields: zedFields,
		bareURL: TransportHTTP,
		write:   writeZed,
	},
	Amp: {
		title: "Amp", file: "settings.json", root: []string{"amp.mcpServers"}, settings: true, comments: true, fields: permissiveFields,
		bareURL: TransportHTTP, fallback: true,
		syntax: syntax{braces: true, writes: forms{env: "${%s}"}},
		write:  writeAmp,
	},
	SEP: {
		title: "the portable mcp.json", file: "mcp.json", root: []string{"mcpServers"}, names: sepNames, fields: permissiveFields,
		bareURL: TransportHTTP, fallback: true,
		syntax: syntax{braces: true, writes: forms{env: "${env:%s}", input: true, chain: true}},
		write:  writeSEP,
	},
})

// titled sets the dialect of each spec.
func titled(all map[Dialect]*spec) map[Dialect]*spec {
	for d, s := range all {
		s.dialect = d
	}
	return all
}
