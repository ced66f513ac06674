package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/retrylist"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestBuild_ServesBothEras: the test build offers the fixtures to clients of both eras
// and counts the calls that bypass the SDK.
func TestBuild_ServesBothEras(t *testing.T) {
	b, err := startBuild(false)
	if err != nil {
		t.Fatal(err)
	}
	defer b.stop()
	for _, version := range []string{"", "2025-11-25"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, &mcp.ClientOptions{
			ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "Ann"}}, nil
			},
		})
		cs, err := c.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: b.url}, &mcp.ClientSessionOptions{ProtocolVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		for tool, want := range map[string]string{
			"test_simple_text":                        "simple text",
			"test_input_required_result_elicitation":  "Hello, Ann!",
			"test_error_handling":                     "intentionally",
			"test_input_required_result_capabilities": "Thank you",
		} {
			res, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: map[string]any{}})
			if err != nil {
				t.Fatalf("%q, %s: %v", version, tool, err)
			}
			if got := res.Content[0].(*mcp.TextContent).Text; !strings.Contains(got, want) {
				t.Errorf("%q, %s: got %q", version, tool, got)
			}
		}
		if err := cs.Close(); err != nil {
			t.Error(err)
		}
	}
	// In the newest revision, a call that asks is observed once, when it ends with the SDK.
	if n, names := b.directCalls(); n != 6 || !strings.Contains(names, "test_simple_text") {
		t.Errorf("%d direct calls, of %s", n, names)
	}
}

func TestBaseline(t *testing.T) {
	b, err := readBaseline(write(t, "b", "# a comment\n\nshipped a:b it has no such tool\nshipped c:d neither that one\n"))
	if err != nil {
		t.Fatal(err)
	}
	if !b.expects("shipped", "a", "b") || b.expects("test-build", "a", "b") || b.expects("shipped", "a", "d") {
		t.Error("the wrong checks may fail")
	}
	if got := b.stale(); len(got) != 1 || got[0] != "shipped c:d" {
		t.Errorf("stale: got %q", got)
	}
	if _, err := readBaseline(write(t, "b", "shipped a:b because\n")); err == nil || !strings.Contains(err.Error(), "reason") {
		t.Errorf("a reason of one word: got %v", err)
	}
	if _, err := readBaseline("baseline.txt"); err != nil {
		t.Error(err)
	}
}

