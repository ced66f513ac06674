//go:build linux

package attack

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
)

func TestAll_AttacksAreComplete(t *testing.T) {
	word := regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	seen := map[string]bool{}
	for _, a := range All() {
		id := a.ID()
		if seen[id] || !word.MatchString(a.Class) || !word.MatchString(a.Name) || a.run == nil {
			t.Errorf("%s: the name is malformed or used twice, or the attack does nothing", id)
		}
		seen[id] = true
		if a.Claim == "" || strings.HasSuffix(a.Claim, ".") || len(a.Claim) > 130 || strings.ToLower(a.Claim[:1]) != a.Claim[:1] {
			t.Errorf("%s: the claim %q is not a short sentence without a period", id, a.Claim)
		}
	}
}

func TestSelect(t *testing.T) {
	all := []Attack{{Class: "a", Name: "one"}, {Class: "a", Name: "two"}, {Class: "b", Name: "one"}}
	for _, c := range []struct {
		patterns []string
		want     string
		fails    string
	}{
		{nil, "a/one a/two b/one", ""},
		{[]string{"a"}, "a/one a/two", ""},
		{[]string{"*/one"}, "a/one b/one", ""},
		{[]string{"b/*", "a/two"}, "a/two b/one", ""},
		{[]string{"*"}, "a/one a/two b/one", ""},
		{[]string{"a", "c"}, "", `no attack or class matches "c"; the classes are: [a b]`},
		{[]string{"["}, "", "malformed"},
	} {
		got, err := Select(all, c.patterns)
		var ids []string
		for _, a := range got {
			ids = append(ids, a.ID())
		}
		if strings.Join(ids, " ") != c.want || (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%q: got %q, %v", c.patterns, ids, err)
		}
	}
}

func TestMarkdown_IsInDocs(t *testing.T) {
	got, err := os.ReadFile("../../docs/attack.md")
	if err != nil || !bytes.Equal(got, []byte(Markdown())) {
		t.Errorf("docs/attack.md is out of date (%v): run go generate ./internal/attack", err)
	}
}

// The scripts have no function that no attack runs.
func TestGuestScripts_AreUsed(t *testing.T) {
	entries, err := guestFiles.ReadDir("guest")
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if strings.HasSuffix(f.Name(), ".go") && !strings.HasSuffix(f.Name(), "_test.go") {
			b, err := os.ReadFile(f.Name())
			if err != nil {
				t.Fatal(err)
			}
			source.Write(b)
		}
	}
	function := regexp.MustCompile(`(?m)^def ([a-z]\w*)\(\):`)
	for _, e := range entries {
		if e.Name() == "lib.py" {
			continue
		}
		b, err := guestFiles.ReadFile("guest/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range function.FindAllSubmatch(b, -1) {
			name := string(m[1])
			if !strings.Contains(source.String(), `"`+name+`"`) && strings.Count(string(b), name+"(") < 2 {
				t.Errorf("guest/%s: no attack runs %s", e.Name(), name)
			}
		}
	}
}

func TestPrintable(t *testing.T) {
	if got := printable("a\x1b[31m\n\tb\u009b é\xff"); got != "a [31m b é\uFFFD" {
		t.Errorf("got %q", got)
	}
	if got := printable(strings.Repeat("x", 1000)); len(got) > maxText+len("…") {
		t.Errorf("got %d bytes", len(got))
	}
}
