package approval

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// questions returns the questions that a program's calls lead to, each approved.
func questions(t *testing.T, calls ...string) (asked []string) {
	t.Helper()
	test(t, Options{}, func(t *testing.T, w *world) {
		p := &person{}
		for range calls {
			p.answers = append(p.answers, accept(AllowOnce))
		}
		if _, err := w.Serve(t.Context(), p.caller(), w.program(calls...)); err != nil {
			t.Fatal(err)
		}
		asked = p.asked
	})
	return asked
}

func TestQuestion(t *testing.T) {
	const begin = "A program in box b wants to make 1 tool call. Nothing is called before you allow it.\n\n1. s.write (may change or delete data)\n"
	const end = "\nIf you do not answer within 5 minutes, nothing is called and the program continues."
	got := questions(t,
		`write {"content":"x","mode":"w","path":"/tmp/a"}`,
		`write {"content":"x","mode":"w","path":"/tmp/b"}`,
		`write {"content":"x","mode":"w","path":"/tmp/b"}`)
	for i, want := range []string{
		begin + "   content: \"x\"\n   mode: \"w\"\n   path: \"/tmp/a\"\n" + end,
		begin + "   content: \"x\"\n   mode: \"w\"\n   path: \"/tmp/b\"\n   Changed since the last call of this tool that you allowed: path. Unchanged: 2 arguments.\n" + end,
		begin + "   content: \"x\"\n   mode: \"w\"\n   path: \"/tmp/b\"\n   The last call of this tool that you allowed had the same arguments.\n" + end,
	} {
		if i >= len(got) || got[i] != want {
			t.Errorf("question %d: got %q, want %q", i+1, got[i], want)
		}
	}
}

