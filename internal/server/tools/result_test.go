//go:build linux

package tools

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/server/tools/toolstest"
)

// maxText bounds the text of any result, in bytes: some 20,000 tokens. Clients such
// as Claude Code refuse more than 25,000.
const maxText = 80 << 10

// said is what a client that passes on text alone has of an answer, once the rules
// that hold for every answer are checked.
func said(t *testing.T, m *box.Manager, name, args string) (text string, res *mcp.CallToolResult) {
	t.Helper()
	res, err := callAs(t, Deps{Boxes: m}, name, args)
	if err != nil {
		t.Fatalf("%s %.200s: %v", name, args, err)
	}
	for _, c := range res.Content {
		if c, ok := c.(*mcp.TextContent); ok {
			if strings.TrimSpace(c.Text) == "" {
				t.Errorf("%s %.200s: an empty block of text", name, args)
			}
			text += c.Text
		}
	}
	if len(text) == 0 || len(text) > maxText {
		t.Errorf("%s %.200s: %d bytes of text, want 1 to %d", name, args, len(text), maxText)
	}
	if s, _ := res.StructuredContent.(json.RawMessage); len(s) > 2*maxText {
		t.Errorf("%s %.200s: %d bytes of structured content", name, args, len(s))
	} else if strings.Contains(string(s), `"source"`) || strings.Contains(string(s), `"sha256"`) {
		t.Errorf("%s %.200s: a model is shown %s", name, args, s)
	}
	return text, res
}

var newSession = regexp.MustCompile(`\[session ([0-9a-f-]{36}) new · `)

