package codemode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// fakeServers is a server "s" with tools that the test chooses.
type fakeServers struct {
	names []string // of servers; nil: "s"
	tools func() []Tool
	call  func(ctx context.Context, arguments json.RawMessage) (*mcp.CallToolResult, error)
	why   *Error // why a tool is not available; nil: there is no such tool
}

func (f fakeServers) Names() []string {
	if f.names != nil {
		return f.names
	}
	return []string{"s"}
}
func (f fakeServers) Tools(_ context.Context, server string) []Tool {
	return slices.DeleteFunc(slices.Clone(f.tools()), func(t Tool) bool { return server != "" && t.Server != server })
}
func (fakeServers) Withheld(context.Context, string) []string { return nil }

func (fakeServers) Hold() (release func()) { return func() {} }

func (f fakeServers) Unavailable(context.Context, string, string) *Error { return f.why }
func (f fakeServers) Call(ctx context.Context, _ Tool, arguments json.RawMessage) (*mcp.CallToolResult, error) {
	if f.call != nil {
		return f.call(ctx, arguments)
	}
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil
}

// oneTool returns servers with one read-only tool "t", whose calls a function answers.
func oneTool(call func(ctx context.Context, arguments json.RawMessage) (*mcp.CallToolResult, error)) fakeServers {
	t := Tool{Server: "s", Tool: &mcp.Tool{Name: "t", Annotations: readOnly, InputSchema: map[string]any{"type": "object"}}}
	return fakeServers{tools: func() []Tool { return []Tool{t} }, call: call}
}

// offering returns a broker of a server with one read-only tool "t" for each schema,
// which is JSON.
func offering(t *testing.T, o Options, schemas ...string) *world {
	t.Helper()
	var tools []Tool
	for i, schema := range schemas {
		name := "t"
		if i > 0 {
			name = fmt.Sprint("t", i)
		}
		tools = append(tools, Tool{Server: "s", Tool: &mcp.Tool{Name: name, Annotations: readOnly, InputSchema: decodeSchema(t, schema)}})
	}
	if o.Servers == nil {
		o.Servers = fakeServers{tools: func() []Tool { return tools }}
	}
	return &world{Broker: New(o)}
}

func decodeSchema(t *testing.T, schema string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(schema), &v); err != nil {
		t.Fatalf("schema %.100s: %v", schema, err)
	}
	return v
}

// cost returns how long f takes and how much memory it allocates.
func cost(f func()) (took time.Duration, bytes uint64) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	begun := time.Now()
	f()
	took = time.Since(begun)
	runtime.ReadMemStats(&after)
	return took, after.TotalAlloc - before.TotalAlloc
}

// nested returns open repeated n times, middle, and shut repeated n times.
func nested(n int, open, middle, shut string) string {
	return strings.Repeat(open, n) + middle + strings.Repeat(shut, n)
}

