package mcpjson

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/nearest"
)

// byName tells a dialect from where a file is; Auto if that says nothing.
func byName(file string) Dialect {
	base, parent := filepath.Base(file), filepath.Base(filepath.Dir(file))
	switch base {
	case "claude_desktop_config.json":
		return ClaudeDesktop
	case ".mcp.json", ".claude.json", "mcp-config.json":
		return ClaudeCode
	case "opencode.json", "opencode.jsonc":
		return OpenCode
	case "cline_mcp_settings.json":
		return Cline
	case "mcp_config.json":
		return Windsurf
	}
	switch parent {
	case ".cursor":
		return Cursor
	case ".vscode":
		return VSCode
	case ".gemini":
		return Gemini
	case ".codex":
		return Codex
	case ".roo":
		return Cline
	case ".zed", "zed":
		return Zed
	case ".amp", "amp":
		return Amp
	}
	return Auto
}

// isTOML says which files are not JSON.
func isTOML(o Options, file string) bool {
	return o.Dialect == Codex || o.Dialect == Auto && strings.EqualFold(filepath.Ext(file), ".toml")
}

// rootKeys are the names below which some dialect has its servers.
var rootKeys = []string{"mcpServers", "servers", "mcp", "mcp_servers", "context_servers", "amp.mcpServers"}

// detect tells the dialect from the keys and, where several have the same, from
// the name of the file. bare says that the file is nothing but servers.
func detect(file string, toml bool, top *node) (d Dialect, bare bool, err error) {
	if top.kind != object {
		return "", false, fmt.Errorf("found %s, want an object", top.describe())
	}
	named := byName(file)
	servers, mcp := top.get("servers"), top.get("mcp")
	switch {
	case toml:
		return Codex, false, nil
	case top.get("context_servers") != nil:
		return Zed, false, nil
	case top.get("amp.mcpServers") != nil:
		return Amp, false, nil
	case top.get("mcpServers") != nil:
		if named != Auto && slices.Equal(specs[named].root, []string{"mcpServers"}) {
			return named, false, nil
		}
		return byServers(file, top.get("mcpServers")), false, nil
	case named == Gemini || named == ClaudeDesktop:
		return named, false, nil // other settings of theirs have names that say something elsewhere
	case servers != nil && top.get("version") != nil && named != VSCode:
		return V1, false, nil
	case servers != nil && servers.kind == array:
		return "", false, fmt.Errorf("its servers are a list, which is a form that is not read here; want an object of servers by name")
	case servers != nil && !isServer(servers):
		return VSCode, false, nil
	case mcp != nil && mcp.kind == object && !isServer(mcp):
		if s := mcp.get("servers"); s != nil && s.kind == object && !isServer(s) {
			return OpenCode2, false, nil
		}
		return OpenCode, false, nil
	case len(top.members) == 0 && named == Auto:
		return ClaudeCode, false, nil
	case named != Auto && (specs[named].settings || len(top.members) == 0):
		return named, false, nil
	}
	if odd := looksBare(top); odd != "" {
		return "", false, noServers(top, odd)
	}
	return ClaudeCode, true, nil
}

// noServers says what a file has instead of servers.
func noServers(top *node, odd string) error {
	for _, name := range top.names()[:min(len(top.members), maxWarnings)] {
		if near := nearest.Of(name, rootKeys); near != "" {
			return fmt.Errorf("there are no servers, but there is %q; did you mean %q?", clip(name), near)
		}
	}
	return fmt.Errorf("there are no servers: want one of the keys %s, or nothing but servers by name, which %q is not", strings.Join(rootKeys, ", "), clip(odd))
}

// looksBare returns the name of a member that is no server, or "".
func looksBare(top *node) string {
	for _, m := range top.members {
		if !isServer(m.value) {
			return m.name
		}
	}
	return ""
}

// isServer says that an object looks like a definition.
func isServer(n *node) bool {
	if n.kind != object {
		return false
	}
	for _, key := range []string{"command", "argv", "url", "serverUrl", "httpUrl", "baseUrl", "unix_path"} {
		if n.get(key) != nil {
			return true
		}
	}
	for _, key := range []string{"type", "transport"} {
		if v := n.get(key); v != nil && v.kind == text {
			return true
		}
	}
	return false
}

// byServers tells apart the dialects that have mcpServers by words that only
// one of them has.
func byServers(file string, servers *node) Dialect {
	typed, portable := len(servers.members) > 0, filepath.Base(file) == "mcp.json"
	for _, m := range servers.members {
		s := m.value
		word := ""
		if t := s.get("type"); t != nil {
			word = t.text
		}
		switch {
		case s.get("httpUrl") != nil:
			return Gemini
		case s.get("serverUrl") != nil:
			return Windsurf
		case s.get("alwaysAllow") != nil || s.get("autoApprove") != nil || word == "streamableHttp":
			return Cline
		}
		typed = typed && (word == "stdio" || word == "sse" || word == "streamable-http")
		portable = portable || word == "streamable-http" || s.get("title") != nil
	}
	if typed && portable {
		return SEP
	}
	return ClaudeCode
}

// rootOf is the directory that a file of a client is for: the one that it is
// in, or the one above if clients keep their own directory there.
func rootOf(file string) string {
	dir := filepath.Dir(file)
	switch filepath.Base(dir) {
	case ".cursor", ".vscode", ".gemini", ".codex", ".roo", ".github", ".zed", ".amp":
		return filepath.Dir(dir)
	}
	return dir
}

// Location is where a client keeps its servers.
type Location struct {
	Dialect Dialect
	Path    string

	// Project says that the file belongs to a directory of work, which may be
	// somebody else's, and not to the user.
	Project bool
}

// Locations are the files that clients read, for the project in root and the user
// whose directories those are; either may be empty. configDir is what
// os.UserConfigDir returns. The files need not be there.
func Locations(root, home, configDir string) []Location {
	var list []Location
	add := func(project bool, base string, d Dialect, parts ...string) {
		if base != "" {
			list = append(list, Location{d, filepath.Join(append([]string{base}, parts...)...), project})
		}
	}
	add(true, root, Auto, ".mcp.json")
	add(true, root, Auto, "mcp.json")
	add(true, root, Cursor, ".cursor", "mcp.json")
	add(true, root, VSCode, ".vscode", "mcp.json")
	add(true, root, Codex, ".codex", "config.toml")
	add(true, root, Gemini, ".gemini", "settings.json")
	add(true, root, Cline, ".roo", "mcp.json")
	add(true, root, Auto, "opencode.json")
	add(true, root, Auto, "opencode.jsonc")
	add(true, root, ClaudeCode, ".github", "mcp.json")
	add(true, root, Zed, ".zed", "settings.json")
	add(true, root, Amp, ".amp", "settings.json")
	add(false, home, ClaudeCode, ".claude.json")
	add(false, home, Cursor, ".cursor", "mcp.json")
	add(false, home, Codex, ".codex", "config.toml")
	add(false, home, Gemini, ".gemini", "settings.json")
	add(false, home, Windsurf, ".codeium", "windsurf", "mcp_config.json")
	add(false, home, ClaudeCode, ".copilot", "mcp-config.json")
	add(false, home, Auto, ".config", "opencode", "opencode.json")
	add(false, home, Zed, ".config", "zed", "settings.json")
	add(false, home, Amp, ".config", "amp", "settings.json")
	add(false, configDir, ClaudeDesktop, "Claude", "claude_desktop_config.json")
	add(false, configDir, VSCode, "Code", "User", "mcp.json")
	return list
}
