package codemode

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/gateway"
	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// catalogued offers tools of several servers.
type catalogued struct {
	noServers
	names []string
	all   []Tool
}

func (c catalogued) Names() []string { return c.names }

func (c catalogued) Tools(_ context.Context, server string) (all []Tool) {
	for _, t := range c.all {
		if server == "" || server == t.Server {
			all = append(all, t)
		}
	}
	return all
}

func tool(server, name, description, schema string) Tool {
	return Tool{Server: server, Tool: &mcp.Tool{Name: name, Description: description, Annotations: readOnly, InputSchema: json.RawMessage(schema)}}
}

// TestDescribe_complete: the documentation has what a caller must know, or says that it
// has not.
func TestDescribe_complete(t *testing.T) {
	const flat = `{"type":"object","properties":{"q":{"type":"string","description":"Text, e.g. two words. Quotes are kept.","maxLength":10,"pattern":"^a"},"n":{"type":"integer","minimum":1,"maximum":5},"m":{"type":"integer","description":"Any.","minimum":-9007199254740991,"maximum":9007199254740991}}}`
	const nested = `{"type":"object","properties":{"o":{"type":"object","properties":{"when":{"type":"string","description":"RFC 3339"}}}}}`
	write := tool("s", "write", "Writes, e.g. a file. Then flushes it.", flat)
	write.Annotations = nil
	b := New(Options{Servers: catalogued{names: []string{"s"}, all: []Tool{write, tool("s", "deep", "Looks.", nested)}}})
	for _, l := range []Language{Python, JavaScript, Shell} {
		described, _, err := b.Describe(t.Context(), []string{"s.write", "s.deep"}, "", l)
		if err != nil {
			t.Fatal(err)
		}
		declared, _, _, err := b.Declarations(t.Context(), []string{"s.write"}, l)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{described[0].Text, declared} {
			for _, part := range []string{"Text, e.g. two words. Quotes are kept. (maximum length 10, pattern ", "n: (minimum 1, maximum 5)", "m: Any.\n", "[needs approval]"} {
				if !strings.Contains(text, part) {
					t.Errorf("language %d: %q is not in %s", l, part, text)
				}
			}
			if strings.Contains(text, "shortened") {
				t.Errorf("language %d: complete, but says it is shortened: %s", l, text)
			}
		}
		if text := described[1].Text; !strings.Contains(text, map[Language]string{Python: `(shortened: see detail "schema")`, JavaScript: `(shortened: see detail "schema")`, Shell: "(shortened: see --schema)"}[l]) || strings.Contains(text, "[needs approval]") {
			t.Errorf("language %d: %s", l, text)
		}
		if line := b.line(write, l).Line; !strings.Contains(line, "Writes, e.g. a file. [needs approval]") {
			t.Errorf("language %d: %s", l, line)
		}
	}
	if stubs := b.Stubs(t.Context(), Shell); !strings.Contains(stubs, "Writes, e.g. a file. [needs approval]") {
		t.Errorf("stubs: %s", stubs)
	}
	described, _, err := b.Describe(t.Context(), []string{"s.deep"}, DetailSchema, Python)
	if err != nil || !strings.Contains(described[0].Text, nested) {
		t.Errorf("schema: %+v, %v", described, err)
	}
}