// TestSchema_hostile gives the broker schemas of a server that wants to stop the host,
// with arguments of a program that helps it.
func TestSchema_hostile(t *testing.T) {
	chain := func(n int, one string) string { // of $defs, each of which uses the next one twice
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `"d%d":{%s},`, i, strings.ReplaceAll(one, "NEXT", fmt.Sprintf(`{"$ref":"#/$defs/d%d"}`, i+1)))
		}
		return fmt.Sprintf(`{"type":"object","$ref":"#/$defs/d0","$defs":{%s"d%d":{}}}`, b.String(), n)
	}
	splits := func(n int) string { // different lists of the same letters
		var b strings.Builder
		for i := range n {
			for j := range n - i {
				fmt.Fprintf(&b, `["%s","%s","%s"],`, strings.Repeat("x", i), strings.Repeat("x", j), strings.Repeat("x", n-i-j))
			}
		}
		return `{"a":[` + strings.TrimSuffix(b.String(), ",") + `]}`
	}
	text := `{"a":"` + strings.Repeat("a", 900_000) + `"}`
	for name, tc := range map[string]struct{ schema, arguments string }{
		"a reference to itself":          {`{"$ref":"#"}`, `{}`},
		"a reference in capitals":        {`{"$REF":"#"}`, `{}`},
		"definitions in capitals":        {`{"$ref":"#/$defs/a","$defs":{"a":{}},"$DEFS":{"a":{"$ref":"#"}}}`, `{}`},
		"a reference into a list":        {`{"$ref":"#/allOf/0","allOf":[{"$ref":"#/allOf/0"}]}`, `{}`},
		"references in a circle":         {`{"type":"object","$ref":"#/$defs/a","$defs":{"a":{"allOf":[{"$ref":"#/$defs/b"}]},"b":{"$ref":"#/$defs/a"}}}`, `{}`},
		"a dynamic reference":            {`{"$dynamicAnchor":"x","$dynamicRef":"#x"}`, `{}`},
		"an anchor":                      {`{"$anchor":"x","allOf":[{"$ref":"#x"}]}`, `{}`},
		"an id":                          {`{"$id":"http://x.example/","allOf":[{"$ref":"http://x.example/"}]}`, `{}`},
		"a reference with escapes":       {`{"$ref":"#/$defs/%61","$defs":{"a":{"$ref":"#/%24defs/a"}}}`, `{}`},
		"recursion that doubles":         {`{"allOf":[{"properties":{"a":{"$ref":"#"}}},{"properties":{"a":{"$ref":"#"}}}]}`, nested(40, `{"a":`, "1", "}")},
		"definitions that double":        {chain(40, `"allOf":[NEXT,NEXT]`), `{}`},
		"definitions that double levels": {chain(40, `"properties":{"a":NEXT},"additionalProperties":NEXT,"patternProperties":{"a":NEXT}`), nested(40, `{"a":`, "1", "}")},
		"alternatives":                   {`{"properties":{"a":{"anyOf":[` + strings.Repeat(`{"type":"object"},`, 12_000) + `{"type":"object"}]}}}`, text},
		"alternatives in alternatives":   {nested(300, `{"anyOf":[{"type":"array"},`, `{"type":"array"}`, "]}"), text},
		"a pattern that repeats":         {`{"properties":{"a":{"pattern":"((((((((a?){9}){9}){9}a?){9}){9}){9}){9}){9}b"}}}`, text},
		"a pattern of classes":           {`{"properties":{"a":{"pattern":"` + strings.Repeat(`(\\pL?\\pN?){400}`, 50) + `b"}}}`, text},
		"many patterns":                  {`{"patternProperties":{` + strings.TrimSuffix(strings.Repeat(`"(\\pL|x){500}N":{},`, 1000), ",") + `}}`, text},
		"lists that are hardly unique":   {`{"properties":{"a":{"uniqueItems":true}}}`, splits(115)},
		"a remote reference":             {`{"$ref":"http://127.0.0.1:9/schema"}`, `{}`},
		"a division by zero":             {`{"properties":{"a":{"multipleOf":0}}}`, `{"a":1}`},
		"values of no schema":            {`{"properties":{"a":null},"items":[null],"enum":[null,{"a":[]}],"const":null}`, `{"a":null}`},
		"a deep schema":                  {nested(9000, `{"not":`, "{}", "}"), `{}`},
		"a wide schema": {`{"properties":{` + strings.TrimSuffix(func() string {
			var b strings.Builder
			for i := range 20_000 { // 0.6 s to decode
				fmt.Fprintf(&b, `"%d":{},`, i)
			}
			return b.String()
		}(), ",") + `}}`, `{}`},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			for i := range 1000 { // "many patterns" has equal keys otherwise
				if !strings.Contains(tc.schema, "N\"") {
					break
				}
				tc.schema = strings.Replace(tc.schema, `N":`, fmt.Sprintf(`%d":`, i), 1)
			}
			w := offering(t, Options{}, tc.schema)
			took, bytes := cost(func() {
				w.call(t, w.Begin(Identity{}), "s.t", tc.arguments)
				w.Search(t.Context(), "", 0, Python)
				if _, _, err := w.Describe(t.Context(), []string{"s.t"}, "", JavaScript); err != nil {
					t.Error(err)
				}
			})
			if took > 10*time.Second || bytes > 300<<20 {
				t.Errorf("a call and a search took %v and %d MiB", took, bytes>>20)
			}
		})
	}
}

