// Package mcpjson reads and writes configuration files of MCP clients: a strict schema
// of its own, and those of Claude Code, Claude Desktop, Cursor, VS Code, Codex, Gemini,
// OpenCode, Windsurf, Cline, Zed, Amp and the portable mcp.json. It connects to
// nothing, starts nothing, and reads no secrets unless asked to.
//
// The life of a definition:
//
//	bytes ── Load, LoadFile, Parse ──▶ Config of Servers     nothing expanded, only the file is read
//	Server ── Hash, Needs, Explain ──▶ what the user is asked to trust
//	Server ── Resolve ───────────────▶ Resolved              placeholders expanded, once; reads secrets
//	Config ── Export, Merge ─────────▶ bytes in any dialect, and a list of what it cannot express
//
// Configuration files are untrusted: their size, depth and names are bounded, and links
// are not followed. Errors name file, line, column, server and field, and show no value
// that could be a secret.
package mcpjson
