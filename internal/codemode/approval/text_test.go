package approval

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/codemode"
)

// asked returns the form that asks about calls.
func asked(t *testing.T, calls ...codemode.Request) (q *mcp.ElicitParams) {
	t.Helper()
	test(t, Options{}, func(t *testing.T, w *world) {
		c := Caller{Owner: "o", Key: "k", ByResult: true}
		res, err := w.Serve(t.Context(), c, func(ctx context.Context) (*mcp.CallToolResult, error) {
			var wg sync.WaitGroup
			for _, r := range calls {
				wg.Go(func() { w.Approve(ctx, r) })
			}
			wg.Wait()
			return textResult(""), nil
		})
		if err != nil || res.RequestState == "" {
			t.Fatalf("got %+v, %v", res, err)
		}
		q = res.InputRequests[answerKey(res.RequestState)].(*mcp.ElicitParams)
	})
	return q
}

// titles returns the titles of the calls in a form.
func titles(q *mcp.ElicitParams) (all []string) {
	properties := q.RequestedSchema.(map[string]any)["properties"].(map[string]any)
	for i := range len(properties) {
		all = append(all, properties[field(i)].(map[string]any)["title"].(string))
	}
	return all
}

// withArguments returns a call of a tool that declares some arguments.
func withArguments(t *testing.T, arguments map[string]any, declared ...string) codemode.Request {
	t.Helper()
	b, err := json.Marshal(arguments)
	if err != nil {
		t.Fatal(err)
	}
	if b, err = codemode.Canonical(b); err != nil {
		t.Fatal(err)
	}
	r := request("write", string(b))
	for _, n := range declared {
		if r.Declared == nil {
			r.Declared = make(map[string]bool)
		}
		r.Declared[n] = true
	}
	return r
}

// TestQuestion_declared checks that a program cannot hide the arguments that a tool declares, or
// parts of their values, among others that the server ignores.
func TestQuestion_declared(t *testing.T) {
	const path = "/home/alice/.bashrc"
	content := strings.Repeat("x", 1000) + "HIDDEN" + strings.Repeat("x", 1000)
	for name, filler := range map[string]any{"short values": 1, "long values": strings.Repeat("y", 1000)} {
		t.Run(name, func(t *testing.T) {
			arguments := map[string]any{"path": path, "content": content}
			for i := range maxArguments + 5 {
				arguments[fmt.Sprintf("a%02d", i)] = filler
			}
			got := asked(t, withArguments(t, arguments, "path", "content", "mode")).Message
			before, after, found := strings.Cut(got, "   a00 (not declared by the tool): ")
			if !found || !strings.Contains(before, `   path: "`+path+"\"\n") || !strings.Contains(before, `   content: "`+content+"\"\n") {
				t.Errorf("the question does not show the declared arguments first:\n%s", got)
			}
			if n := strings.Count(after, "(not declared by the tool)"); n != maxArguments-3 {
				t.Errorf("%d arguments are marked after the first one:\n%s", n, got)
			}
			if !strings.Contains(after, "   and 7 more arguments are NOT SHOWN here, none of them declared by the tool\n") {
				t.Errorf("the question does not say what it leaves out:\n%s", got)
			}
		})
	}
	if got := asked(t, withArguments(t, map[string]any{"path": path})).Message; strings.Contains(got, "declared") {
		t.Errorf("the arguments of a tool that declares none are marked:\n%s", got)
	}
}

// TestQuestion_confusable checks that the name of an argument cannot look like another one, and
// that letters that change the order of a line are escaped in names and noted of values.
func TestQuestion_confusable(t *testing.T) {
	got := asked(t, withArguments(t, map[string]any{
		"p\u0430th": "/tmp/a", "path": "/home/alice/.ssh/authorized_keys", "": 1, `a\u0430`: 2, "a\u0430": 3,
		"na\u0301me": 4, "\u05d0": 5, "größe": 6, "数": 7, "p\u0430": 8, "text": "\u05e9\u05dc\u05d5\u05dd (1) /tmp", "marks": "x" + strings.Repeat("\u0301", 500),
	}, "path", "na\u0301me", "\u05d0", "größe", "数", "p\u0430", "text", "marks")).Message
	for _, want := range []string{
		`"p\u0430th" (not declared by the tool): "/tmp/a"`, `path: "/home/alice/.ssh/authorized_keys"`, `"" (not declared by the tool): 1`,
		`"a\\u0430" (not declared by the tool): 2`, `"a\u0430" (not declared by the tool): 3`,
		`"na\u0301me": 4`, `"\u05d0": 5`, `größe: 6`, `数: 7`, `"p\u0430": 8`,
		"text (has right-to-left letters: characters next to them may appear in another order): \"\u05e9\u05dc\u05d5\u05dd (1) /tmp\"",
		`marks: "x … 500 combining marks … "`,
	} {
		if !strings.Contains(got, "\n   "+want+"\n") {
			t.Errorf("the question lacks %q:\n%s", want, got)
		}
	}
}