func TestResults(t *testing.T) {
	b, err := readBaseline(write(t, "b", "shipped two:y it has no such tool\n"))
	if err != nil {
		t.Fatal(err)
	}
	s := &suite{baseline: b}
	all := &results{}
	s.note(all, shipped, "r", []scenario{
		{"one", []check{{Status: success}, {Status: "INFO"}, {ID: "w", Status: "WARNING", Error: "should\n be"}}},
		{"two", []check{{Status: success}, {ID: "y", Status: failure}}},
		{"three", []check{{ID: "z", Status: failure, Error: "bad"}}},
		{"five", []check{{ID: "v", Status: success, Details: json.RawMessage(`{"error":{"code":-32602,"message":"not found: tool:test_x"}}`)}}},
		{"four", []check{{Status: "SKIPPED"}}},
	}, map[string]bool{"one": true})
	if passed, failed := all.count(); passed != 2 || failed != 2 {
		t.Errorf("%d passed, %d failed", passed, failed)
	}
	s.agree(all, shipped, "r", false) // explained by what failed
	s.agree(all, testBuild, "r", false)
	if passed, failed := all.count(); passed != 2 || failed != 3 {
		t.Errorf("%d passed, %d failed", passed, failed)
	}
	for _, want := range []string{"1 of 2 checks\n", "warning: w: should be", "1 in the baseline, not scored", "FAILED", "z: bad", "skipped", "v: passed only because",
		"shipped, r: 1 of 1 required scenarios passed, 1 of 3 others, 2 checks\n"} {
		if got := all.table(); !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	doc := write(t, "doc.md", "before\n"+beginMark+"old\n"+endMark+"after\n")
	for range 2 {
		if err := all.writeDoc(doc); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	text := string(got)
	if !strings.Contains(text, "* shipped, r: 1 of 1 required") || !strings.HasPrefix(text, "before\n") || !strings.HasSuffix(text, "after\n") || strings.Contains(text, "old") ||
		strings.Count(text, "| `two` | passed |") != 1 || !strings.Contains(text, "2 passed, 3 failed.") {
		t.Errorf("got %s", text)
	}
	if err := all.writeDoc(write(t, "doc.md", "no marks")); err == nil {
		t.Error("a document without marks was written")
	}
}

// fake returns a suite that is a shell script. The script writes results to $out.
func fake(t *testing.T, script string) *suite {
	t.Helper()
	b, err := readBaseline(write(t, "b", ""))
	if err != nil {
		t.Fatal(err)
	}
	find := "while [ \"$1\" != -o ]; do shift || exit 9; done\nout=$2\n"
	return &suite{node: "/bin/sh", script: write(t, "suite.sh", find+script), baseline: b, out: t.TempDir()}
}

// The suite fails every other time. A failed set runs once more if the retry list has
// room for its scenarios, and the list then names them.
func TestRunStable(t *testing.T) {
	s := fake(t, `
echo "=== SUMMARY ==="
echo "✓ one: 1 passed, 0 failed"
echo "✓ two: 1 passed, 0 failed"
echo "✗ three: 0 passed, 1 failed"
mkdir -p "$out/server-one-2026-01-01" "$out/server-two-2026-01-01"
echo '[{"id":"c","status":"SUCCESS"}]' > "$out/server-two-2026-01-01/checks.json"
if [ -e "$0.again" ]; then status=SUCCESS; rm "$0.again"; else status=FAILURE; touch "$0.again"; fi
echo '[{"id":"c","status":"'$status'"}]' > "$out/server-one-2026-01-01/checks.json"
[ $status = SUCCESS ]
`)
	t.Setenv(retrylist.Env, "")
	of := serverSubject(testBuild, "http://127.0.0.1:1/mcp")
	run := func(leaves func(string) bool) (list []scenario, clean bool, notes []string) {
		t.Helper()
		of.leaves = leaves
		all := &results{}
		list, clean, err := s.runStable(t.Context(), all, of)
		if err != nil {
			t.Fatal(err)
		}
		return list, clean, all.notes
	}
	others := func(scenario string) bool { return scenario != "one" }
	if list, clean, notes := run(func(scenario string) bool { return scenario == "two" }); len(list) != 2 || clean || list[0].checks[0].Status != failure || notes != nil {
		t.Errorf("got %v, %v, %q", list, clean, notes)
	}
	if list, clean, _ := run(nil); len(list) != 3 || !clean || list[0].checks[0].Status != success || list[2].checks[0].Status != failure {
		t.Errorf("got %v, %v; want three, of which one has left no results", list, clean)
	}
	if list, clean, _ := run(others); len(list) != 1 || !clean || list[0].checks[0].Status != failure {
		t.Errorf("got %v, %v; the verdict can be about what was left", list, clean)
	}
	run(nil) // so that the next one fails
	path := write(t, "list", "")
	t.Setenv(retrylist.Env, path)
	if list, clean, notes := run(others); !clean || list[0].checks[0].Status != success || len(notes) != 1 || !strings.Contains(notes[0], "RETRIED: one") {
		t.Errorf("got %v, %v, %q", list, clean, notes)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "conformance test-build one: passed when retried\n" {
		t.Errorf("got list %q, %v", got, err)
	}
	t.Setenv(retrylist.Env, write(t, "long", strings.Repeat("x: passed when retried\n", retrylist.Max)))
	if list, _, notes := run(others); list[0].checks[0].Status != failure || len(notes) != 1 || !strings.Contains(notes[0], "No retry of one") {
		t.Errorf("after as many retries as allowed: got %v, %q", list, notes)
	}
}

// TestKit_ClientDoesNotFinish: a client that does not end its script fails, even if the
// suite is satisfied.
func TestKit_ClientDoesNotFinish(t *testing.T) {
	s := fake(t, `
mkdir -p "$out"
echo "✓ tools_call: 1 passed, 0 failed, 1 warnings"
echo "✓ initialize: 1 passed, 0 failed"
for name in tools_call initialize; do
	mkdir "$out/$name-2026-01-01"
	echo '[{"id":"c","status":"SUCCESS"}]' > "$out/$name-2026-01-01/checks.json"
done
echo done > "$out/tools_call-2026-01-01/stdout.txt"
touch "$out/initialize-2026-01-01/stdout.txt"
echo "level=WARN" "client: error: no such tool" > "$out/initialize-2026-01-01/stderr.txt"
`)
	list, _, err := s.run(t.Context(), kit("/bin/true"))
	if err != nil || len(list) != 2 {
		t.Fatalf("got %v, %v", list, err)
	}
	if s.fails(clientKit, list[0]) {
		t.Errorf("got %v of a client that finished", list[0])
	}
	if c := list[1].checks; len(c) != 2 || c[1].Status != failure || !strings.HasPrefix(c[1].Error, "client: error: no such tool") {
		t.Errorf("got %v of a client that failed", list[1])
	}
}

// TestJudgeHost: a server that does not check the Host header fails.
func TestJudgeHost(t *testing.T) {
	b, err := startBuild(false)
	if err != nil {
		t.Fatal(err)
	}
	defer b.stop()
	all := &results{}
	if err := judgeHost(t.Context(), all, testBuild, b.url); err != nil {
		t.Fatal(err)
	}
	careless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	defer careless.Close()
	if err := judgeHost(t.Context(), all, shipped, careless.URL); err != nil {
		t.Fatal(err)
	}
	if first, second := all.rows[0], all.rows[1]; first.verdict() != "passed" || second.verdict() != "FAILED" {
		t.Errorf("got %+v of a server that checks, %+v of one that does not", first, second)
	}
}