// TestResults_TextIsSufficient: the text alone says how to continue and how the call ended,
// with notes.
func TestResults_TextIsSufficient(t *testing.T) {
	m := toolstest.Manager(t, nil)
	text, _ := said(t, m, "execute_code", `{"code":"x = 42"}`)
	found := newSession.FindStringSubmatch(text)
	if found == nil || strings.HasPrefix(text, "\n") {
		t.Fatalf("an assignment: got %q, want the id of the new session", text)
	}
	id := found[1]
	in := func(s string) string { return strings.ReplaceAll(s, "ID", id) }
	for _, c := range []struct{ tool, args, want string }{
		{"execute_code", `{"code":"print(x)","session_id":"ID"}`, `^42\n\[session ` + id[:12] + `… · \d+ ms\]$`},
		{"execute_code", `{"code":"import sys; print(1, end=''); print(2, end='', file=sys.stderr)","session_id":"ID"}`, `^1\n2\n\[session `},
		{"execute_code", `{"code":"1/0","session_id":"ID"}`, `(?s)^Traceback .*ZeroDivisionError: division by zero\n\[session \S+ · failed · \d+ ms\]$`},
		{"execute_code", `{"code":"import time; time.sleep(60)","timeout":1,"session_id":"ID"}`, `(?s)· timed out · 1\.\d s\]\nCode execution timed out after 1 second and was interrupted; variables are kept\.$`},
		{"execute_command", `{"command":"exit 3","session_id":"ID"}`, `^\[session \S+ · exit 3 · \d+ ms\]$`},
		{"execute_command", `{"command":"echo a; echo b >&2; exit 4","session_id":"ID"}`, `^a\nb\n\[session \S+ · exit 4 · \d+ ms\]$`},
		{"execute_command", `{"command":"kill -9 $$","session_id":"ID"}`, `exit 137, signal `},
		{"execute_command", `{"command":"true","session_id":"ID"}`, `^\[session \S+ · exit 0 · \d+ ms\]$`},
		{"execute_command", `{"command":"echo a | tr a b","args":[],"session_id":"ID"}`, `^b\n\[session \S+ · exit 0 · `},
		{"execute_command", `{"command":"true","session_id":"analysis"}`, `^\[session analysis new · exit 0 · \d+ ms\]\nThere was no session analysis: this is a new one, without earlier variables and files\.$`},
		{"execute_code", `{"code":"1","session_id":"analysys"}`, `There was no session analysys: .* Did you mean analysis\?$`},
		{"execute_code", `{"code":"1","session_id":"` + id[:7] + `"}`, `There was no session .* Did you mean ` + id + `\?$`},
		{"execute_code", `{"code":"1","session_id":"` + id[:8] + `"}`, `^Session not found: ` + id[:8] + `\. Did you mean ` + id + `\? get_sessions lists the sessions\.$`},
		{"execute_command", `{"command":"true","session_id":"` + id[:12] + `..."}`, `^Session not found: .* Did you mean ` + id + `\?`},
		{"execute_code", `{"code":"1","session_id":"` + id[:12] + `…"}`, `^Session not found: .* Did you mean ` + id + `\?`},
		{"download_file", `{"path":"a","session_id":"analysi"}`, `Session not found: analysi\. .*get_sessions`},
		{"stop_session", `{"session_id":"analysis1"}`, `^Session analysis1 not found\. Did you mean analysis\?$`},
		{"execute_code", `{"cod":"1"}`, `^Invalid parameters: Unknown parameter: cod. Did you mean 'code'\?$`},
		{"execute_code", `{"code":"1","language":"ruby"}`, `Must be 'python' or 'javascript'$`},
		{"execute_code", `{"code":"1","flavor":"huge"}`, `Unsupported flavor: huge\. Use 'small'`},
		{"execute_code", `{"code":"1","timeout":900}`, `must be <= 300, got 900`},
		{"execute_code", `{"code":"1","language":"javascript","session_id":"ID"}`, `has the language 'python', not 'javascript'\. Leave out the language, or use another session\.`},
		{"upload_file", `{"path":"~/in/a.csv","content":"a,b\n","session_id":"ID"}`, `^Wrote 4 bytes to \S+/in/a\.csv\n\[session `},
		{"download_file", `{"path":"in/a.csv","session_id":"ID"}`, `^a,b\n\[\S+/in/a\.csv · 4 bytes · session \S+\]$`},
		{"download_file", `{"path":"in/a.csv","offset":9,"session_id":"ID"}`, `^\[\S+/in/a\.csv · offset 9 is beyond the end, at byte 4 · session \S+\]$`},
		{"download_file", `{"path":"in/b.csv","session_id":"ID"}`, `no such file or directory\. Paths are those of the sandbox\. Of the user's machine it has only its volumes: pass the content of other files to upload_file\. list_files lists a directory\."`},
		{"download_file", `{"path":"/Users/ada/sales.csv","session_id":"ID"}`, `outside the accessible directories of the sandbox: .*pass the content of other files to upload_file\. For other directories of the sandbox, use execute_command\."`},
		{"list_files", `{"path":"/home/ada/Desktop","session_id":"ID"}`, `outside the accessible directories of the sandbox: .*pass the content of other files to upload_file`},
		{"list_files", `{"path":"nothing","session_id":"ID"}`, `no such file or directory\. .*pass the content of other files to upload_file\."`},
		{"upload_file", `{"path":"/Users/ada/a.csv","content":"1","session_id":"ID"}`, `not of the user's machine: write below the home directory, in /tmp or in a writable volume\."`},
		{"upload_file", `{"path":"in/a.csv","content":"","overwrite":false,"session_id":"ID"}`, `it exists\. Choose another path, or pass overwrite true\."`},
		{"list_files", `{"path":"~/in","session_id":"ID"}`, `^\S+/in/a\.csv  4 bytes  20\S+\n\[1 entry · session \S+\]$`},
		{"list_files", `{"path":"~","session_id":"ID"}`, `(?m)^\S+/in/  20`},
		{"execute_command", `{"command":"mkdir empty","session_id":"ID"}`, `exit 0`},
		{"get_sessions", `{"session_id":"ID"}`, `^\[\n\{"session_id":.*"status":.*\}\n\]$`},
		{"get_sessions", `{}`, `^\[\n(?:\{.*\},\n)+\{.*\}\n\]$`},
		{"download_file", `{"path":"in/a.csv/b","session_id":"ID"}`, `a part of the path is a file, and not a directory`},
		{"upload_file", `{"path":"empty","content":"1","session_id":"ID"}`, `it is a directory`},
		{"list_files", `{"path":"empty","session_id":"ID"}`, `^\[empty directory · session `},
		{"execute_command", `{"command":"ls -la","args":["/"],"session_id":"ID"}`, `With args, command is the name of one program, without arguments: move those into args`},
		{"execute_command", `{"command":"no-such-program","args":["/"],"session_id":"ID"}`, `Exit code 127: the command was not found\.$`},
		{"execute_code", `{"code":"1","timeout":"abc"}`, `Parameter 'timeout' must be an integer, got the string "abc"$`},
		{"download_file", `{"path":"in","session_id":"ID"}`, `is a directory\. Only regular files can be read: list_files lists a directory\.`},
		{"upload_file", `{"path":"one","content":"1","session_id":"ID"}`, `^Wrote 1 byte to `},
		{"download_file", `{"path":"one","session_id":"ID"}`, `^1\n\[\S+ · 1 byte · `},
		{"upload_file", `{"path":"latin","content":"R3L832UK","encoding":"base64","session_id":"ID"}`, `^Wrote 6 bytes`},
		{"download_file", `{"path":"latin","session_id":"ID"}`, `\nThe content is base64: the file is not UTF-8\. It looks like text in latin-1: read it with execute_code, as in open\(path, encoding='latin-1'\)\.$`},
		{"upload_file", `{"path":"b","content":""}`, `(?s)^Wrote 0 bytes to .*\[session [0-9a-f-]{36} new\]$`},
		{"stop_session", `{"session_id":"ID"}`, `^Session ` + id + ` stopped successfully$`},
		{"execute_code", `{"code":"x","session_id":"ID"}`, `(?s)NameError.*\[session ` + id + ` new · failed.*\nThe earlier session ` + id + ` ended at .* \(it was stopped\)\. Its variables and files are gone`},
	} {
		text, _ := said(t, m, c.tool, in(c.args))
		if !regexp.MustCompile(c.want).MatchString(text) {
			t.Errorf("%s %s: got %q, want %s", c.tool, c.args, text, c.want)
		}
	}
}