// TestQuestion_longNames checks that long names that differ anywhere look different, in the text
// and in the form.
func TestQuestion_longNames(t *testing.T) {
	x := func(n int) string { return strings.Repeat("x", n) }
	names := []string{x(150) + "_read", x(150) + "_delete", x(50) + "a" + x(149), x(50) + "b" + x(149), x(81), x(82), x(48) + "…" + x(24)}
	var calls []codemode.Request
	arguments := make(map[string]any)
	for _, n := range names {
		calls = append(calls, request(n, `{}`))
		arguments[n] = 1
	}
	q := asked(t, calls...)
	seen := make(map[string]bool)
	for i, title := range titles(q) {
		_, name, _ := strings.Cut(title, " ")
		if seen[name] || len(title) > 200 || !strings.Contains(q.Message, "\n"+title+" (may change") {
			t.Errorf("title %d is %q, in %q", i, title, q.Message)
		}
		seen[name] = true
	}
	for _, part := range []string{"_read (155 characters, SHA-256 ", "_delete (157 characters, SHA-256 "} {
		if !strings.Contains(q.Message, part) {
			t.Errorf("the question lacks %q:\n%s", part, q.Message)
		}
	}
	lines := regexp.MustCompile(`(?m)^   .*: 1$`).FindAllString(asked(t, withArguments(t, arguments)).Message, -1)
	seen = make(map[string]bool)
	for _, line := range lines {
		seen[line] = true
	}
	if len(seen) != len(names) {
		t.Errorf("%d arguments look like %d: %q", len(names), len(seen), lines)
	}
	if a, b := asked(t, func() codemode.Request { r := request("c", `{}`); r.Server = "a.b"; return r }()), asked(t, func() codemode.Request { r := request("b.c", `{}`); r.Server = "a"; return r }()); titles(a)[0] == titles(b)[0] {
		t.Errorf("tools of two servers have the title %q", titles(a)[0])
	}
}

// markup is what no question may contain: where a Markdown link or image, an HTML tag, an
// automatic link or a character reference begins. Four spaces or a tab at the beginning of a line
// would not help: the lines are parts of a list.
var markup = regexp.MustCompile(`\]\(|!\[|<[^ ]|&#?[0-9A-Za-z]+;|(?m)^ {0,3}\[[^\]]*\]:`)

// TestQuestion_markup checks that nothing from outside is a link, an image or a tag for a client
// that renders the question as Markdown or HTML, and that other text stays as it is.
func TestQuestion_markup(t *testing.T) {
	for _, hostile := range []string{
		`![](https://evil.example/?x)`, `[Allow](https://evil.example)`, `[Allow](<https://evil.example>)`, `[![a](b)](c)`, `<img src=x>`, `</details>`, `<!-- `, `<?x ?>`,
		`<https://evil.example>`, `<a@evil.example>`, `<1@evil.example>`, `&lt;b&gt;`, `&#60;b>`, `&#x3C;b>`, `\](x)`, `\![a]`, `[x]: https://evil.example`, "a\n[x]: https://evil.example\n", `!\[`, `<`, `&CounterClockwiseContourIntegral;`,
	} {
		r := withArguments(t, map[string]any{"a": hostile, hostile: 1, "list": []any{hostile, map[string]any{hostile: hostile}}}, "a")
		r.Server, r.Tool, r.Box, r.Description = hostile, hostile, hostile, hostile+" Then more."
		q := asked(t, r)
		for _, text := range append(titles(q), q.Message) {
			if found := markup.FindString(text); found != "" {
				t.Errorf("%q: got %q in %q", hostile, found, text)
			}
		}
		// The value is the same for one who reads the JSON.
		for _, line := range strings.Split(q.Message, "\n") {
			if value, ok := strings.CutPrefix(line, "   a: "); ok {
				var got string
				if err := json.Unmarshal([]byte(value), &got); err != nil || got != hostile {
					t.Errorf("%q is shown as %s, %v", hostile, value, err)
				}
			}
		}
	}
	const plain = `a < b && c > d; rm *.o *.a && x = m[0][1] (2) snake_case ![ ` + "`date`" + ` https://example.org/?a=1&b=2 R&D @me #1 ~x~ \\ user@example.org`
	if got := asked(t, request("write", `{"a":"`+plain+`"}`)).Message; !strings.Contains(got, `   a: "`+strings.Replace(plain, "![", `!\u005b`, 1)+`"`) {
		t.Errorf("ordinary text is shown as\n%s", got)
	}
}