// TestDescribe_bounded: the documentation of a large server does not fill the context of
// a model, and the best matches come first.
func TestDescribe_bounded(t *testing.T) {
	all := []Tool{tool("b", "best", "Is best.", `{}`)}
	for i := range 60 {
		all = append(all, tool("a", fmt.Sprintf("t%d", i), strings.Repeat("word ", 400), `{}`))
	}
	all = append(all, tool("b", "last", "Is last.", `{}`))
	b := New(Options{Servers: catalogued{names: []string{"a", "b"}, all: all}})
	names := make([]string, len(all))
	for i, t := range all {
		names[i] = t.Server + "." + t.Name
	}
	for _, l := range []Language{Python, JavaScript} {
		text, n, _, err := b.Declarations(t.Context(), names, l)
		if err != nil || n != len(all) || len(text) > maxDocumented+1000 {
			t.Fatalf("language %d: %d bytes of %d tools, %v", l, len(text), n, err)
		}
		shown := strings.Count(text, "word word\n") + strings.Count(text, "word word */") + strings.Count(text, `word word"""`)
		if more := fmt.Sprintf("%d more tools did not fit", len(all)-1-shown); !strings.Contains(text, "Is best.") || strings.Contains(text, "Is last.") || !strings.Contains(text, more) {
			t.Errorf("language %d: %d tools shown in %.200s ... %s", l, shown, text, text[len(text)-100:])
		}
	}
	for _, detail := range []string{"", DetailSchema} {
		described, _, err := b.Describe(t.Context(), []string{"a"}, detail, Python)
		if err != nil || len(described) == 0 {
			t.Fatal(err)
		}
		last := described[len(described)-1]
		if cut := strings.Contains(last.Text, "more tools did not fit"); cut != (detail == "") || cut != (last.Name == "") {
			t.Errorf("detail %q: the last of %d entries is %.100q", detail, len(described), last.Text)
		}
	}
}

// TestSearch_words: words that say nothing do not decide what matches.
func TestSearch_words(t *testing.T) {
	b := New(Options{Servers: catalogued{names: []string{"s"}, all: []Tool{
		tool("s", "list_issues", "Lists the issues of a repository.", `{}`),
		tool("s", "send_mail", "Sends a mail as it is.", `{}`),
		tool("s", "get_address", "Finds an address.", `{}`),
	}}})
	for query, want := range map[string]string{
		"how do I list a user's issues?": "[s.list_issues]",
		"issue":                          "[s.list_issues]",
		"mails to a person":              "[s.send_mail]",
		"the address":                    "[s.get_address]",
		"zebra s":                        "[]",
	} {
		found, _ := b.Search(t.Context(), query, 0, Python)
		if got := fmt.Sprint(NamesOf(found)); got != want {
			t.Errorf("%q: got %s, want %s", query, got, want)
		}
	}
}

// TestDenied_marked: a model sees which tools a rule denies, in every form, and finds them after
// the others.
func TestDenied_marked(t *testing.T) {
	b := New(Options{Policy: Policy{{Server: "s", Tool: "delete_*", Decision: Deny}}, Servers: catalogued{names: []string{"s"}, all: []Tool{
		tool("s", "delete_page", "Deletes a page.", `{}`), tool("s", "get_page", "Gets a page.", `{}`),
	}}})
	found, n := b.Search(t.Context(), "page", 0, Python)
	if n != 2 || len(found) != 2 || found[0].Name != "s.get_page" || strings.Contains(found[0].Line, "denied") || !strings.HasSuffix(found[1].Line, deniedMark) {
		t.Errorf("search: got %+v of %d", found, n)
	}
	for _, detail := range []string{"", DetailSchema} {
		for _, names := range [][]string{{"s"}, {"s.delete_page"}} {
			described, _, err := b.Describe(t.Context(), names, detail, JavaScript)
			if err != nil || !strings.Contains(described[0].Text, deniedMark) || len(described) > 1 && strings.Contains(described[1].Text, deniedMark) {
				t.Errorf("describe %q, detail %q: got %+v, %v", names, detail, described, err)
			}
		}
	}
	lines, _, err := b.Lines(t.Context(), []string{"s.delete_page"}, Python)
	if err != nil || !strings.HasSuffix(lines[0].Line, deniedMark) {
		t.Errorf("lines: got %+v, %v", lines, err)
	}
	for _, l := range []Language{Python, JavaScript} {
		if text, _, _, err := b.Declarations(t.Context(), []string{"s"}, l); err != nil || strings.Count(text, deniedMark) != 1 {
			t.Errorf("declarations: got %s, %v", text, err)
		}
	}
}