// TestResults_ExplainMissingInput: a program that asks for input, or imports what is not
// there, fails with what to do instead.
func TestResults_ExplainMissingInput(t *testing.T) {
	m := toolstest.Manager(t, nil)
	const once, again = `The module 'no_such_module' was not found, and boxes have no network to install it from\. .*docs/packages\.md\)\.`, `The module 'no_such_module' was not found either\.`
	for _, c := range []struct{ tool, args, want string }{
		{"execute_code", `{"session_id":"s","code":"import no_such_module"}`, once},
		{"execute_command", `{"session_id":"s","command":"python3 -c 'import no_such_module.part'"}`, again},
		{"execute_command", `{"session_id":"s","command":"python3 -m no_such_module"}`, again},
		{"execute_command", `{"session_id":"s","command":"node -e 'require(\"no_such_module\")'"}`, again},
		{"execute_code", `{"session_id":"s","code":"import numpyy"}`, `No module named 'numpyy'\. Did you mean: 'numpy'\?`},
		{"execute_code", `{"session_id":"s","code":"open('my_helpers.py', 'w').close()\nimport my_helper"}`, `No module named 'my_helper'\. Did you mean: 'my_helpers'\?`},
		{"execute_code", `{"session_id":"s","code":"input('name? ')"}`, `EOFError: there is no terminal: write the value into the code instead of asking with input\(\), or set sys\.stdin`},
		{"execute_code", `{"session_id":"s","code":"import getpass\ngetpass.getpass()"}`, `There is no terminal, and standard input is empty\. Pass the input in the command`},
		{"execute_command", `{"session_id":"s","command":"python3 -c 'input()'"}`, `There is no terminal, and standard input is empty\. Pass the input in the command, as in printf`},
		{"execute_command", `{"session_id":"s","command":"python3 -c 'import getpass; getpass.getpass()'"}`, `There is no terminal`},
		{"execute_command", `{"session_id":"s","command":"printf 'Ada\\n' | python3 -c 'print(input())'"}`, `^Ada\n\[[^\]]*\]$`},
	} {
		text, _ := said(t, m, c.tool, c.args)
		if !regexp.MustCompile(`(?s)`+c.want).MatchString(text) || strings.Count(text, "There is no terminal") > 1 {
			t.Errorf("%s %s: got %q, want %s", c.tool, c.args, text, c.want)
		}
	}
}