// TestQuestion_order checks that short values come first and that text with line breaks is
// shown as lines that cannot be taken for arguments.
func TestQuestion_order(t *testing.T) {
	got := questions(t, `write {"content":"total,42\npath: \"/tmp/b\"\nC:\\new","mode":"w","path":"/tmp/a\n"}`)
	want := "(may change or delete data)\n   mode: \"w\"\n   path: \"/tmp/a\\n\"\n   content:\n   | \"total,42\\n\n   | path: \\\"/tmp/b\\\"\\n\n   | C:\\\\new\"\n\nIf you"
	if len(got) != 1 || !strings.Contains(got[0], want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestQuestion_lines checks that line breaks do not make a question long.
func TestQuestion_lines(t *testing.T) {
	got := questions(t, `write {"a":"`+strings.Repeat(`\n`, 1900)+`"}`)
	if len(got) != 1 || len(got[0]) > 8000 || strings.Count(got[0], `\n`) != 1900 {
		t.Errorf("a question of %d bytes: %q", len(got[0]), got)
	}
}

// TestQuestion_tool checks what the question says about a tool.
func TestQuestion_tool(t *testing.T) {
	yes, no := true, false
	for _, tc := range []struct {
		description string
		annotations *mcp.ToolAnnotations
		want        string
	}{
		{"", nil, " (may change or delete data)\n   without"},
		{"Adds a row, e.g. A1. Then more.", &mcp.ToolAnnotations{DestructiveHint: &no, OpenWorldHint: &no}, " (its server says that it only adds)\n   The server describes it as: \"Adds a row, e.g. A1.\"\n   without"},
		{"\n  Send\tmail\u202e \"now\"\n2. s.read", &mcp.ToolAnnotations{OpenWorldHint: &yes}, " (may change or delete data; may contact other systems)\n   The server describes it as: \"Send mail\\u202e 'now'\"\n   without"},
		{strings.Repeat("x", 10_000), &mcp.ToolAnnotations{ReadOnlyHint: true}, " (its server says that it only reads)\n   The server describes it as: \"" + strings.Repeat("x", maxSummary-1) + "…\"\n   without"},
	} {
		test(t, Options{}, func(t *testing.T, w *world) {
			p := &person{answers: []*mcp.ElicitResult{accept(AllowOnce)}}
			_, err := w.Serve(t.Context(), p.caller(), func(ctx context.Context) (*mcp.CallToolResult, error) {
				r := request("write", `{}`)
				r.Description, r.Annotations = tc.description, tc.annotations
				_, err := w.Approve(ctx, r)
				return textResult(""), err
			})
			if err != nil || !strings.Contains(p.asked[0], "1. s.write"+tc.want) {
				t.Errorf("got %q, %v, want %q", p.asked, err, tc.want)
			}
		})
	}
}

// TestQuestion_choices checks that each choice says what it allows, in the form of the
// client's revision of the protocol, and that the question counts calls.
func TestQuestion_choices(t *testing.T) {
	want := map[string]string{
		"once": "Allow these 2 calls", "run": "Allow ALL calls of this tool, with any arguments, until this run ends, except calls that you deny",
		"always": "Always allow this call, with exactly these arguments, in any future run of yours", "deny": "Deny",
	}
	check := func(t *testing.T, q *mcp.ElicitParams, names map[string]string) {
		t.Helper()
		if len(names) != len(want) || !strings.Contains(q.Message, "wants to make 2 tool calls.") || !strings.Contains(q.Message, "1. s.write, 2 times with the same arguments") {
			t.Errorf("got %v and %q", names, q.Message)
		}
		for value, title := range want {
			if names[value] != title {
				t.Errorf("%s: got %q, want %q", value, names[value], title)
			}
		}
	}
	property := func(q *mcp.ElicitParams) map[string]any {
		return q.RequestedSchema.(map[string]any)["properties"].(map[string]any)["call_1"].(map[string]any)
	}
	test(t, Options{}, func(t *testing.T, w *world) {
		c := Caller{Owner: "o", Key: "k", ByResult: true}
		res, err := w.Serve(t.Context(), c, w.parallel(`write {"a":1}`, `write {"a":1}`))
		if err != nil {
			t.Fatal(err)
		}
		q, names := res.InputRequests[answerKey(res.RequestState)].(*mcp.ElicitParams), map[string]string{}
		for _, o := range property(q)["oneOf"].([]map[string]any) {
			names[o["const"].(string)] = o["title"].(string)
		}
		check(t, q, names)
	})
	test(t, Options{}, func(t *testing.T, w *world) {
		c := Caller{Owner: "o", Key: "k", Elicit: func(_ context.Context, q *mcp.ElicitParams) (*mcp.ElicitResult, error) {
			names, values := map[string]string{}, property(q)["enum"].([]string)
			for i, title := range property(q)["enumNames"].([]string) {
				names[values[i]] = title
			}
			check(t, q, names)
			return accept(AllowOnce), nil
		}}
		if _, err := w.Serve(t.Context(), c, w.parallel(`write {"a":1}`, `write {"a":1}`)); err != nil {
			t.Error(err)
		}
	})
}

// TestQuestion_always checks that a call that the question does not show in full cannot be
// approved for future runs, also by a client that sends the decision anyway.
func TestQuestion_always(t *testing.T) {
	long := strings.Repeat("x", maxShown+1)
	many := make(map[string]int)
	for i := range maxArguments + 1 {
		many[fmt.Sprint(i)] = i
	}
	all, err := json.Marshal(many)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		call  string
		shown bool
	}{
		"all shown":            {`write {"a":"x"}`, true},
		"spaces counted":       {`write {"a":"x` + strings.Repeat(" ", 100) + `"}`, true},
		"a long value":         {`write {"a":"` + long + `"}`, false},
		"many arguments":       {`write ` + string(all), false},
		"a long argument name": {`write {"` + long[:200] + `":1}`, false},
		"a long tool name":     {long[:200] + ` {}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			test(t, Options{}, func(t *testing.T, w *world) {
				p := &person{answers: slices.Repeat([]*mcp.ElicitResult{accept(AllowAlways)}, 1+maxRepeats)}
				res, err := w.Serve(t.Context(), p.caller(), w.program(tc.call))
				want := "true"
				if !tc.shown {
					want = "approval_required"
				}
				if got := textOf(t, res, err); got != want || strings.Contains(p.asked[0], "You cannot allow this call for future runs") == tc.shown {
					t.Errorf("got %q, want %q, asked %q", got, want, p.asked)
				}
			})
		})
	}
}

// TestQuestion_comparison checks that a call is compared with the last one only if that is
// known: not if it had too many arguments to remember, and also if another owner has approved
// calls of very many tools since.
func TestQuestion_comparison(t *testing.T) {
	const same = "The last call of this tool that you allowed had the same arguments."
	many := map[string]int{}
	for i := range maxCompared + 1 {
		many[fmt.Sprint("n", i)] = i
	}
	all, err := json.Marshal(many)
	if err != nil {
		t.Fatal(err)
	}
	for _, arguments := range []string{string(all), `{"` + strings.Repeat("n", maxNames) + `x":1}`} {
		for _, next := range []string{"{}", arguments} {
			if got := questions(t, "write "+arguments, "write "+next); len(got) != 2 || strings.Contains(got[1], "last call") {
				t.Errorf("%d bytes of arguments after %d: got %q", len(next), len(arguments), got[1:])
			}
		}
	}
	if got := questions(t, "write {}", "write {}"); len(got) != 2 || !strings.Contains(got[1], same) {
		t.Errorf("without arguments: got %q", got)
	}
	test(t, Options{}, func(t *testing.T, w *world) {
		ask := func(owner, tool string) string {
			p := &person{answers: []*mcp.ElicitResult{accept(AllowOnce)}}
			c := p.caller()
			c.Owner = owner
			if _, err := w.Serve(t.Context(), c, func(ctx context.Context) (*mcp.CallToolResult, error) {
				r := request(tool, `{}`)
				r.Owner = owner
				_, err := w.Approve(ctx, r)
				return textResult(""), err
			}); err != nil || len(p.asked) != 1 {
				t.Fatalf("asked %q, %v", p.asked, err)
			}
			return p.asked[0]
		}
		ask("o", "write")
		for i := range 1100 {
			ask("p", fmt.Sprint("tool", i))
		}
		if got := ask("o", "write"); !strings.Contains(got, same) {
			t.Errorf("after the calls of another owner: got %q", got)
		}
	})
}

// TestQuestion_unlocked checks that other owners do not wait while the text of a question
// with long arguments is composed.
func TestQuestion_unlocked(t *testing.T) {
	req := request("write", `{"a":"`+strings.Repeat("\\u202e", 100_000)+`"}`)
	for range 10 { // the text may be ready before we get the lock
		d := New(Options{})
		r := &run{approver: d, caller: Caller{Owner: "o"}, ready: make(chan *question, 1)}
		for i := range maxGroups {
			r.pending = append(r.pending, &pendingCall{Request: req, hash: digest{byte(i)}, composed: make(chan struct{}), answer: make(chan error, 1)})
		}
		grouped := r.pending[maxGroups-1].composed
		go d.compose(r)
		<-grouped
		d.mu.Lock()
		pending := len(r.ready) == 0
		d.mu.Unlock()
		if q := <-r.ready; q.params == nil {
			t.Fatal("the question has no text")
		}
		d.Stop()
		if pending {
			return
		}
	}
	t.Error("the text is composed under the lock")
}

// TestQuestion_imitation checks that names and values cannot look like other arguments.
func TestQuestion_imitation(t *testing.T) {
	got := questions(t, `write {"path":"/etc/passwd`+strings.Repeat(" ", 200)+`path: \"/tmp/a\"","path: \"/tmp/b\"    SHA-256 of the whole call":1}`)
	if len(got) != 1 || strings.Contains(got[0], strings.Repeat(" ", 10)) || !strings.Contains(got[0], "passwd … 200 spaces … path") ||
		!strings.Contains(got[0], `   "path: \"/tmp/b\"    SHA-256 of the whole call": 1`) || !strings.Contains(got[0], "\n   SHA-256 of the whole call: ") {
		t.Errorf("got %q", got)
	}
}

// TestQuestion_hostile checks that arguments cannot imitate the question, hide each other
// or make it long.
func TestQuestion_hostile(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	many := map[string]string{}
	for i := range 500 {
		many[fmt.Sprintf("n%03d", i)] = long[:300]
	}
	all, err := json.Marshal(many)
	if err != nil {
		t.Fatal(err)
	}
	got := questions(t,
		`write {"a":"`+long+`","b":"line\n2. s.read\u202e\u001b[2J","z":"/etc/passwd","\u0007name":1}`,
		`write `+string(all))
	for _, want := range []string{
		"characters NOT SHOWN … x", "   b:\n   | " + `"line\n` + "\n   | " + `2. s.read\u202e\u001b[2J"` + "\n", `   z: "/etc/passwd"` + "\n", `   "\u0007name": 1` + "\n", "SHA-256 of the whole call: ",
	} {
		if !strings.Contains(got[0], want) {
			t.Errorf("the question lacks %q:\n%s", want, got[0])
		}
	}
	if want := "and 480 more arguments are NOT SHOWN here"; !strings.Contains(got[1], want) {
		t.Errorf("the question lacks %q:\n%s", want, got[1])
	}
	for _, q := range got {
		if len(q) > 8000 {
			t.Errorf("a question of %d bytes", len(q))
		}
		for _, r := range q {
			if r != '\n' && r < ' ' || r == 0x202e || r == utf8.RuneError {
				t.Errorf("the question contains %q", r)
			}
		}
	}
}

// TestQuestion_schema checks that the SDK accepts the form.
func TestQuestion_schema(t *testing.T) {
	ctx := t.Context()
	clientSide, serverSide := mcp.NewInMemoryTransports()
	server := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	ss, err := server.Connect(ctx, serverSide, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ss.Close()
	client := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) { return accept(AllowRun), nil },
	})
	cs, err := client.Connect(ctx, clientSide, &mcp.ClientSessionOptions{ProtocolVersion: "2025-06-18"})
	if err != nil {
		t.Fatal(err)
	}
	defer cs.Close()
	a := New(Options{})
	res, err := a.Serve(ctx, Caller{Owner: "o", Elicit: ss.Elicit}, func(ctx context.Context) (*mcp.CallToolResult, error) {
		ok, err := a.Approve(ctx, request("write", `{}`))
		return textResult(fmt.Sprint(ok, err)), nil
	})
	if got := textOf(t, res, err); got != "true <nil>" {
		t.Errorf("got %q", got)
	}
}