// TestSuggestions: a program can write the names that an error suggests.
func TestSuggestions(t *testing.T) {
	b := New(Options{Servers: catalogued{names: []string{"my-server", "a-b", "a_b"}, all: []Tool{tool("my-server", "get-page", "", `{}`)}}})
	for name, want := range map[string]string{
		"my_server.get_pag": `there is no tool "get_pag" in tools.my_server; did you mean get_page? List: tools.describe("my_server")`,
		"my_serve.x":        `there is no server "my_serve"; did you mean my_server?; the servers are my_server, a-b, a_b`,
	} {
		if _, err := b.resolve(t.Context(), toolCall{Name: name}); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", name, err, want)
		}
	}
	if _, _, err := b.selected(t.Context(), []string{"a-b"}); err != nil {
		t.Error(err)
	}
}

// TestSignature_ambiguous: the signature of a tool calls this tool, although another server
// or tool has the same identifier.
func TestSignature_ambiguous(t *testing.T) {
	all := []Tool{
		tool("my-srv", "read", "", `{}`), tool("my_srv", "read", "", `{}`), // an exact name takes precedence
		tool("x y", "get-it", "", `{}`), tool("x y", "get.it", "", `{}`), tool("x y", "other-one", "", `{}`), tool("x-y", "read", "", `{}`),
	}
	b := New(Options{Servers: catalogued{names: []string{"my-srv", "my_srv", "x y", "x-y"}, all: all}})
	for l, want := range map[Language][]string{
		Python: {`tools["my-srv"].read() -> Any`, `tools.my_srv.read() -> Any`, `tools["x y"]["get-it"]() -> Any`, `tools["x y"]["get.it"]() -> Any`,
			`tools["x y"].other_one() -> Any`, `tools["x-y"].read() -> Any`},
		JavaScript: {`await tools["my-srv"].read(): any`, `await tools.my_srv.read(): any`, `await tools["x y"]["get-it"](): any`, `await tools["x y"]["get.it"](): any`,
			`await tools["x y"].other_one(): any`, `await tools["x-y"].read(): any`},
		Shell: {`glovebox-tool my-srv.read`, `glovebox-tool my_srv.read`, `glovebox-tool 'x y.get-it'`, `glovebox-tool 'x y.get.it'`, `glovebox-tool 'x y.other_one'`, `glovebox-tool x-y.read`},
	} {
		found, _ := b.Search(t.Context(), "", 0, l)
		for i, f := range found {
			if f.Line != want[i] {
				t.Errorf("search: got %s, want %s", f.Line, want[i])
			}
			described, _, err := b.Describe(t.Context(), []string{f.Name}, "", l)
			if err != nil || described[0].Text != want[i] {
				t.Errorf("describe %s: got %+v, %v, want %s", f.Name, described, err, want[i])
			}
		}
	}
	for i, name := range []string{"my-srv.read", "my_srv.read", "x y.get-it", "x y.get.it", "x y.other_one", "x-y.read"} { // as shells write them
		if got, err := b.resolve(t.Context(), toolCall{Name: name}); err != nil || got.Tool != all[i].Tool {
			t.Errorf("%s means %s.%s, %v", name, got.Server, got.Name, err)
		}
	}
	_, err := b.resolve(t.Context(), toolCall{Name: "my-srv.raed"})
	if want := `there is no tool "raed" in tools["my-srv"]; did you mean read? List: tools.describe("my-srv")`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	for l, want := range map[Language][]string{
		Python:     {"class my_srv:  # tools[\"my-srv\"]\n", "class my_srv:  # tools.my_srv\n", "    # tools[\"x y\"][\"get.it\"]\n    @staticmethod\n    def get_it("},
		JavaScript: {"  \"my-srv\": {\n", "  my_srv: {\n", "    \"get.it\"(): Promise<any>;"},
	} {
		text := b.Stubs(t.Context(), l)
		for _, part := range want {
			if !strings.Contains(text, part) {
				t.Errorf("%q is not in\n%s", part, text)
			}
		}
	}
}

