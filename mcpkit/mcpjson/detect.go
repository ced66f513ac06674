package mcpjson

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/nearest"
)

// byName detects a dialect from the path of a file; Auto if it is unknown.
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

// isTOML lists the dialects that are not JSON.
func isTOML(o Options, file string) bool {
	return o.Dialect == Codex || o.Dialect == Auto && strings.EqualFold(filepath.Ext(file), ".toml")
}

// rootKeys are the keys below which dialects have their servers.
var rootKeys = []string{"mcpServers", "servers", "mcp", "mcp_servers", "context_servers", "amp.mcpServers"}

// detect determines the dialect from the keys of a file and, if several dialects share
// them, from its name. bare reports that the file has nothing but servers.
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
		return named, false, nil // keys of other settings in these files may be root keys of other dialects
	case servers != nil && top.get("version") != nil && named != VSCode:
		return V1, false, nil
	case servers != nil && servers.kind == array:
		return "", false, fmt.Errorf("its servers are a list, which is not supported; want an object of servers by name")
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

// noServers returns an error that describes a file without servers.
func noServers(top *node, odd string) error {
	for _, name := range top.names()[:min(len(top.members), maxWarnings)] {
		if near := nearest.Of(name, rootKeys); near != "" {
			return fmt.Errorf("there are no servers, but there is %q; did you mean %q?", clip(name), near)
		}
	}
	return fmt.Errorf("there are no servers: want one of the keys %s, or nothing but servers by name, which %q is not", strings.Join(rootKeys, ", "), clip(odd))
}

// looksBare returns the name of a member that is not a server, or "".
func looksBare(top *node) string {
	for _, m := range top.members {
		if !isServer(m.value) {
			return m.name
		}
	}
	return ""
}

// isServer reports whether an object looks like a definition.
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

// byServers distinguishes the dialects that share mcpServers, by members that only one
// of them has.
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

// rootOf returns the directory that a client's file is for: its own directory, or the
// one above if the client keeps a directory of its own there.
func rootOf(file string) string {
	dir := filepath.Dir(file)
	switch filepath.Base(dir) {
	case ".cursor", ".vscode", ".gemini", ".codex", ".roo", ".github", ".zed", ".amp":
		return filepath.Dir(dir)
	}
	return dir
}

// Location is a file in which a client keeps its servers.
type Location struct {
	Dialect Dialect
	Path    string

	// Project reports that the file belongs to a project, possibly written by others,
	// and not to the user.
	Project bool
}

// Locations returns the files that clients read, for the project in root and the user
// with the directories home and configDir, as returned by os.UserConfigDir. root and
// home may be empty. The files need not exist.
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