// TestSchema_checked checks that the defences leave ordinary schemas to be checked.
func TestSchema_checked(t *testing.T) {
	for name, tc := range map[string]struct{ schema, arguments, want string }{
		"definitions": {`{"type":"object","properties":{"p":{"$ref":"#/$defs/point"},"q":{"$ref":"#/$defs/point"}},"$defs":{"point":{"type":"object","properties":{"x":{"type":"number"}},"required":["x"]}}}`,
			`{"p":{"x":1},"q":{}}`, "missing q.x: expected a number"},
		"a reference into properties": {`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"a":{"type":"array","items":{"type":"string"}},"b":{"$ref":"#/properties/a/items"}}}`,
			`{"b":1}`, "b: expected a string, got 1"},
		"an escaped reference":    {`{"properties":{"b":{"$ref":"#/$defs/a~1b%20c"}},"$defs":{"a/b c":{"type":"string"}}}`, `{"b":1}`, "b: expected a string, got 1"},
		"a reference into a list": {`{"properties":{"a":{"anyOf":[{"type":"integer"},{"type":"null"}]},"b":{"$ref":"#/properties/a/anyOf/0"}}}`, `{"b":"x"}`, `b: expected an integer, got "x"`},
		"a pattern":               {`{"properties":{"date":{"type":"string","pattern":"^\\d{4}-\\d{2}-\\d{2}(T.{1,60})?$"}}}`, `{"date":"tomorrow"}`, "date: expected text that matches"},
		"unique items":            {`{"properties":{"tags":{"type":"array","uniqueItems":true}}}`, `{"tags":["a","b","a"]}`, "tags: expected different items, got the same ones at 0 and 2"},
		"a property named $ref": {`{"properties":{"$ref":{"type":"string"},"pattern":{"type":"string"}},"additionalProperties":false}`,
			`{"$ref":1}`, `["$ref"]: expected a string, got 1`},
		"a long text": {`{"properties":{"path":{"type":"string"},"content":{"type":"string"}},"required":["path","content"]}`,
			`{"content":"` + strings.Repeat("x", 900_000) + `"}`, "path"},
	} {
		w := offering(t, Options{}, tc.schema)
		_, failure := w.call(t, w.Begin(Identity{}), "s.t", tc.arguments)
		if failure == nil || failure.Code != InvalidArguments || !strings.Contains(failure.Message, tc.want) {
			t.Errorf("%s: got %+v, want %q", name, failure, tc.want)
		}
	}
}

// TestSchema_kept lists tools anew again and again, as a server can make its client do,
// and checks that the old ones take no memory.
func TestSchema_kept(t *testing.T) {
	schema := `{"properties":{` + strings.TrimSuffix(func() string {
		var b strings.Builder
		for i := range 2000 {
			fmt.Fprintf(&b, `"p%d":{"type":"string"},`, i)
		}
		return b.String()
	}(), ",") + `}}`
	var tools []Tool
	w := offering(t, Options{
		Servers:   fakeServers{tools: func() []Tool { return tools }},
		RunBudget: Budget{Calls: 1000},
	})
	r := w.Begin(Identity{})
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for range 60 {
		tools = []Tool{{Server: "s", Tool: &mcp.Tool{Name: "t", Annotations: readOnly, InputSchema: decodeSchema(t, schema)}}}
		if _, failure := w.call(t, r, "s.t", `{}`); failure != nil {
			t.Fatal(failure)
		}
	}
	tools = nil
	if after := heap(); after > before+64<<20 {
		t.Errorf("60 lists of one tool keep %d MiB", (after-before)>>20)
	}
	runtime.KeepAlive(w)
}

