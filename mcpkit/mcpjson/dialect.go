package mcpjson

import (
	"fmt"

	"github.com/glovebox-dev/glovebox/internal/nearest"
)

// Dialect is the format of a client's configuration. The set is closed.
type Dialect string

const (
	// Auto detects the dialect from the file's name and keys.
	Auto Dialect = ""

	V1            Dialect = "v1"             // our own strict schema: version, client, servers
	ClaudeCode    Dialect = "claude-code"    // .mcp.json, ~/.claude.json; also GitHub Copilot CLI and bare maps
	ClaudeDesktop Dialect = "claude-desktop" // claude_desktop_config.json
	Cursor        Dialect = "cursor"         // .cursor/mcp.json
	VSCode        Dialect = "vscode"         // .vscode/mcp.json
	Codex         Dialect = "codex"          // .codex/config.toml
	Gemini        Dialect = "gemini"         // .gemini/settings.json
	OpenCode      Dialect = "opencode"       // opencode.json with servers directly below mcp
	OpenCode2     Dialect = "opencode2"      // opencode.json with servers below mcp.servers
	Windsurf      Dialect = "windsurf"       // mcp_config.json
	Cline         Dialect = "cline"          // cline_mcp_settings.json, .roo/mcp.json
	Zed           Dialect = "zed"            // settings.json of Zed, servers below context_servers
	Amp           Dialect = "amp"            // settings.json of Amp, servers below amp.mcpServers
	SEP           Dialect = "mcp"            // the portable mcp.json of SEP-2633
)

// Dialects lists all dialects, in the order above.
var Dialects = []Dialect{V1, ClaudeCode, ClaudeDesktop, Cursor, VSCode, Codex, Gemini, OpenCode, OpenCode2, Windsurf, Cline, Zed, Amp, SEP}

// ParseDialect returns the dialect with a name. The error suggests a similar name.
func ParseDialect(name string) (Dialect, error) {
	names := make([]string, len(Dialects))
	for i, d := range Dialects {
		if string(d) == name {
			return d, nil
		}
		names[i] = string(d)
	}
	if near := nearest.Of(name, names); near != "" {
		return "", fmt.Errorf("find dialect %q: unknown dialect; did you mean %q?", clip(name), near)
	}
	return "", fmt.Errorf("find dialect %q: unknown dialect; known are %v", clip(name), names)
}