// TestResults_LongValueCanBeRecovered: a value of which not even the file in the box has
// all is in a variable, as the answer says.
func TestResults_LongValueCanBeRecovered(t *testing.T) {
	m := toolstest.Manager(t, nil)
	for language, print := range map[string]string{"python": "print(_)", "javascript": "console.log(_)"} {
		value := map[string]string{"python": "'x' * 1_000_000", "javascript": "'x'.repeat(1_000_000)"}[language]
		in := `{"session_id":"` + language + `","language":"` + language + `","code":"`
		text, _ := said(t, m, "execute_code", in+value+`"}`)
		if !strings.Contains(text, "is whole in the variable _ only: print it or write it to a file.") {
			t.Fatalf("%s: got …%q, want where the value is", language, text[max(0, len(text)-500):])
		}
		text, _ = said(t, m, "execute_code", in+print+`"}`)
		file := regexp.MustCompile(`is left out: .*; whole output in (\S+)\.`).FindStringSubmatch(text)
		if file == nil {
			t.Fatalf("%s: got …%q, want the file with the output", language, text[max(0, len(text)-500):])
		}
		if text, _ := said(t, m, "execute_command", `{"session_id":"`+language+`","command":"tr -d '\\n' < `+file[1]+` | wc -c"}`); !strings.HasPrefix(text, "1000000\n") {
			t.Errorf("%s: got %q, want all characters", language, text)
		}
	}
}

// TestSessionID_WordsForNone: a word for a missing value, as some models write it into
// an optional argument, creates no box of that name.
func TestSessionID_WordsForNone(t *testing.T) {
	m := toolstest.Manager(t, nil)
	for _, word := range []string{"null", "None", "undefined", "NIL", " null "} {
		for _, c := range []struct{ tool, rest string }{
			{"execute_code", `"code":"print(6*7)"`}, {"execute_command", `"command":"true"`}, {"upload_file", `"path":"a","content":""`},
		} {
			text, res := said(t, m, c.tool, `{"session_id":"`+word+`",`+c.rest+`}`)
			if res.IsError || !newID.MatchString(text) || !strings.Contains(text, `The session_id "`+word+`" counts as none: this is a new session.`) {
				t.Errorf("%s with session_id %q: got %q, want a new session with a new id, and a note", c.tool, word, text)
			}
		}
		if text, res := said(t, m, "run_code", `{"context_id":"`+word+`","code":"1"}`); res.IsError || !strings.Contains(text, `"context_id": "ctx-`) {
			t.Errorf("run_code with context_id %q: got %s, want the default context", word, text)
		}
		if text, res := said(t, m, "list_files", `{"session_id":"`+word+`"}`); !res.IsError || !strings.Contains(text, "Session not found: "+word) {
			t.Errorf("list_files with session_id %q: got %q, want that there is none", word, text)
		}
	}
	// A box of such a name, from an earlier version or by create_context, stays reachable.
	if text, res := said(t, m, "create_context", `{"name":"none"}`); res.IsError {
		t.Fatal(text)
	}
	said(t, m, "run_code", `{"context_id":"none","code":"x = 42"}`)
	if text, _ := said(t, m, "execute_code", `{"session_id":"none","code":"x"}`); !strings.HasPrefix(text, "42\n") {
		t.Errorf("a context named none: got %q, want its variable", text)
	}
}

var newID = regexp.MustCompile(`\[session [0-9a-f-]{36} new\b`)

