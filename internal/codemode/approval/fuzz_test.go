package approval

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/codemode"
)

// FuzzAnswer decodes the answers of clients: one decision for each call, or none, and nothing
// approved unless the person accepted.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"approval-S":{"action":"accept","content":{"call_1":"once","call_2":"deny"}}}`), 2)
	f.Add([]byte(`{"approval-S":{"action":"decline"}}`), 1)
	f.Add([]byte(`{"approval-S":{"action":"accept","content":{"call_1":["always"]}}}`), 1)
	f.Add([]byte(`{"approval-S":{"roots":[]},"x":{}}`), 8)
	f.Add([]byte(`{"approval-S":null}`), 1)
	f.Fuzz(func(t *testing.T, data []byte, n int) {
		if n < 1 || n > maxGroups {
			return
		}
		var m mcp.InputResponseMap
		if json.Unmarshal(data, &m) != nil {
			return
		}
		choices := make([][]Decision, n)
		for i := range choices {
			choices[i] = []Decision{AllowOnce, AllowRun, AllowAlways, Deny}
			if i%2 == 1 {
				choices[i] = []Decision{AllowOnce, AllowRun, Deny}
			}
		}
		all, missing := parseResponses(m, "S", choices)
		if len(all) != n {
			t.Fatalf("got %d decisions, want %d", len(all), n)
		}
		if missing != "" && !slices.Contains(all, dismissed) {
			t.Errorf("got %q, although the answer %s", all, missing)
		}
		res, _ := m[answerKey("S")].(*mcp.ElicitResult)
		for i, d := range all {
			if d == dismissed {
				continue
			}
			text, _ := res.Content[field(i)].(string)
			if d != Deny && (res.Action != "accept" || text != string(d)) || !slices.Contains(choices[i], d) {
				t.Errorf("decision %q from %s", d, data)
			}
		}
	})
}

// FuzzState continues runs with states that no question has.
func FuzzState(f *testing.F) {
	f.Add(newToken())
	f.Add("")
	f.Add("../../x")
	a := New(Options{})
	f.Fuzz(func(t *testing.T, state string) {
		if _, _, err := a.resume(Caller{State: state}); err == nil {
			t.Errorf("state %q continues a run", state)
		}
		if validToken(state) && len(state) != tokenSize {
			t.Errorf("state %q is valid", state)
		}
	})
}

// FuzzQuestion composes questions of arguments and names from outside, which must bring no markup,
// begin no line and have bounded text.
func FuzzQuestion(f *testing.F) {
	f.Add([]byte(`{"a":"![](x)","p":"<b>\n2. s.read"}`), "t", "d")
	f.Add([]byte(`{"a":{"b":["](x)","&lt;"]}}`), "a\\", "x. Y")
	f.Fuzz(func(t *testing.T, arguments []byte, tool, description string) {
		canonical, err := codemode.Canonical(arguments)
		if err != nil || len(canonical) > 10_000 {
			return
		}
		r := request(tool, string(canonical))
		r.Description, r.Declared = description, map[string]bool{"a": true}
		run := &run{caller: Caller{Owner: "o"}}
		q := &question{run: run, groups: [][]*pendingCall{{{Request: r}}}}
		New(Options{}).render(q, background{last: make([]map[string]digest, 1)})
		if found := markup.FindString(q.params.Message); found != "" || len(q.params.Message) > 64<<10 {
			t.Errorf("%d bytes with %q", len(q.params.Message), found)
		}
		for i, line := range strings.Split(q.params.Message, "\n") {
			if line != "" && i != 0 && !strings.HasPrefix(line, "1. s.") && !strings.HasPrefix(line, "   ") && !strings.HasPrefix(line, "If you do not answer") {
				t.Errorf("line %d is %q", i, line)
			}
		}
	})
}
