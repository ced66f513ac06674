package codemode

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/polltest"
	"github.com/glovebox-dev/glovebox/mcpkit"
)

func TestCall_results(t *testing.T) {
	w := newWorld(t, mcpkit.Trusted, Options{}, "my-server", "files.v2")
	r := w.Begin(Identity{Owner: "alice", Box: "ctx-1"})
	for _, tc := range []struct{ name, arguments, want string }{
		{"my-server.add", `{"a":2,"b":3}`, `{"sum":5}`},
		{"my_server.add", `{"a":2,"b":3}`, `{"sum":5}`},
		{"files.v2.add", `{"a":1}`, `{"sum":1}`},
		{"files_v2.add", `{"a":1}`, `{"sum":1}`},
		{"my-server.json-text", `{}`, `{"id":12345678901234567890,"x":[1,2]}`},
		{"my_server.json_text", `null`, `{"id":12345678901234567890,"x":[1,2]}`},
		{"my_server.version", `{}`, `"1.10"`},
		{"my_server.two", `{}`, `["one",{"two":2}]`},
		{"my_server.nothing", `{}`, ``},
		{"my_server.picture", `{}`, `{"bytes":8,"mime_type":"image/png","type":"image"}`},
		{"my_server.t_class__", `{}`, `"dunder"`},
	} {
		if got, failure := w.call(t, r, tc.name, tc.arguments); failure != nil || got != tc.want {
			t.Errorf("%s(%s): got %s, %+v, want %s", tc.name, tc.arguments, got, failure, tc.want)
		}
	}
	if shown := r.Displays(); len(shown) != 1 || shown[0].Data["image/png"] != base64.StdEncoding.EncodeToString(png) {
		t.Errorf("got images %+v", shown)
	}
	value, failure := w.ask(t, r, "tool", `{"name":"my_server.add","words":{"a":"4","b":"5","note":"7","many":"[\"x\"]"}}`)
	if failure != nil || value != `{"sum":9}` {
		t.Errorf("words: got %s, %+v", value, failure)
	}
	line := strings.Split(w.log.String(), "\n")[0]
	for _, part := range []string{"who=alice", "box=ctx-1", "server=my-server", "tool=add", "outcome=ok", "duration_ms="} {
		if !strings.Contains(line, part) {
			t.Errorf("log line %q lacks %s", line, part)
		}
	}
	if strings.Contains(w.log.String(), "sum") || strings.Contains(w.log.String(), "12345678901234567890") {
		t.Errorf("the log has contents: %s", w.log)
	}
}