// TestSignature_lists: a list that may be null has the types of its elements.
func TestSignature_lists(t *testing.T) {
	nullable := tool("s", "t", "", `{"type":"object","properties":{"rows":{"type":["array","null"],"items":{"type":"array","items":{"type":"number"}}}},"required":["rows"]}`)
	for l, want := range map[Language]string{
		Python:     "tools.s.t(*, rows: list[list[float]] | None) -> Any",
		JavaScript: "await tools.s.t({rows: number[][] | null}): any",
		Shell:      "glovebox-tool s.t rows=<list[list[float]] | None>",
	} {
		if got := (signatureWriter{&declarations{}, l}).signature(nullable); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// partial has servers without tools.
type partial struct{ catalogued }

func (partial) Unavailable(_ context.Context, server, _ string) *Error {
	return &Error{Code: Untrusted, Message: "The server \"" + server + "\" is not trusted:\nrun glovebox mcp trust."}
}

// TestSearch_notes: a program learns what its search leaves out, and why.
func TestSearch_notes(t *testing.T) {
	w := &world{Broker: New(Options{Servers: partial{catalogued{names: []string{"s", "gone"}, all: []Tool{tool("s", "a1", "", `{}`), tool("s", "a2", "", `{}`)}}}})}
	for args, want := range map[string][]string{
		`{"query":"a1","limit":1}`:               {"tools.s.a1() -> Any", `# Not trusted: gone. Describe one of these servers to see why.`},
		`{"query":"gone a1","limit":1}`:          {"tools.s.a1() -> Any", `# The server "gone" is not trusted: run glovebox mcp trust.`},
		`{"limit":1,"language":"shell"}`:         {"glovebox-tool s.a1", "# 1 more match: narrow the query", `# The server "gone" is not trusted: run glovebox mcp trust.`},
		`{"limit":1,"language":"javascript"}`:    {"await tools.s.a1(): any", "// 1 more match: narrow the query, or raise limit (to 100)", `// The server "gone" is not trusted: run glovebox mcp trust.`},
		`{"query":"zebra","language":"no such"}`: {`# no tool matches "zebra": search without words to list all`, `# Not trusted: gone. Describe one of these servers to see why.`},
	} {
		value, failure := w.ask(t, w.Begin(Identity{}), "search", args)
		var found []Entry
		if failure != nil || json.Unmarshal([]byte(value), &found) != nil || len(found) != len(want) {
			t.Errorf("%s: got %s, %+v", args, value, failure)
			continue
		}
		for i, e := range found {
			if note := e.Line[0] == '#' || e.Line[0] == '/'; e.Line != want[i] || note != (e.Name == "") {
				t.Errorf("%s: got %+v, want %s", args, e, want[i])
			}
		}
	}
}

// TestDescribe_someUnknown: one wrong name does not lose the answer for the others, and each
// wrong name has its own note.
func TestDescribe_someUnknown(t *testing.T) {
	w := &world{Broker: New(Options{Servers: partial{catalogued{names: []string{"files", "notyet"}, all: []Tool{tool("files", "read_file", "Reads.", `{}`), tool("files", "write_file", "Writes.", `{}`)}}}})}
	names := []string{"files.write_file", "files.writefile", "nosuch.thing", "notyet"}
	notes := []string{
		`The server "files" is not trusted: run glovebox mcp trust.`, // partial says so of all servers
		`there is no server "nosuch"; the servers are files, notyet`,
		`The server "notyet" is not trusted: run glovebox mcp trust.`,
	}
	check := func(of string, got []string, n int, err error) {
		t.Helper()
		if err != nil || n != 1 || !slices.Equal(got, notes) {
			t.Errorf("%s: %d tools, notes %q, %v", of, n, got, err)
		}
	}
	for _, detail := range []string{"", DetailSchema} {
		described, got, err := w.Describe(t.Context(), names, detail, Python)
		check("describe", got, len(described), err)
	}
	lines, got, err := w.Lines(t.Context(), names, Python)
	check("lines", got, len(lines), err)
	text, n, got, err := w.Declarations(t.Context(), names, Python)
	check("declarations", got, n, err)
	if !strings.Contains(text, "Writes.") {
		t.Errorf("got %s", text)
	}

	// The same of a program, which gets notes as comments.
	request, err := json.Marshal(describeQuery{Names: names})
	if err != nil {
		t.Fatal(err)
	}
	value, failure := w.ask(t, w.Begin(Identity{}), "describe", string(request))
	var described []Entry
	if failure != nil || json.Unmarshal([]byte(value), &described) != nil || len(described) != 4 || described[3].Name != "" || described[3].Text != "# "+notes[2] {
		t.Errorf("got %s, %+v", value, failure)
	}

	for want, names := range map[string][]string{
		"no name is given: name tools as SERVER.TOOL, or servers; the servers are files, notyet": {},
		notes[1]:                   names[2:3],
		notes[1] + "\n" + notes[2]: names[2:],
		"101 names are given: name at most 100 at once": numbered(101),
	} {
		if _, _, err := w.Describe(t.Context(), names, "", Python); err == nil || oneLine(err.Error(), 1000) != oneLine(want, 1000) {
			t.Errorf("%q: got %v, want %s", names, err, want)
		}
	}
	once, got, err := w.Describe(t.Context(), slices.Repeat([]string{"files.read_file"}, 300), "", Python)
	if err != nil || len(once) != 1 || len(got) != 0 {
		t.Errorf("one name 300 times: got %d tools, notes %q, %v", len(once), got, err)
	}
	_, got, err = w.Describe(t.Context(), append(numbered(99), "files.read_file"), "", Python)
	if err != nil || len(got) != maxListed+1 || got[maxListed] != "79 more names mean no tool" {
		t.Errorf("notes %q, %v", got, err)
	}
}

// numbered returns n names that mean no tool.
func numbered(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint("x", i))
	}
	return names
}