// TestResults_AreBounded: results are bounded and say how to get the rest.
func TestResults_AreBounded(t *testing.T) {
	m := toolstest.Manager(t, nil)
	must := func(args string) {
		t.Helper()
		if text, res := said(t, m, "execute_code", args); res.IsError {
			t.Fatal(text)
		}
	}
	must(`{"session_id":"s","code":"open('big.csv', 'w').write('1,2,3\\n' * 250_000); open('bin', 'wb').write(bytes(range(256)) * 100); import os; os.mkdir('many')\nfor i in range(1500): open(f'many/{i}', 'w')"}`)
	for _, c := range []struct{ tool, args, want string }{
		{"execute_code", `{"session_id":"s","code":"import sys\nprint('x' * 3_000_000); print('y' * 3_000_000, file=sys.stderr)"}`, `The middle of stdout is left out: .*; whole output in \S+\.`},
		{"execute_code", `{"session_id":"s","code":"for i in range(5000): display(str(i) * 40)"}`, `4960 displays left out: a call keeps at most 40, `},
		{"execute_code", `{"session_id":"s","code":"def f(n): return f(n + 1)\nclass E(Exception):\n  def __str__(self): return 'e' * 1_000_000\ntry: f(0)\nexcept RecursionError as e: raise E() from e"}`, `(?s)bytes left out here.*The traceback of \d+ bytes is cut: see \S+/\.outputs/display-\d+\.txt\.`},
		{"execute_command", `{"session_id":"s","command":"seq 1000000; seq 1000000 >&2"}`, `whole output in`},
		{"execute_command", `{"session_id":"s","command":"echo ` + strings.Repeat("a", 100_000) + ` | wc -c"}`, `100001`},
		{"download_file", `{"session_id":"s","path":"big.csv"}`, `· bytes 0 to 24576 of 1500000 · read on with offset 24576 ·`},
		{"download_file", `{"session_id":"s","path":"big.csv","offset":1499994}`, `^1,2,3\n\[\S+ · bytes 1499994 to 1500000, the end · session s\]$`},
		{"download_file", `{"session_id":"s","path":"bin"}`, `25600 bytes · application/octet-stream · session s\]\nThe content is not text and is left out: .*execute_code.*base64`},
		{"execute_code", `{"session_id":"s","code":"open('latin', 'w', encoding='cp1252').write('it’s ' * 5000)"}`, `session s`},
		{"download_file", `{"session_id":"s","path":"latin"}`, `The content is left out: the file is not UTF-8\. It looks like text in cp1252: .*encoding='cp1252'`},
		{"execute_code", `{"session_id":"j","language":"javascript","code":"'x'.repeat(12_000) + 'end'"}`, `x{100}end'\n`},
		{"execute_code", `{"session_id":"j","language":"javascript","code":"'x'.repeat(200_000)"}`, `A displayed value of \d+ bytes is cut: see \S+/\.outputs/display-\d+\.txt\.`},
		{"list_files", `{"session_id":"s","path":"many"}`, `\[the first 100 entries · .*\n.*max_entries`},
		{"list_files", `{"session_id":"s","path":"many","max_entries":500}`, `\[the first 500 entries · `},
	} {
		text, _ := said(t, m, c.tool, c.args)
		if !regexp.MustCompile(c.want).MatchString(text) {
			t.Errorf("%s %.100s: got %d bytes ending in %q, want %s", c.tool, c.args, len(text), text[max(0, len(text)-600):], c.want)
		}
	}
	out := getSessionsOut{Sessions: make([]sessionItem, maxItems), Total: maxItems + 6}
	if more := out.present().more; len(more) != 1 || more[0].(*mcp.TextContent).Text != "These are the newest 50 of 56 sessions." {
		t.Errorf("get_sessions: got %+v", more)
	}
}