// TestCall_badInput checks the errors that a program gets for calls that cannot be made.
func TestCall_badInput(t *testing.T) {
	w := newWorld(t, mcpkit.Trusted, Options{Policy: Policy{{Server: "other", Decision: Deny}}}, "files", "other", "a-b", "a_b", "gone")
	r := w.Begin(Identity{})
	for _, tc := range []struct {
		name, arguments string
		code            Code
		message         []string
	}{
		{"fles.add", `{}`, UnknownServer, []string{`no server "fles"`, `did you mean files?`, "files, other, a-b, a_b, gone"}},
		{"files.ad", `{}`, UnknownTool, []string{`there is no tool "ad" in tools.files; did you mean add? List: tools.describe("files")`}},
		{"files", `{}`, UnknownTool, []string{"tools.files is a server: call one of its tools", `tools.describe("files")`}},
		{"fils", `{}`, InvalidArguments, []string{`the name "fils" is not SERVER.TOOL`}},
		{"a-b.__class__.__init__", `{}`, UnknownTool, []string{"no tool"}},
		{"files.add", `{"b":1}`, InvalidArguments, []string{"invalid arguments: missing a: expected an integer"}},
		{"files.add", `{"a":"x"}`, InvalidArguments, []string{`invalid arguments: a: expected an integer, got "x"`}},
		{"files.add", `{"a":1,"many":["x",2]}`, InvalidArguments, []string{"invalid arguments: many[1]: expected a string, got 2"}},
		{"files.add", `{"note":"x","aa":1}`, InvalidArguments, []string{`no argument "aa"`}},
		{"files.add", `{"a":1,"b":null}`, InvalidArguments, []string{`leave out "b" instead of passing None or null`}},
		{"files.add", `{"a":1,"nte":"x"}`, InvalidArguments, []string{`no argument "nte"; did you mean note?`}},
		{"files.add", `{"aa":1,"note":"x","b":1}`, InvalidArguments, []string{`no argument "aa"`}},
		{"files.add", `[1]`, InvalidArguments, []string{"not an object"}},
		{"files.fail", `{}`, ToolFailed, []string{"the disk is full"}},
		{"files.write", `{}`, ApprovalRequired, []string{"nobody can approve", "--tool-rules 'allow files write'"}},
		{"other.add", `{"a":1}`, Denied, []string{"a rule of Glovebox denies add to code", "Do not retry"}},
		{"gone.add", `{}`, Unavailable, []string{`The server "gone" is not available`, "/nonexistent/server"}},
		{"files.die", `{}`, Interrupted, []string{"files", "the tool may have run"}},
		{"files.values", `{"n":500000}`, TooLarge, []string{"more than 500000", "ask for less"}},
		{"files.large", `{"n":17000000}`, TooLarge, []string{"larger than 16 MiB and lost", "the tool ran", "ask for less"}},
		{"files.large", `{"n":16777200}`, TooLarge, []string{"the tool ran"}},
		{"files.add", `{"a":1}`, "", nil}, // the server that died is back
		{"tools.files.add", `{"a":1}`, "", nil},
		{"tools.fles.add", `{}`, UnknownServer, []string{`no server "tools"`}},
	} {
		value, failure := w.call(t, r, tc.name, tc.arguments)
		if tc.code == "" {
			if failure != nil {
				t.Errorf("%s(%s): got %+v", tc.name, tc.arguments, failure)
			}
			continue
		}
		if failure == nil || failure.Code != tc.code {
			t.Errorf("%s(%s): got %.100s, %+v, want code %s", tc.name, tc.arguments, value, failure, tc.code)
			continue
		}
		for _, part := range tc.message {
			if !strings.Contains(failure.Message, part) {
				t.Errorf("%s(%s): message %q lacks %q", tc.name, tc.arguments, failure.Message, part)
			}
		}
		if (tc.code == InvalidArguments && tc.name != "fils" || tc.code == ToolFailed) && !strings.HasPrefix(failure.Signature, "tools.files.") {
			t.Errorf("%s(%s): signature %q", tc.name, tc.arguments, failure.Signature)
		}
	}
	for args, want := range map[string]string{
		`{"name":"files.add","arguments":{"a":1`:     "parse call",
		"{\"name\":\"\xff\"}":                        "not UTF-8",
		`[` + strings.Repeat("1,", maxValues) + `1]`: "more than",
		`{"server":"a b","tool":"x"}`:                `no server "a b"`,
		`{"server":"__proto__","tool":"x"}`:          `no server "__proto__"`,
		`{"name":"files.add","words":{"a":"x"}}`:     `a: expected an integer, got "x"`,
	} {
		if _, failure := w.ask(t, r, "tool", args); failure == nil || !strings.Contains(failure.Message, want) {
			t.Errorf("%.60s: got %+v, want %q", args, failure, want)
		}
	}
	if _, failure := w.ask(t, r, "exec", `{}`); failure == nil || failure.Code != InvalidArguments {
		t.Errorf("unknown method: got %+v", failure)
	}
}

func TestCall_slow(t *testing.T) {
	w := newWorldWith(t, mcpkit.Trusted, 3*time.Second, Options{}, "files")
	_, failure := w.call(t, w.Begin(Identity{}), "files.slow", `{}`)
	if failure == nil || failure.Code != Timeout || !strings.Contains(failure.Message, "3s") || !strings.HasSuffix(failure.Message, "whether the tool ran is unknown") {
		t.Errorf("got %+v", failure)
	}
}

// TestCall_ambiguous checks that servers whose names look alike in a program are not
// taken for each other.
func TestCall_ambiguous(t *testing.T) {
	w := newWorld(t, mcpkit.Trusted, Options{}, "a-b", "a.b")
	r := w.Begin(Identity{})
	if _, failure := w.call(t, r, "a_b.add", `{"a":1}`); failure == nil || failure.Code != UnknownServer || !strings.Contains(failure.Message, `tools["a-b"]`) {
		t.Errorf("got %+v", failure)
	}
	if value, failure := w.call(t, r, "a-b.add", `{"a":1}`); failure != nil || value != `{"sum":1}` {
		t.Errorf("got %s, %+v", value, failure)
	}
}