// TestDescribe_withoutServer: the name of a tool is enough, whichever servers have it.
func TestDescribe_withoutServer(t *testing.T) {
	b := New(Options{Servers: catalogued{names: []string{"files", "s3"}, all: []Tool{tool("files", "read-file", "", `{}`), tool("s3", "read-file", "", `{}`), tool("s3", "put", "", `{}`)}}})
	for name, want := range map[string]string{"put": "s3.put", "read-file": "files.read-file s3.read-file", "read_file": "files.read-file s3.read-file"} {
		described, notes, err := b.Describe(t.Context(), []string{name}, "", Python)
		if got := strings.Join(NamesOf(described), " "); got != want || len(notes) > 0 || err != nil {
			t.Errorf("%s: got %q, notes %q, %v, want %q", name, got, notes, err, want)
		}
	}
	if _, _, err := b.Describe(t.Context(), []string{"delete"}, "", Python); err == nil || !strings.Contains(err.Error(), `there is no server "delete"`) {
		t.Errorf("got %v", err)
	}
}

// TestDescribe_unavailable: a server that cannot be used has one sentence, whichever of its tools
// are named, which names the server once.
func TestDescribe_unavailable(t *testing.T) {
	cfg := &mcpjson.Config{}
	for name, command := range map[string]string{"mute": "exec sleep 1000", "dead": "exit 3"} {
		cfg.Servers = append(cfg.Servers, &mcpjson.Server{Name: name, Transport: mcpjson.TransportStdio, Command: mcpjson.Literal("sh"),
			Args: []mcpjson.Text{mcpjson.Literal("-c"), mcpjson.Literal(command)}, Dir: t.TempDir()})
	}
	w, _ := openWorld(t, Options{}, gateway.Options{
		Servers: mcpkit.Options{
			Config: cfg, Trust: func(context.Context, *mcpjson.Server) (mcpkit.Trust, error) { return mcpkit.Trusted, nil },
			Timeouts: mcpjson.Timeouts{Connect: 5 * time.Second}, // the other one ends before
		},
		ToolsCommand: func(string) string { return "CAUSE" },
	})
	_, _, err := w.Describe(t.Context(), []string{"mute", "dead", "mute.a", "mute.b", "dead.a", "dead"}, "", Python)
	const want = `The server "mute" is not available: connect: no answer within 5s; the user sees the cause with: CAUSE
The server "dead" is not available: its program ended: exit status 3; the user sees the cause with: CAUSE`
	// The cause may be from a try before, and the sentence then says how long ago.
	if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestDescribe_advice: what does not fit is not to be had with fewer names if one server is named.
func TestDescribe_advice(t *testing.T) {
	all := catalogued{names: []string{"s"}}
	var names []string
	for i := range 3 {
		all.all = append(all.all, tool("s", fmt.Sprint("t", i), strings.Repeat("x", maxDocumented/2), `{}`))
		names = append(names, fmt.Sprint("s.t", i))
	}
	b := New(Options{Servers: all})
	for want, names := range map[string][]string{"did not fit: name single tools, which a search lists": {"s"}, "did not fit: ask for fewer at once": names} {
		described, _, err := b.Describe(t.Context(), names, "", Python)
		if err != nil || !strings.HasSuffix(described[len(described)-1].Text, want) {
			t.Errorf("describe %q: got %.200q, %v", names, described[len(described)-1].Text, err)
		}
		if text, _, _, err := b.Declarations(t.Context(), names, Python); err != nil || !strings.HasSuffix(text, want+"\n") {
			t.Errorf("declare %q: got …%q, %v", names, text[max(0, len(text)-200):], err)
		}
	}
}

// starting is a server "slow" that is being listed for the first time, and "late", whose
// state is known only later.
type starting struct{ catalogued }

func (s starting) Tools(ctx context.Context, server string) []Tool {
	if server == "slow" {
		<-ctx.Done()
	}
	return s.catalogued.Tools(ctx, server)
}

func (starting) Unavailable(ctx context.Context, server, _ string) *Error {
	if server == "late" {
		<-ctx.Done()
		return asError(ctx, context.Cause(ctx))
	}
	return &Error{Code: Unavailable, Message: fmt.Sprintf("The server %q is still starting. Try again in a moment.", server), starting: true}
}

// TestMissing_slowServer: a search does not wait for a server that starts, and its notes are
// about servers, not about a call that nobody made.
func TestMissing_slowServer(t *testing.T) {
	for _, tc := range []struct {
		servers []string
		want    []string
		most    time.Duration
	}{
		{[]string{"slow", "fast", "slow2"}, []string{`The server "slow" is still starting. Try again in a moment.`, `The server "slow2" is still starting. Try again in a moment.`}, 0},
		{[]string{"fast", "late", "slow"}, []string{`The server "late" did not answer within 7s. Try again in a moment.`, `The server "slow" is still starting. Try again in a moment.`}, missingWait},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := New(Options{Servers: starting{catalogued{names: tc.servers, all: []Tool{tool("fast", "get", "", `{}`)}}}})
			begun := time.Now()
			if got := b.Missing(t.Context(), ""); !slices.Equal(got, tc.want) || time.Since(begun) > tc.most {
				t.Errorf("after %v: %q, want %q", time.Since(begun), got, tc.want)
			}
			if got, want := strings.Join(b.Missing(t.Context(), "write a file"), "\n"), "Still starting: slow"; !strings.Contains(got, want) {
				t.Errorf("a search for other words: got %q, want %q", got, want)
			}
		})
	}
	b := New(Options{Servers: partial{catalogued{names: []string{"notyet", "alsonot", "fast"}, all: []Tool{tool("fast", "get", "", `{}`)}}}})
	if got, want := b.Missing(t.Context(), "write a file"), "[Not trusted: notyet, alsonot. Describe one of these servers to see why.]"; fmt.Sprint(got) != want {
		t.Errorf("got %q, want %s", got, want)
	}
}

// TestDescribe_unknownWhileStarting: a name that no tool has yet may be of a server that is still
// starting, and the answer names it.
func TestDescribe_unknownWhileStarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Options{Servers: starting{catalogued{names: []string{"fast", "slow"}, all: []Tool{tool("fast", "get", "", `{}`)}}}})
		const want = "Still starting: slow. Try again in a moment."
		for _, name := range []string{"write_file", "slo.write_file"} {
			if _, _, err := b.Describe(t.Context(), []string{name}, "", Python); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %q", name, err, want)
			}
			_, notes, err := b.Describe(t.Context(), []string{name, "fast.get"}, "", Python)
			if err != nil || !slices.Contains(notes, want) {
				t.Errorf("%s and another: got notes %q, error %v", name, notes, err)
			}
		}
		if _, notes, err := b.Describe(t.Context(), []string{"fast.get"}, "", Python); err != nil || len(notes) > 0 {
			t.Errorf("a known name: got notes %q, error %v", notes, err)
		}
	})
}
