package mcpjson

import "testing"

// A pattern in Amp that disables tools of several servers is applied to each.
func TestAmpToolsOfSeveralServers(t *testing.T) {
	for _, c := range []struct{ entry, server, want string }{
		{"*", "git", "*"},
		{"mcp__*", "git", "*"},
		{"mcp__git__push", "git", "push"},
		{"mcp__git__*", "git", "*"},
		{"mcp__git*__push", "github", "push"},
		{"mcp__*__delete", "files", "delete"},
		{"mcp__git*", "github", "*"},
		{"mcp__a__b__c", "a__b", "c"},
		{"mcp__git__push", "github", ""},
		{"mcp__git*__push", "files", ""},
		{"mcp__git", "git", ""}, // a tool is named, or a pattern
		{"mcp__[__x", "git", ""},
		{"Bash", "git", ""},
	} {
		if got := ampTool(c.entry, c.server); got != c.want {
			t.Errorf("%q denies %q of server %q, want %q", c.entry, got, c.server, c.want)
		}
	}
}