func TestCall_untrusted(t *testing.T) {
	w := newWorld(t, mcpkit.Untrusted, Options{}, "files")
	if _, failure := w.call(t, w.Begin(Identity{}), "files.add", `{"a":1}`); failure == nil || failure.Code != Untrusted || !strings.Contains(failure.Message, "glovebox mcp trust files") {
		t.Errorf("got %+v", failure)
	}
}

func TestCall_noServers(t *testing.T) {
	w := newWorld(t, mcpkit.Trusted, Options{})
	if _, failure := w.call(t, w.Begin(Identity{}), "files.add", `{}`); failure == nil || !strings.Contains(failure.Message, "mcp.json") {
		t.Errorf("got %+v", failure)
	}
}

// TestCall_approval checks that the tools that ask are called after approval only, and
// that the person sees the arguments that are sent.
func TestCall_approval(t *testing.T) {
	answers := make(chan bool, 2)
	var asked []Request
	w := newWorld(t, mcpkit.Trusted, Options{Approve: func(_ context.Context, r Request) (bool, error) {
		asked = append(asked, r)
		return <-answers, nil
	}}, "files")
	r := w.Begin(Identity{Owner: "o", Box: "b"})
	answers <- false
	if _, failure := w.call(t, r, "files.write", `{"x" : 1 , "\u0062": "\u0061"}`); failure == nil || failure.Code != Denied || !strings.Contains(failure.Message, "Do not repeat it") {
		t.Errorf("got %+v", failure)
	}
	answers <- true
	if value, failure := w.call(t, r, "files.write", `{"x":1}`); failure != nil || value != `"written"` {
		t.Errorf("got %s, %+v", value, failure)
	}
	if len(asked) != 2 || asked[0].Server != "files" || asked[0].Tool != "write" || string(asked[0].Arguments) != `{"b":"a","x":1}` || asked[0].Box != "b" {
		t.Errorf("asked %+v", asked)
	}
}

// TestCall_deniedMeanwhile checks that a rule that denies a tool also holds for a call that
// waited for approval when the rule was added.
func TestCall_deniedMeanwhile(t *testing.T) {
	var w *world
	w = newWorld(t, mcpkit.Trusted, Options{Approve: func(context.Context, Request) (bool, error) {
		w.SetPolicy(Policy{{Server: "files", Tool: "write", Decision: Deny}})
		return true, nil
	}}, "files")
	if value, failure := w.call(t, w.Begin(Identity{}), "files.write", `{}`); codeOf(failure) != Denied || !strings.Contains(failure.Message, "a rule of Glovebox denies") {
		t.Errorf("got %s, %+v", value, failure)
	}
}

// TestCall_version checks that an approval is for the definitions of the server and the tool: another
// server of the same name has another version, and so has the tool with another description.
func TestCall_version(t *testing.T) {
	var versions []string
	approve := func(_ context.Context, r Request) (bool, error) {
		versions = append(versions, r.Version)
		return true, nil
	}
	for range 2 { // in another directory
		w := newWorld(t, mcpkit.Trusted, Options{Approve: approve}, "files")
		for i := range 3 {
			if i == 2 {
				w.relearn(t, "write")
			}
			if _, failure := w.call(t, w.Begin(Identity{}), "files.write", `{}`); failure != nil {
				t.Errorf("got %+v", failure)
			}
		}
	}
	if len(versions) != 6 || versions[0] != versions[1] || versions[3] != versions[4] || versions[0] == versions[3] || versions[1] == versions[2] || versions[4] == versions[5] {
		t.Errorf("versions %q", versions)
	}
}