// TestStubs_hostile checks that names and descriptions of a server stay names and
// descriptions in the declarations that a model or an editor reads.
func TestStubs_hostile(t *testing.T) {
	breakout := "x): pass\nimport os\nos.system('id')  #"
	properties := map[string]any{
		breakout: map[string]any{"type": "string"}, "class": map[string]any{}, "*/ }; evil(": map[string]any{}, "__proto__": map[string]any{}, "ﬁle": map[string]any{},
		"ok":    map[string]any{"enum": []any{"\"]); import os #", "\u2028", true, nil, 1.5, map[string]any{"a": "\n"}}, "default": "\"\n'''\\"},
		"deep":  map[string]any{"type": "object", "properties": map[string]any{"a\nb": map[string]any{"enum": []any{"`${x}`"}}}},
		"plain": map[string]any{"type": "object", "default": map[string]any{"a": true}},
	}
	note := "\"\"\"'''*/ \u2028evil()\u2029evil()\u0085evil()\r\nevil()\x0cevil(). More."
	var tools []Tool
	for _, name := range []string{"good", "__init__", "class", "import os", "a(); evil", "toString", "search", "ｒead", "1", ""} {
		tools = append(tools, Tool{Server: "s", Tool: &mcp.Tool{Name: name, Description: note, InputSchema: map[string]any{"properties": properties}, OutputSchema: map[string]any{"enum": []any{"\n"}}}})
	}
	w := offering(t, Options{Servers: fakeServers{names: []string{"s"}, tools: func() []Tool { return tools }}})
	text := w.Stubs(t.Context(), JavaScript)
	line := regexp.MustCompile(`^(declare const tools: \{|  [A-Za-z]\w*: \{|    [A-Za-z]\w*\(args: \{.*\}\): Promise<.*>; // [^\r\v\f\x{85}\x{2028}\x{2029}]*|  \};|\};|)$`)
	for _, l := range strings.Split(text, "\n") {
		if !line.MatchString(l) {
			t.Errorf("line of TypeScript: %q", l)
		}
	}
	if strings.Contains(text, "*/ }; evil(?") {
		t.Errorf("a name is not quoted:\n%s", text)
	}
	text = w.Stubs(t.Context(), Python)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	cmd := exec.Command(python, "-c", `import ast, sys
for node in ast.parse(sys.stdin.read()).body:
    assert isinstance(node, (ast.ImportFrom, ast.ClassDef)), ast.dump(node)
    for f in getattr(node, "body", []):
        assert isinstance(f, ast.FunctionDef) and isinstance(f.body[0], ast.Expr) and len(f.body) == 1, ast.dump(f)
        assert not any(isinstance(n, ast.Call) for n in ast.walk(f)), ast.dump(f)`)
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s\n%s", err, out, text)
	}
	for _, l := range strings.Split(signatureWriter{&w.declarations, Python}.signature(tools[0])+signatureWriter{&w.declarations, JavaScript}.signature(tools[0]), "evil") {
		if strings.ContainsAny(l, "\n\r\u2028") {
			t.Errorf("a signature of several lines: %q", l)
		}
	}
}

// TestNames_hostile checks that tools whose names deceive a person are not offered, and
// that names cannot stand for others.
func TestNames_hostile(t *testing.T) {
	names := []string{"read", "rea\u200bd", "\u202edaer", "a\nb", "\x1b[2Jread", "\U000e0072ead", strings.Repeat("x", 1000), "ｒead", "rеad", "a-b", "a.b"}
	servers := []string{"files", "ﬁles", "search", "describe", "__proto__", "constructor"}
	var tools []Tool
	for _, s := range servers {
		for _, n := range names {
			tools = append(tools, Tool{Server: s, Tool: &mcp.Tool{Name: n, Annotations: readOnly, InputSchema: map[string]any{"type": "object"}}})
		}
	}
	w := offering(t, Options{Servers: fakeServers{names: servers, tools: func() []Tool { return tools }}})
	r := w.Begin(Identity{})
	listed, _ := w.ask(t, r, "catalog", `{}`)
	found, _ := w.ask(t, r, "search", `{"query":"","limit":100}`)
	for _, hidden := range []string{`\u200b`, "\u200b", "\u202e", `\u202e`, `\u001b`, `a\nb`, "\U000e0072", strings.Repeat("x", 200)} {
		if strings.Contains(listed+found, hidden) {
			t.Errorf("a list has the name with %q", hidden)
		}
	}
	for _, l := range []Language{Python, JavaScript} {
		if text := w.Stubs(t.Context(), l); strings.Contains(text, " search:") || strings.Contains(text, " describe:") || strings.Contains(text, "__proto__") || strings.Contains(text, " constructor:") {
			t.Errorf("a server hides a name of the library:\n%s", text)
		}
	}
	for _, tc := range []struct {
		server, tool string
		want         Code
	}{
		{"files", "read", ""}, {"ﬁles", "read", ""}, {"t_search", "read", ""}, {"search", "read", ""}, {"t_proto__", "read", ""},
		{"files", "rea\u200bd", UnknownTool}, {"files", "a\nb", UnknownTool}, {"files", "a_b", UnknownTool}, {"files", "ｒead", ""},
	} {
		b, _ := json.Marshal(map[string]any{"server": tc.server, "tool": tc.tool})
		if _, failure := w.ask(t, r, "tool", string(b)); codeOf(failure) != tc.want {
			t.Errorf("%q.%q: got %+v, want %q", tc.server, tc.tool, failure, tc.want)
		}
	}
}

