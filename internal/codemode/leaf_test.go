package codemode

import (
	"fmt"
	"strings"
	"testing"
)

// TestSignature_leaves: the types of strings, numbers, booleans and enumerations are shown however
// deep they are nested and wherever they are defined, and then nothing says that something is
// left out.
func TestSignature_leaves(t *testing.T) {
	deep := func(leaf string) string {
		return `{"type":"array","items":{"type":"array","items":{"type":"array","items":{"type":"array","items":` + leaf + `}}}}`
	}
	enum := func(n int) string {
		var values []string
		for i := range n {
			values = append(values, fmt.Sprintf(`"v%d"`, i))
		}
		return `{"type":"string","enum":[` + strings.Join(values, ",") + `]}`
	}
	for name, c := range map[string]struct {
		schema, defs string
		want         string // the type in Python
		shortened    bool
	}{
		"a string":                 {deep(`{"type":"string"}`), `{}`, "list[list[list[list[str]]]]", false},
		"a number":                 {deep(`{"type":"number"}`), `{}`, "list[list[list[list[float]]]]", false},
		"several types":            {deep(`{"type":["integer","null"]}`), `{}`, "list[list[list[list[int | None]]]]", false},
		"a deep enumeration":       {deep(`{"enum":["a","b"]}`), `{}`, `list[list[list[list[Literal["a", "b"]]]]]`, false},
		"a constant":               {`{"anyOf":[{"type":"string","const":"a"},{"type":"string","const":"b"}]}`, `{}`, `Literal["a"] | Literal["b"]`, false},
		"any object":               {deep(`{"type":"object"}`), `{}`, "list[list[list[list[dict]]]]", false},
		"an object with members":   {deep(`{"type":"object","properties":{"a":{"type":"string"}}}`), `{}`, "list[list[list[list[dict]]]]", true},
		"a long enumeration":       {enum(maxEnum), `{}`, `"v0", "v1"`, false},
		"a longer one":             {enum(maxEnum + 1), `{}`, "a: str =", true},
		"a defined enumeration":    {`{"$ref":"#/$defs/Color"}`, `{"Color":{"type":"string","enum":["red","blue"]}}`, `Literal["red", "blue"]`, false},
		"a defined one by allOf":   {`{"allOf":[{"$ref":"#/$defs/Color"}],"default":"red"}`, `{"Color":{"type":"string","enum":["red","blue"]}}`, `Literal["red", "blue"] = "red"`, false},
		"a defined one or null":    {`{"anyOf":[{"$ref":"#/$defs/Color"},{"type":"null"}]}`, `{"Color":{"type":"string","enum":["red","blue"]}}`, `Literal["red", "blue"] | None`, false},
		"a defined long value":     {`{"$ref":"#/$defs/L"}`, `{"L":{"enum":["` + strings.Repeat("x", maxType+1) + `"]}}`, "a: Any", true},
		"a defined type of many":   {`{"$ref":"#/$defs/L"}`, `{"L":{"type":["string"` + strings.Repeat(`,"string"`, 20) + `]}}`, "a: Any", true},
		"a defined list":           {`{"$ref":"#/$defs/L"}`, `{"L":{"const":["a"]}}`, "a: Any", true},
		"a defined object":         {`{"$ref":"#/$defs/O"}`, `{"O":{"type":"object","properties":{"a":{"type":"string"}}}}`, "a: Any", true},
		"a reference to itself":    {`{"$ref":"#/$defs/O"}`, `{"O":{"$ref":"#/$defs/O"}}`, "a: Any", true},
		"a reference with a limit": {`{"$ref":"#/$defs/S","maxLength":3}`, `{"S":{"type":"string"}}`, "a: Any", true},
	} {
		b := New(Options{Servers: catalogued{names: []string{"s"}, all: []Tool{tool("s", "t", "Does.", `{"type":"object","properties":{"a":`+c.schema+`},"$defs":`+c.defs+`}`)}}})
		described, _, err := b.Describe(t.Context(), []string{"s.t"}, "", Python)
		if err != nil {
			t.Fatal(err)
		}
		if got := described[0].Text; !strings.Contains(got, c.want) || strings.Contains(got, "shortened") != c.shortened {
			t.Errorf("%s: got %s, want %s; shortened: %t", name, got, c.want, c.shortened)
		}
	}
}

// TestSearch_withoutWords: the answer has tools of each server, those that code may call before
// those that a rule denies, and says how many each server has.
func TestSearch_withoutWords(t *testing.T) {
	var all []Tool
	for i := range 30 {
		all = append(all, tool("a-a", fmt.Sprintf("t%d", i), "Does.", `{}`))
	}
	all = append(all, tool("b", "x", "Does.", `{}`), tool("b", "y", "Does.", `{}`), tool("c", "denied", "Does.", `{}`))
	b := New(Options{Policy: Policy{{Server: "c", Decision: Deny}}, Servers: catalogued{names: []string{"a-a", "b", "c"}, all: all}})
	found, n := b.Search(t.Context(), "", 5, Python)
	if got := strings.Join(NamesOf(found), " "); n != len(all) || got != "a-a.t0 a-a.t1 a-a.t2 b.x b.y" {
		t.Errorf("got %s of %d", got, n)
	}
	found, _ = b.Search(t.Context(), "", 100, Python)
	if got := strings.Join(NamesOf(found), " "); len(found) != len(all) || !strings.HasPrefix(got, "a-a.t0 a-a.t1 ") || !strings.HasSuffix(got, "a-a.t29 b.x b.y c.denied") {
		t.Errorf("got %s", got)
	}
	w := &world{Broker: b}
	answer, failure := w.ask(t, b.Begin(Identity{}), "search", `{"limit":2}`)
	if failure != nil || !strings.Contains(answer, "# Tools by server: a_a (30), b (2), c (1).") {
		t.Errorf("got %s, %v", answer, failure)
	}
	if answer, _ := w.ask(t, b.Begin(Identity{}), "search", `{"limit":100}`); strings.Contains(answer, "by server") {
		t.Errorf("all are shown: got %s", answer)
	}
}

// TestDescribe_once: a tool that several names mean is described once.
func TestDescribe_once(t *testing.T) {
	b := New(Options{Servers: catalogued{names: []string{"s-s"}, all: []Tool{tool("s-s", "a-b", "Does.", `{}`), tool("s-s", "c", "Does.", `{}`)}}})
	names := []string{"s-s.a-b", "s_s.a_b", "s-s.a-b", "s-s", "c"}
	for _, detail := range []string{"", DetailSchema} {
		if described, _, err := b.Describe(t.Context(), names, detail, Python); err != nil || len(described) != 2 {
			t.Errorf("detail %q: got %+v, %v", detail, described, err)
		}
	}
	if lines, _, err := b.Lines(t.Context(), names, Python); err != nil || len(lines) != 2 {
		t.Errorf("lines: got %+v, %v", lines, err)
	}
	if text, n, _, err := b.Declarations(t.Context(), names, Python); err != nil || n != 2 || strings.Count(text, "def a_b(") != 1 {
		t.Errorf("declarations: got %s of %d, %v", text, n, err)
	}
}