// TestCall_changedMeanwhile checks that an approved call is not made if the tool, or the definition
// of its server, has changed while the person decided.
func TestCall_changedMeanwhile(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, w *world){
		"another server": func(t *testing.T, w *world) { // as after a reload of mcp.json
			w.o.Servers = newWorld(t, mcpkit.Trusted, Options{}, "files").o.Servers
		},
		"another description": func(t *testing.T, w *world) { w.relearn(t, "write") },
		"no such tool":        func(t *testing.T, w *world) { w.relearn(t, "") },
	} {
		t.Run(name, func(t *testing.T) {
			var w *world
			w = newWorld(t, mcpkit.Trusted, Options{Approve: func(context.Context, Request) (bool, error) {
				change(t, w)
				return true, nil
			}}, "files")
			if value, failure := w.call(t, w.Begin(Identity{}), "files.write", `{}`); codeOf(failure) != Changed || !strings.Contains(failure.Message, "was not called") {
				t.Errorf("got %s, %+v", value, failure)
			}
			if n, failure := w.call(t, w.Begin(Identity{}), "files.writes", `{}`); failure != nil || n != `"0"` {
				t.Errorf("the tool was called %s times, %+v", n, failure)
			}
		})
	}
}

// relearn has the server of files replace its tool write by one of that name with another
// description, or by none for "", and waits until that is known here.
func (w *world) relearn(t *testing.T, as string) {
	t.Helper()
	if _, failure := w.call(t, w.Begin(Identity{}), "files.relearn", `{"as":"`+as+`"}`); failure != nil {
		t.Fatalf("got %+v", failure)
	}
	polltest.Until(t, 20*time.Second, "the tool changes", func() bool {
		i := slices.IndexFunc(w.tools(t.Context(), "files"), func(t Tool) bool { return t.Name == "write" && t.Description != relearned })
		return i < 0
	})
}

// TestBudgets races parallel calls for the budgets of the run and the box.
func TestBudgets(t *testing.T) {
	w := newWorld(t, mcpkit.Trusted, Options{RunBudget: Budget{Calls: 20}, BoxBudget: Budget{Calls: 30}}, "files")
	me := Identity{Box: "mine"}
	race := func(r *Run) (ok, exhausted int) {
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				_, failure := w.call(t, r, "files.add", `{"a":1}`)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case failure == nil:
					ok++
				case failure.Code == Exhausted:
					exhausted++
				default:
					t.Errorf("got %+v", failure)
				}
			})
		}
		wg.Wait()
		return ok, exhausted
	}
	for i, want := range []int{20, 10, 0} {
		if ok, exhausted := race(w.Begin(me)); ok != want || exhausted != 50-want {
			t.Errorf("run %d: %d calls, %d refused, want %d", i, ok, exhausted, want)
		}
	}
	if ok, _ := race(w.Begin(Identity{Box: "another"})); ok != 20 {
		t.Errorf("another box: %d calls", ok)
	}
	_, failure := w.call(t, w.Begin(me), "files.add", `{"a":1}`)
	if failure == nil || !strings.Contains(failure.Message, "the box has used up its budget of 30 calls: try again within 1h") {
		t.Errorf("got %+v", failure)
	}
}

func TestBudget_bytesAndTime(t *testing.T) {
	w := newWorld(t, mcpkit.Trusted, Options{RunBudget: Budget{Bytes: 100_000, Time: 300 * time.Millisecond}}, "files")
	r := w.Begin(Identity{})
	if _, failure := w.call(t, r, "files.large", `{"n":60000}`); failure != nil {
		t.Errorf("got %+v", failure)
	}
	if value, failure := w.call(t, r, "files.large", `{"n":60000}`); failure == nil || failure.Code != TooLarge || value != "" {
		t.Errorf("got %d bytes, %+v", len(value), failure)
	}
	r = w.Begin(Identity{})
	begun := time.Now()
	if _, failure := w.call(t, r, "files.slow", `{}`); failure == nil || failure.Code != Timeout || time.Since(begun) > 3*time.Second {
		t.Errorf("after %v got %+v", time.Since(begun), failure)
	}
	if _, failure := w.call(t, r, "files.add", `{"a":1}`); failure == nil || failure.Code != Exhausted {
		t.Errorf("got %+v", failure)
	}
}