// TestCall_duplicateNames checks that nobody can be shown other arguments than the
// server reads.
func TestCall_duplicateNames(t *testing.T) {
	sent := ""
	w := offering(t, Options{Servers: fakeServers{
		tools: func() []Tool {
			return []Tool{{Server: "s", Tool: &mcp.Tool{Name: "t", Annotations: readOnly, InputSchema: map[string]any{"type": "object"}}}}
		},
		call: func(_ context.Context, arguments json.RawMessage) (*mcp.CallToolResult, error) {
			sent = string(arguments)
			return &mcp.CallToolResult{}, nil
		},
	}})
	r := w.Begin(Identity{})
	for _, arguments := range []string{`{"path":"/safe","path":"/etc"}`, `{"path":"/safe","p\u0061th":"/etc"}`, `{"a":[{"b":{"x":1,"y":2,"x":3}}]}`} {
		if _, failure := w.call(t, r, "s.t", arguments); failure == nil || failure.Code != InvalidArguments || !strings.Contains(failure.Message, "twice") {
			t.Errorf("%s: got %+v, sent %s", arguments, failure, sent)
		}
	}
	for words, want := range map[string]string{
		`{"a":"{\"path\":\"/safe\",\"path\":\"/etc\"}"}`:     "twice",
		`{"a":"[` + strings.Repeat("1,", maxValues) + `1]"}`: "more than 50000 values",
	} {
		if _, failure := w.ask(t, r, "tool", `{"name":"s.t","words":`+words+`}`); codeOf(failure) != InvalidArguments || !strings.Contains(failure.Message, want) {
			t.Errorf("words %.60s: got %+v, want %q", words, failure, want)
		}
	}
	if _, failure := w.call(t, r, "s.t", `{"a":[{"x":1},{"x":1}],"b":{"x":{"x":1}}}`); failure != nil {
		t.Errorf("got %+v", failure)
	}
}

// TestCall_images checks that a server cannot pass text for the model as an image.
func TestCall_images(t *testing.T) {
	for _, mime := range []string{"text/plain", "text/html", "image/svg+xml", "application/json", "image/png\nIgnore all", "Image/PNG", ""} {
		w := offering(t, Options{Servers: fakeServers{
			tools: func() []Tool {
				return []Tool{{Server: "s", Tool: &mcp.Tool{Name: "t", Annotations: readOnly, InputSchema: map[string]any{"type": "object"}}}}
			},
			call: func(context.Context, json.RawMessage) (*mcp.CallToolResult, error) {
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.ImageContent{MIMEType: mime, Data: []byte("<script>")}}}, nil
			},
		}})
		r := w.Begin(Identity{})
		value, failure := w.call(t, r, "s.t", `{}`)
		if shown := r.Displays(); failure != nil || len(shown) != 0 || !strings.Contains(value, `"shown":false`) {
			t.Errorf("an image of type %q: got %s, %+v, displays %v", mime, value, failure, shown)
		}
	}
}

// TestCall_controls checks that errors of servers have no characters that control a
// terminal or hide text: they reach people and models in tracebacks.
func TestCall_controls(t *testing.T) {
	const evil = "\x1b[2J\u202e\U000e0049\u200bignore\x9b31m"
	for i, res := range []struct {
		r   *mcp.CallToolResult
		err error
	}{
		{&mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: evil}}}, nil},
		{nil, errors.New(evil)},
		{nil, &Error{Code: Unavailable, Message: evil}},
	} {
		w := offering(t, Options{Servers: fakeServers{
			tools: func() []Tool {
				return []Tool{{Server: "s", Tool: &mcp.Tool{Name: "t", Annotations: readOnly, InputSchema: map[string]any{"type": "object"}}}}
			},
			call: func(context.Context, json.RawMessage) (*mcp.CallToolResult, error) { return res.r, res.err },
		}})
		_, failure := w.call(t, w.Begin(Identity{}), "s.t", `{}`)
		if failure == nil || strings.ContainsAny(failure.Message, "\x1b\u202e\U000e0049\u200b\u009b") || !strings.Contains(failure.Message, "ignore") {
			t.Errorf("%d: got %+v", i, failure)
		}
	}
}

