package mcpjson

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func input(id string) Source { return Source{SchemeInput, id} }
func dir(name string) Source { return Source{SchemeDir, name} }

// Every form of placeholder of every client.
func TestPlaceholders(t *testing.T) {
	all := syntax{braces: true}
	for _, c := range []struct {
		x    syntax
		in   string
		want Text
	}{
		{all, "plain $VAR {env:X} $", Literal("plain $VAR {env:X} $")},
		{all, "a${VAR}b", Text{{Literal: "a"}, {Sources: []Source{env("VAR")}}, {Literal: "b"}}},
		{all, "${VAR:-d}", Ref(env("VAR"), value("d"))},
		{all, "${VAR:-}", Ref(env("VAR"), value(""))},
		{all, "${VAR:-a:-b}", Ref(env("VAR"), value("a:-b"))},
		{all, "${VAR:-${B:-${userHome}}}", Ref(env("VAR"), env("B"), dir(DirHome))},
		{all, "${env:VAR}", Ref(env("VAR"))},
		{all, "${env:VAR:-d}", Ref(env("VAR"), value("d"))},
		{all, "$env:VAR/x", Text{{Sources: []Source{env("VAR")}}, {Literal: "/x"}}},
		{all, "${input:id}", Ref(input("id"))},
		{all, "${workspaceFolder}${/}", Text{{Sources: []Source{dir(DirRoot)}}, {Sources: []Source{dir(DirSeparator)}}}},
		{all, "${CLAUDE_PROJECT_DIR:-.}", Ref(dir(DirRoot))},
		{all, "${MCP_ROOT}", Ref(dir(DirRoot))},
		{all, "${CLAUDE_PLUGIN_ROOT}", Ref(dir(DirRoot))},
		{all, "${env:A | input:b | op://v/i/f | value:x y}", Ref(env("A"), input("b"), Source{SchemeOP, "//v/i/f"}, value("x y"))},
		{all, "${command:ext.id}", Ref(Source{SchemeCommand, "ext.id"})},
		{all, "${keychain:k}", Ref(Source{SchemeKeychain, "k"})},
		{all, "${vault:k}", Ref(Source{"vault", "k"})},
		{all, "${value:$}{X}", Literal("${X}")},
		{syntax{braces: true, dollar: true}, "$VAR-$1-${B}", Text{{Sources: []Source{env("VAR")}}, {Literal: "-$1-"}, {Sources: []Source{env("B")}}}},
		{syntax{curly: true}, "{env:VAR}{file:~/k}${VAR}{x}", Text{{Sources: []Source{env("VAR")}}, {Sources: []Source{{SchemeFile, "~/k"}}}, {Literal: "${VAR}{x}"}}},
		{syntax{}, "${VAR} {env:X} $VAR", Literal("${VAR} {env:X} $VAR")},
		{all, "", nil},
	} {
		got, strange := c.x.parse(c.in)
		if diff := cmp.Diff(c.want, got); diff != "" || strange != nil {
			t.Errorf("%q: strange %q (-want +got):\n%s", c.in, strange, diff)
		}
	}
	for _, in := range []string{"${", "${}", "${x", "${1}", "${x%.*}", "${a b}", "a ${A:-${B}c${D}}", "${ | env:A}", "${env:}", "${dir:nowhere}"} {
		got, strange := all.parse(in)
		if len(strange) == 0 {
			t.Errorf("%q: got %v and no complaint", in, got)
		}
	}
	// An inner placeholder that is closed is read though the outer is not.
	if got, _ := all.parse("${a ${B}"); len(got.Sources()) != 1 {
		t.Errorf("got %v, want the inner placeholder", got)
	}
}

// Hostile strings are parsed in linear time; otherwise this test takes minutes.
func TestPlaceholders_LinearTime(t *testing.T) {
	all := syntax{braces: true, dollar: true, curly: true}
	for _, s := range []string{
		strings.Repeat("${", 1<<20), strings.Repeat("${A:-", 1<<18) + strings.Repeat("}", 1<<18),
		strings.Repeat("{env:", 1<<14), strings.Repeat("$", 1<<20), strings.Repeat("}", 1<<20),
	} {
		if _, strange := all.parse(s); len(strange) > maxErrors {
			t.Errorf("%s…: %d complaints", s[:8], len(strange))
		}
	}
}

func TestFormatText(t *testing.T) {
	sep := syntax{braces: true, writes: forms{env: "${env:%s}", input: true, chain: true}}
	claude := syntax{braces: true, writes: forms{env: "${%s}", fallback: true}}
	for _, c := range []struct {
		x    syntax
		t    Text
		want string
		like likeness
	}{
		{sep, Ref(env("A"), value("d")), "${env:A | value:d}", exact},
		{sep, Literal("a${X}"), "a${value:$}{X}", exact},
		{sep, Ref(env("A"), value("a | b")), "${env:A | value:a | b}", near},
		{claude, Ref(env("A"), value("d")), "${A:-d}", exact},
		{claude, Ref(env("A"), value("d}")), "${A:-d}}", near},
		{claude, Literal("a${X}"), "a${X}", near},
		{claude, Ref(env("MCP_ROOT")), "${env:MCP_ROOT}", none},
		{claude, Ref(input("x")), "${input:x}", none},
		{claude, Ref(env("A"), env("B")), "${A}", near},
		{claude, Ref(dir(DirHome)), "${HOME}", near},
		{syntax{}, Literal("${X}"), "${X}", exact},
		{syntax{}, Ref(env("X")), "${env:X}", none},
	} {
		if got, like := c.x.format(c.t); got != c.want || like != c.like {
			t.Errorf("%v: got %q, %v, want %q, %v", c.t, got, like, c.want, c.like)
		}
	}
}

func FuzzPlaceholders(f *testing.F) {
	for _, s := range []string{"${A:-${B}}", "$A{env:B}${c:d | e:f}", "${value:$}{x}", "${${}}", "${/}", "a$"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, x := range []syntax{{braces: true, writes: forms{env: "${%s}", fallback: true, chain: true}}, {braces: true, dollar: true, curly: true, writes: forms{chain: true}}} {
			got, _ := x.parse(s)
			written, like := x.format(got)
			if back, _ := x.parse(written); like == exact && !back.equal(got) {
				t.Errorf("%q is %v, written %q, read back %v", s, got, written, back)
			}
		}
	})
}