func TestPolicy(t *testing.T) {
	for _, p := range []Policy{{{Server: "["}}, {{Decision: "maybe"}}, {{}}} {
		if p.Check() == nil {
			t.Errorf("%+v is valid", p)
		}
	}
	w := newWorld(t, mcpkit.Trusted, Options{Policy: Policy{
		{Server: "files", Tool: "w*", Decision: Allow}, {Server: "files", Tool: "version", Decision: Deny}, {Server: "files", Tool: "add", Decision: Ask},
	}}, "files")
	r := w.Begin(Identity{})
	for name, want := range map[string]Code{"write": "", "version": Denied, "add": ApprovalRequired, "two": ""} {
		_, failure := w.call(t, r, "files."+name, `{"a":1}`)
		if got := codeOf(failure); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func codeOf(e *Error) Code {
	if e == nil {
		return ""
	}
	return e.Code
}

func TestDiscovery(t *testing.T) {
	w := newWorld(t, mcpkit.Trusted, Options{}, "my-server")
	r := w.Begin(Identity{})
	value, failure := w.ask(t, r, "search", `{"query":"adds numbers: add"}`)
	const sig = "tools.my_server.add(*, a: int, b: int = 1, many: list[str] = ..., note: str = ...) -> Any"
	var found []Entry
	if failure != nil || json.Unmarshal([]byte(value), &found) != nil || len(found) == 0 || found[0].Line != sig+"  # Does add." {
		t.Errorf("search: got %s, %+v", value, failure)
	}
	value, failure = w.ask(t, r, "describe", `{"names":["my_server.add"],"language":"javascript"}`)
	if failure != nil || !strings.Contains(value, `await tools.my_server.add({a: number, b?: number, many?: string[], note?: string}): any`) || !strings.Contains(value, "a: first number") {
		t.Errorf("describe: got %s, %+v", value, failure)
	}
	if _, failure = w.ask(t, r, "describe", `{"names":["my_server.addd"]}`); failure == nil || !strings.Contains(failure.Message, `did you mean add?`) {
		t.Errorf("describe: got %+v", failure)
	}
	for language, want := range map[string]string{
		"python":     "    def add(*, a: int, b: int = 1, many: list[str] = ..., note: str = ...) -> Any: ...  # Does add.\n",
		"javascript": "    add(args: {a: number, b?: number, many?: string[], note?: string}): Promise<any>; // Does add.\n",
	} {
		value, failure = w.ask(t, r, "stubs", fmt.Sprintf(`{"language":%q}`, language))
		var text string
		if failure != nil || json.Unmarshal([]byte(value), &text) != nil || !strings.Contains(text, want) {
			t.Errorf("stubs for %s: got %s, %+v", language, text, failure)
		}
	}
	value, _ = w.ask(t, r, "catalog", `{}`)
	if !strings.Contains(value, `"server_identifier":"my_server","identifier":"json_text"`) {
		t.Errorf("catalog: got %s", value)
	}
}

// FuzzCall feeds the broker calls of a box.
func FuzzCall(f *testing.F) {
	w := &world{Broker: New(Options{Servers: noServers{}})}
	f.Add("tool", []byte(`{"name":"s.t","arguments":{"a":1},"words":{"a":"1"}}`))
	f.Add("search", []byte(`{"query":"x","limit":3}`))
	f.Add("describe", []byte(`{"names":["s.t"]}`))
	f.Add("tool", []byte(`{"server":"a","tool":"b","arguments":[[[[`))
	f.Fuzz(func(t *testing.T, method string, args []byte) {
		b, err := w.Begin(Identity{}).Call(t.Context(), method, args)
		if err != nil || !json.Valid(b) || len(b) > protocol.MaxCallResult {
			t.Errorf("got %d bytes, %v", len(b), err)
		}
	})
}

// TestCanonical checks that equal arguments have one form, so that the arguments that a
// person approves are those that the server gets.
func TestCanonical(t *testing.T) {
	for in, want := range map[string]string{
		`{"b": 1.50, "a":"\u0041<\/"}`:           `{"a":"A</","b":1.50}`,
		`{"path":"/tmp/a","path":"/etc/shadow"}`: `{"path":"/etc/shadow"}`,
		`{"n":12345678901234567890123}`:          `{"n":12345678901234567890123}`,
	} {
		if got, err := Canonical(json.RawMessage(in)); err != nil || string(got) != want {
			t.Errorf("%s: got %s, %v, want %s", in, got, err, want)
		}
	}
	for _, in := range []string{``, `{`, `{} {}`} {
		if got, err := Canonical(json.RawMessage(in)); err == nil {
			t.Errorf("%q: got %s", in, got)
		}
	}
}
