// Package mcpjson reads and writes the files in which people say which MCP
// servers their clients use: a strict schema of its own and what Claude Code,
// Claude Desktop, Cursor, VS Code, Codex, Gemini, OpenCode, Windsurf, Cline and
// the portable mcp.json have. It connects to nothing, starts nothing, and reads
// no secret unless told to.
//
// The life of a definition:
//
//	bytes ── Load, LoadFile, Parse ──▶ Config of Servers     nothing expanded, nothing read but the file
//	Server ── Hash, Needs, Explain ──▶ what a person is asked to trust
//	Server ── Resolve ───────────────▶ Resolved              placeholders replaced, once; the step that reads secrets
//	Config ── Export, Merge ─────────▶ bytes of any dialect, with a list of what it cannot say
//
// Configuration files are hostile: their size, depth and names are bounded,
// links are not followed, every complaint names file, line, column, server and
// field, and no complaint shows a value that could be a secret.
package mcpjson