// TestResults_Figures: an image is content once, and structured content and text say where
// it is kept.
func TestResults_Figures(t *testing.T) {
	if exec.Command("/usr/bin/python3", "-c", "import matplotlib").Run() != nil {
		t.Skip("no matplotlib")
	}
	m := toolstest.Manager(t, nil)
	const plot = `import matplotlib.pyplot as plt\nfor i in range(N):\n  plt.figure(figsize=(2, 2)); plt.plot([i, 1]); plt.show()`
	check := func(tool, id string, n int, want string) {
		t.Helper()
		code := strings.ReplaceAll(plot, "N", string(rune('0'+n)))
		text, res := said(t, m, tool, `{"code":"`+code+`","`+id+`"}`)
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("%s: got text %q, want %s", tool, text, want)
		}
		var out struct {
			SessionID string `json:"session_id"`
			ContextID string `json:"context_id"`
			Figures   []figure
		}
		if err := json.Unmarshal(res.StructuredContent.(json.RawMessage), &out); err != nil {
			t.Fatal(err)
		}
		if len(out.Figures) != n || len(res.Content) != n+1 {
			t.Fatalf("%s: got %d blocks and figures %+v, want %d figures", tool, len(res.Content), out.Figures, n)
		}
		for i, f := range out.Figures {
			shown := res.Content[i+1].(*mcp.ImageContent)
			kept, err := os.ReadFile(f.Path) // boxes of this test are processes of this machine
			if err != nil || f.Type != "image/png" || f.Size != len(shown.Data) || string(kept) != string(shown.Data) {
				t.Errorf("%s: figure %+v is not the image of %d bytes that is shown: %v", tool, f, len(shown.Data), err)
			}
		}
		// As a file it comes back as an image, and no base64 beside it.
		text, res = said(t, m, "download_file", `{"session_id":"`+out.SessionID+out.ContextID+`","path":"`+out.Figures[0].Path+`"}`)
		if len(res.Content) != 2 || len(text) > 300 || len(res.StructuredContent.(json.RawMessage)) > 300 {
			t.Errorf("download_file: got %d blocks, text %q, structured %s", len(res.Content), text, res.StructuredContent)
		}
	}
	check("execute_code", `session_id":"s`, 1, ` · 1 figure in \S+/\.outputs/figure-1\.png · `)
	check("execute_code", `session_id":"s`, 5, ` · 5 figures in \S+/\.outputs/figure-2\.png, figure-3\.png, figure-4\.png, … · `)
	said(t, m, "create_context", `{"name":"c"}`)
	check("run_code", `context_id":"c`, 1, `"path": "\S+/\.outputs/figure-`)
	text, res := said(t, m, "execute_code", `{"session_id":"f","code":"`+strings.ReplaceAll(plot, "N", "25")+`"}`)
	if want := regexp.MustCompile(`(?s) · 20 figures in .*\n5 images not shown: a result has at most 20\. 5 files in \S+/\.outputs: figure-\d+\.png(, figure-\d+\.png){4}\.$`); !want.MatchString(text) {
		t.Errorf("25 figures: got text %q of %d blocks, want %s", text, len(res.Content), want)
	}
}

// TestTools_ShareIDs: session tools accept the ids of contexts, and the other way
// round.
func TestTools_ShareIDs(t *testing.T) {
	m := toolstest.Manager(t, nil)
	var c struct {
		ContextID string `json:"context_id"`
		Flavor    string
	}
	_, res := said(t, m, "create_context", `{"name":"work","flavor":"medium","language":"node"}`)
	if err := json.Unmarshal(res.StructuredContent.(json.RawMessage), &c); err != nil || c.Flavor != "medium" {
		t.Fatalf("create_context: got %s, %v", res.StructuredContent, err)
	}
	said(t, m, "run_code", `{"context_id":"work","code":"globalThis.x = 7"}`)
	for _, a := range []struct{ tool, args, want string }{
		{"execute_code", `{"code":"x","session_id":"ID"}`, `^7\n\[context ` + c.ContextID[:12] + `… · `},
		{"execute_code", `{"code":"x","context_id":"work"}`, `^7\n`},
		{"execute_code", `{"code":"1","session_id":"ID","language":"python"}`, `Context \S+ has the language 'javascript', not 'python'`},
		{"execute_command", `{"command":"echo here","context_id":"ID"}`, `^here\n\[context \S+ · exit 0`},
		{"execute_command", `{"command":"true","session_id":"ctx-00000000-0000-4000-8000-000000000000"}`, `Context not found: ctx-00000000`},
		{"upload_file", `{"path":"t","content":"b","context_id":"work"}`, `\[context ctx-`},
		{"list_files", `{"session_id":"ID"}`, `· context ctx-`},
		{"execute_code", `{"code":"y = 8","session_id":"s"}`, `session s new`},
		{"run_code", `{"code":"y","context_id":"s"}`, `"stdout": "8\\n"`},
		{"run_code", `{"code":"y","session_id":"s"}`, `"context_id": "s"`},
		{"stop_context", `{"context_id":"s"}`, `stopped`},
		{"stop_session", `{"session_id":"ID"}`, `stopped successfully`},
		{"get_sessions", `{}`, `^\[\]$`},
		{"list_contexts", `{}`, `"total": 0`},
	} {
		text, _ := said(t, m, a.tool, strings.ReplaceAll(a.args, "ID", c.ContextID))
		if !regexp.MustCompile(a.want).MatchString(text) {
			t.Errorf("%s %s: got %q, want %s", a.tool, a.args, text, a.want)
		}
	}
}