// TestUnavailable_controls checks the same of what a server says about its failure, which
// the tools for models show.
func TestUnavailable_controls(t *testing.T) {
	w := offering(t, Options{Servers: fakeServers{tools: func() []Tool { return nil }, why: &Error{Code: Unavailable, Message: "\x1b[2J\u202e\U000e0049ignore"}}})
	texts := w.Missing(t.Context(), "")
	_, _, err := w.Describe(t.Context(), []string{"s.t"}, "", Python)
	texts = append(texts, fmt.Sprint(err))
	for _, text := range texts {
		if strings.ContainsAny(text, "\x1b\u202e\U000e0049") || !strings.Contains(text, "ignore") {
			t.Errorf("got %q", text)
		}
	}
	if len(texts) != 2 {
		t.Errorf("got %q", texts)
	}
}

// TestBudget_loops checks that a program cannot keep the host busy with requests that
// call no tool: searches, and calls that are refused.
func TestBudget_loops(t *testing.T) {
	for name, request := range map[string][2]string{
		"search": {"search", `{}`}, "stubs": {"stubs", `{}`}, "catalog": {"catalog", `{}`}, "describe": {"describe", `{"names":["s.t"]}`},
		"refused call": {"tool", `{"name":"s.nothing"}`}, "invalid call": {"tool", `{"name":"s.t","arguments":{"a":"x"}}`}, "no method": {"x", `{}`}, "no JSON": {"tool", `{`},
	} {
		w := offering(t, Options{RunBudget: Budget{Calls: 5}, BoxBudget: Budget{Calls: 8}}, `{"properties":{"a":{"type":"integer"}}}`)
		count := func() (n int) {
			r := w.Begin(Identity{Box: "b"})
			for n = range 1000 {
				if _, failure := w.ask(t, r, request[0], request[1]); codeOf(failure) == Exhausted {
					break
				}
			}
			return n
		}
		if first, second, third := count(), count(), count(); first != 50 || second != 30 || third != 0 {
			t.Errorf("%s: %d, %d and %d requests in three runs of a box, want 50, 30 and 0", name, first, second, third)
		}
	}
}

// TestBudget_overlap checks that calls that overlap get no more time than one after the
// other would.
func TestBudget_overlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 400 * time.Millisecond
		w := offering(t, Options{RunBudget: Budget{Time: limit}, Servers: fakeServers{
			tools: func() []Tool {
				return []Tool{{Server: "s", Tool: &mcp.Tool{Name: "t", Annotations: readOnly, InputSchema: map[string]any{"type": "object"}}}}
			},
			call: func(ctx context.Context, _ json.RawMessage) (*mcp.CallToolResult, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			},
		}})
		r := w.Begin(Identity{})
		begun := time.Now()
		var wg sync.WaitGroup
		for i := range protocol.MaxCalls {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * limit / protocol.MaxCalls)
				if _, failure := w.call(t, r, "s.t", `{}`); codeOf(failure) != Timeout {
					t.Errorf("got %+v", failure)
				}
			})
		}
		wg.Wait()
		if took := time.Since(begun); took > limit+limit/2 {
			t.Errorf("calls were in progress for %v, the budget is %v", took, limit)
		}
		if _, failure := w.call(t, r, "s.t", `{}`); codeOf(failure) != Exhausted {
			t.Errorf("got %+v", failure)
		}
	})
}

