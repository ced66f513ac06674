package codemode

import (
	"path"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestPolicy_Slash: a server does not get past a rule by a slash in the name of a tool.
func TestPolicy_Slash(t *testing.T) {
	p, err := ParsePolicy([]string{"deny github *delete*", "deny io.github.* *", "ask github repos/?", "allow github", "deny ranges [!-~]*delete", "deny ranges fs[+-/]delete", "allow ranges fs[/-:]x"})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[[2]string]Decision{
		{"github", "delete_repo"}: Deny, {"github", "repos/delete"}: Deny, {"github", "/delete/"}: Deny,
		{"io.github.evil", "read"}: Deny, {"io.github.evil/srv", "read"}: Deny, {"io.github.evil/srv", "a/b"}: Deny,
		{"ranges", "/delete"}: Deny, {"ranges", "fs/delete"}: Deny, {"ranges", "fs!x"}: Ask,
		{"github", "repos/a"}: Ask, {"github", "repos//"}: Ask, {"github", "repos/ab"}: Allow, {"github", "x/y"}: Allow,
	} {
		if got := p.Decide(Tool{Server: name[0], Tool: &mcp.Tool{Name: name[1]}}); got != want {
			t.Errorf("%v: got %s, want %s", name, got, want)
		}
	}
}

// FuzzMatches: patterns match as path.Match does, if a slash is a character like others.
func FuzzMatches(f *testing.F) {
	for _, pattern := range []string{"*delete*", "[!-~]*", "fs[.-9]delete", "fs[^+-/]?", `a\*b`, "**a*b?c", "[", "é*[à-ü]", `[\]]`, "a*a*a*a*b"} {
		for _, name := range []string{"delete", "/delete", "fs/delete", "fs!x", "a*b", "aabxc", "é/à", "]", "aaaaaaaaaaaaaaa/"} {
			f.Add(pattern, name)
		}
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		got := matches(pattern, name)
		if pattern == "" || !utf8.ValidString(pattern) || !utf8.ValidString(name) { // names come from JSON
			return
		}
		// Without a slash in the name, path.Match is the judge.
		if !strings.Contains(name, "/") {
			if want, err := path.Match(pattern, name); got != (want && err == nil) {
				t.Errorf("%q and %q: got %v, path.Match %v, %v", pattern, name, got, want, err)
			}
			return
		}
		// A slash matches where path.Match has it match, and further by wildcards only.
		if want, err := path.Match(pattern, name); want && err == nil && !got {
			t.Errorf("%q and %q: got no match, and path.Match has one", pattern, name)
		}
	})
}