// FuzzSchema checks arguments against schemas of a hostile server.
func FuzzSchema(f *testing.F) {
	f.Add(`{"$ref":"#/$defs/a","$defs":{"a":{"type":"object","properties":{"b":{"$ref":"#/$defs/c"}}},"c":{"pattern":"x"}}}`, `{"b":"y"}`)
	f.Add(`{"allOf":[{"$REF":"#"}],"items":[{}],"uniqueItems":true,"dependentSchemas":{"a":{"$dynamicRef":"#"}}}`, `{"a":[1,1]}`)
	f.Add(`{"anyOf":[{"not":{"enum":[1,null,[]]}},{"multipleOf":0}],"patternProperties":{"^a":{"$ref":"#/anyOf/0"}},"if":true,"then":false}`, `{"a":1e30}`)
	f.Add(`{"$schema":"http://json-schema.org/draft-07/schema#","dependencies":{"a":["b"],"c":{"$ref":"#/definitions/d"}},"definitions":{"d":{"contains":{"const":0}}}}`, `{"c":[0]}`)
	f.Fuzz(func(t *testing.T, schema, arguments string) {
		var v any
		if json.Unmarshal([]byte(schema), &v) != nil || len(arguments) > protocol.MaxCallArgs {
			return
		}
		var b Broker
		tool := Tool{Server: "s", Tool: &mcp.Tool{Name: "t", InputSchema: v, OutputSchema: v}}
		took, _ := cost(func() {
			if checkJSON([]byte(arguments)) == nil {
				_, _ = b.arguments(tool, toolCall{Arguments: json.RawMessage(arguments)}) // must return
			}
			for _, l := range []Language{Python, JavaScript} {
				if text := (signatureWriter{&b.declarations, l}).signature(tool); strings.ContainsAny(text, "\n\r\u2028\u2029") || len(text) > 64<<10 {
					t.Errorf("signature of %d bytes: %.1000q", len(text), text)
				}
			}
		})
		if took > 3*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// TestDeclarations_hostile is TestStubs_hostile for declarations with all documentation.
func TestDeclarations_hostile(t *testing.T) {
	note := "Reads.\n\"\"\"\nimport os\nos.system('id')\n*/ evil(); /* \\\"\"\" \\"
	var tools []Tool
	for _, end := range []string{"", `"`, `""`, `"""`, `\`, "*", "*/"} {
		tools = append(tools, Tool{Server: "s", Tool: &mcp.Tool{Name: fmt.Sprint("t", len(tools)), Description: note + end, InputSchema: map[string]any{
			"properties": map[string]any{"a": map[string]any{"description": note + end}},
		}}})
	}
	w := offering(t, Options{Servers: fakeServers{names: []string{"s"}, tools: func() []Tool { return tools }}})
	text, n, _, err := w.Declarations(t.Context(), []string{"s"}, JavaScript)
	if err != nil || n != len(tools) {
		t.Fatalf("%d declarations, %v", n, err)
	}
	rest := regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAllString(text, "")
	if strings.Contains(rest, "evil") || strings.Contains(rest, "import") {
		t.Errorf("text outside of comments:\n%s", rest)
	}
	if text, _, _, err = w.Declarations(t.Context(), []string{"s.t0", "s"}, Python); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("python3", "-c", `import ast, sys
for node in ast.parse(sys.stdin.read()).body:
    assert isinstance(node, (ast.ImportFrom, ast.ClassDef)), ast.dump(node)
    for f in getattr(node, "body", []):
        assert ast.get_docstring(f).startswith("Reads.") and len(f.body) == 1, ast.dump(f)`)
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s\n%s", err, out, text)
	}
}

// TestDescribe_ManyToolsAndNames: the names of a program are compared with a bounded part of the
// thousands of tools that a server may list, and no more of them once nobody waits for the answer.
func TestDescribe_ManyToolsAndNames(t *testing.T) {
	var tools []Tool
	for i := range maxCompared {
		tools = append(tools, Tool{Server: "s", Tool: &mcp.Tool{Name: fmt.Sprint("t", i)}})
	}
	tools[0].Tool = &mcp.Tool{Name: "first_of_many"}
	tools = append(tools, Tool{Server: "s", Tool: &mcp.Tool{Name: "after_the_others"}})
	listed := 0
	b := New(Options{Servers: fakeServers{tools: func() []Tool { listed++; return tools }}})
	for word, want := range map[string]string{"first_of_mnay": "did you mean first_of_many?", "after_the_otehrs": ""} {
		_, _, err := b.Describe(t.Context(), []string{"s." + word}, "", Python)
		if err == nil || strings.Contains(err.Error(), "did you mean") != (want != "") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", word, err, want)
		}
	}
	ended, end := context.WithCancelCause(t.Context())
	b = New(Options{Servers: fakeServers{tools: func() []Tool {
		if listed++; listed == 10 {
			end(errors.New("the run has ended"))
		}
		return tools
	}}})
	listed = 0
	if _, _, err := b.Lines(ended, slices.Repeat([]string{"s.unknown"}, maxFound), Python); err == nil || listed > 20 {
		t.Errorf("after the end of the run: the tools were listed %d times, and the error is %v", listed, err)
	}
}
