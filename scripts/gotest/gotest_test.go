package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/retrylist"
)

// call is a call of gotest.
type call struct {
	name   string
	args   []string       // without the package
	pkg    string         // below testdata
	listed int            // tests retried before
	off    bool           // retries are off
	err    string         // of gotest, "" for success
	runs   map[string]int // of tests
	list   []string       // lines added to the list
	failed []string       // parts of the listed failures
}

func (c call) run(t *testing.T) (output string) {
	t.Helper()
	runs := t.TempDir()
	t.Setenv("GOTEST_RUNS", runs)
	path := filepath.Join(t.TempDir(), "list")
	before := strings.Repeat("earlier: passed when retried\n", c.listed)
	if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	if c.off {
		path = ""
	}
	t.Setenv(retrylist.Env, path)
	failed := filepath.Join(t.TempDir(), "failed")
	if err := os.WriteFile(failed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(failedEnv, failed)
	var out bytes.Buffer
	err := run(t.Context(), append(c.args, "--", "./testdata/"+c.pkg), retrylist.FromEnv(), &out)
	if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
		t.Errorf("got error %v, want %q\n%s", err, c.err, out.String())
	}
	text, readErr := os.ReadFile(failed)
	if readErr != nil {
		t.Fatal(readErr)
	}
	for _, want := range c.failed {
		if !strings.Contains(string(text), want) {
			t.Errorf("got failures\n%s\nwant %q", text, want)
		}
	}
	if err == nil && len(text) > 0 {
		t.Errorf("passed, got failures\n%s", text)
	}
	for test, want := range c.runs {
		marks, _ := os.ReadFile(filepath.Join(runs, test))
		if len(marks) != want {
			t.Errorf("%s ran %d times, want %d\n%s", test, len(marks), want, out.String())
		}
	}
	if !c.off {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want := before
		for _, line := range c.list {
			want += "github.com/glovebox-dev/glovebox/scripts/gotest/testdata/" + line + "\n"
		}
		if string(text) != want {
			t.Errorf("got list %q, want %q", text, want)
		}
	}
	return out.String()
}

func TestRetry(t *testing.T) {
	if testing.Short() {
		t.Skip("runs go test many times")
	}
	for _, c := range []call{
		{name: "flake passes the second time, by itself", pkg: "flaky", args: []string{"-run", "Flaky$|Flaky2|Good"},
			runs: map[string]int{"TestFlaky_part": 2, "TestFlaky2": 2, "TestGood": 1},
			list: []string{"flaky TestFlaky: passed when retried", "flaky TestFlaky2: passed when retried"}},
		{name: "label", pkg: "flaky", args: []string{"-label", "as somebody", "-run", "Flaky$"},
			list: []string{"flaky TestFlaky as somebody: passed when retried"}},
		{name: "off", pkg: "flaky", args: []string{"-run", "Flaky$"}, off: true, err: "exit status 1", runs: map[string]int{"TestFlaky_part": 1},
			failed: []string{"flaky TestFlaky\n    flaky_test.go:"}},
		{name: "failure twice", pkg: "flaky", args: []string{"-run", "Flaky$|Broken"}, err: "exit status 1",
			runs:   map[string]int{"TestFlaky_part": 2, "TestBroken": 2},
			list:   []string{"flaky TestFlaky: passed when retried, its package failed", "flaky TestBroken: did not pass when retried"},
			failed: []string{"flaky TestBroken\n    flaky_test.go:"}},
		{name: "retry skips the test", pkg: "flaky", args: []string{"-run", "SkippedLater"}, err: "did not pass when retried",
			list: []string{"flaky TestSkippedLater: did not pass when retried"}},
		{name: "as many as the whole run may retry", pkg: "flaky", args: []string{"-run", "Flaky[234]"},
			list: []string{"flaky TestFlaky2: passed when retried", "flaky TestFlaky3: passed when retried", "flaky TestFlaky4: passed when retried"}},
		{name: "one too many at once", pkg: "flaky", args: []string{"-run", "Flaky"}, err: "the whole run may retry 3",
			runs: map[string]int{"TestFlaky_part": 1, "TestFlaky2": 1, "TestFlaky3": 1, "TestFlaky4": 1}},
		{name: "one too many with those before", pkg: "flaky", args: []string{"-run", "Flaky[23]"}, listed: 2, err: "2 were retried before",
			runs: map[string]int{"TestFlaky2": 1, "TestFlaky3": 1}},
		{name: "panic", pkg: "crash", args: []string{"-run", "Panic$"}, err: "panic", runs: map[string]int{"TestPanic": 1},
			failed: []string{"crash TestPanic (", "panic: first run", "testdata/crash.TestPanic("}},
		{name: "exit", pkg: "crash", args: []string{"-run", "Exit"}, err: "no retry", runs: map[string]int{"TestExit": 1}},
		{name: "kill", pkg: "crash", args: []string{"-run", "Killed"}, err: "ended during TestKilled", runs: map[string]int{"TestKilled": 1}},
		{name: "panic of another program", pkg: "crash", args: []string{"-run", "ChildPanics"}, err: "TestChildPanics: panic", runs: map[string]int{"TestChildPanics": 1}},
		{name: "panic of another program in a test that passes", pkg: "crash", args: []string{"-v", "-run", "ChildMayPanic|Late"}, runs: map[string]int{"TestChildMayPanic": 1, "TestLate": 2},
			list: []string{"crash TestLate: passed when retried"}},
		{name: "goroutine left", pkg: "crash", args: []string{"-run", "Goroutine"}, err: "TestGoroutine: panic", runs: map[string]int{"TestGoroutine": 1}},
		{name: "time-out", pkg: "crash", args: []string{"-run", "Killed", "-timeout", "1ns"}, err: "no retry"},
		{name: "process left", pkg: "leak", args: []string{"-run", "Process$"}, err: "leak", runs: map[string]int{"TestProcess": 1}},
		{name: "process left by a test that failed", pkg: "leak", args: []string{"-run", "ProcessAndFlake"}, err: "TestProcessAndFlake: leak", runs: map[string]int{"TestProcessAndFlake": 1}},
		{name: "leak in a test", pkg: "leak", args: []string{"-run", "File"}, err: "TestFile: leak", runs: map[string]int{"TestFile": 1}},
		{name: "failed build", pkg: "broken", args: []string{"-tags", "broken"}, err: "failed build"},
		{name: "unknown flag", pkg: "flaky", args: []string{"-nonesuch"}, err: "exit status", failed: []string{"scripts/gotest (test program: exit status 2)\n"}},
		{name: "unknown package", pkg: "nonesuch", args: nil, err: "exit status"},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t) })
	}
}

// A data race, and any other failure under the race detector, fails the run.
func TestRetry_RaceDetector(t *testing.T) {
	if testing.Short() {
		t.Skip("runs go test many times")
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		if os.Getenv("GLOVEBOX_TEST_COMPLETE") != "" {
			t.Fatal("the race detector needs gcc")
		}
		t.Skip("the race detector needs gcc")
	}
	t.Setenv("CGO_ENABLED", "1")
	if runtime.GOARCH == "amd64" {
		t.Setenv("GORACE", "atexit_sleep_ms=10")
	}
	for test, want := range map[string]string{"TestRace": "DATA RACE", "TestFlaky": "late"} {
		c := call{pkg: "race", args: []string{"-race", "-run", test}, err: "race detector", runs: map[string]int{test: 1}}
		if out := c.run(t); !strings.Contains(out, want) {
			t.Errorf("%s: got\n%s\nwant %s", test, out, want)
		}
	}
}

// A test that fails in one order of the tests fails the run with that seed: by itself it
// would pass.
func TestRetry_Order(t *testing.T) {
	if testing.Short() {
		t.Skip("runs go test many times")
	}
	passed, failed := 0, 0
	for _, seed := range []string{"1", "2", "3", "4"} {
		if exec.Command("go", "test", "-shuffle", seed, "./testdata/order").Run() == nil {
			passed++
			call{pkg: "order", args: []string{"-shuffle=" + seed}}.run(t)
		} else {
			failed++
			call{pkg: "order", args: []string{"-shuffle", seed}, err: "random order"}.run(t)
		}
	}
	if passed == 0 || failed == 0 {
		t.Errorf("%d seeds passed and %d failed: want some of both", passed, failed)
	}
}

func TestOutput(t *testing.T) {
	one := []string{"-run", "Good|Broken", "-count=1"}
	quiet := call{pkg: "flaky", args: one, off: true, err: "exit status 1"}.run(t)
	for _, want := range []string{"wrong", "--- FAIL: TestBroken", "FAIL\tgithub.com/"} {
		if !strings.Contains(quiet, want) {
			t.Errorf("no %q in:\n%s", want, quiet)
		}
	}
	for _, bad := range []string{"all is well", "=== RUN", "TestGood"} {
		if strings.Contains(quiet, bad) {
			t.Errorf("%q without -v in:\n%s", bad, quiet)
		}
	}
	if loud := (call{pkg: "flaky", args: append(one, "-v"), off: true, err: "exit status 1"}).run(t); !strings.Contains(loud, "all is well") || !strings.Contains(loud, "=== RUN") {
		t.Errorf("with -v got:\n%s", loud)
	}
	if good := (call{pkg: "flaky", args: []string{"-run", "Good"}, off: true}).run(t); !strings.HasPrefix(good, "ok  \t") || strings.Count(good, "\n") != 1 {
		t.Errorf("of a package that passed got:\n%s", good)
	}
	if out := (call{pkg: "broken", args: []string{"-tags", "broken"}, off: true, err: "exit status"}).run(t); !strings.Contains(out, "undefined: undefined") {
		t.Errorf("of a failed build got:\n%s", out)
	}
}

// The list bounds and names the retried tests over several calls, and the outermost
// script prints it last.
func TestRetry_ListIsPrintedLast(t *testing.T) {
	if testing.Short() {
		t.Skip("runs go test many times")
	}
	program := filepath.Join(t.TempDir(), "gotest")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Setenv("GOTEST", program)
	t.Setenv(retrylist.Env, "")
	// The run that this test is part of keeps its own list in the usual place.
	t.Setenv("TMPDIR", t.TempDir())
	script := func(retry, inner string) (string, error) {
		t.Setenv("GOTEST_RUNS", t.TempDir())
		t.Setenv("GLOVEBOX_TEST_RETRY", retry)
		cmd := exec.Command("bash", "-c", `. ../testlists; trap report_tests EXIT; `+inner)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	const flaky = `"$GOTEST" -run %s -- ./testdata/flaky; `
	calls := func(tests ...string) (text string) {
		for _, test := range tests {
			text += strings.Replace(flaky, "%s", test+"$", 1)
		}
		return text
	}
	nested := `bash -c '. ../testlists; trap report_tests EXIT; ` + calls("TestFlaky") + `echo inner'; ` + calls("TestFlaky2") + `echo outer`
	const prefix = "github.com/glovebox-dev/glovebox/scripts/gotest/testdata/flaky "
	t.Setenv(failedEnv, "")
	want := "inner\n|outer\n\n== RETRIED TESTS\n" + prefix + "TestFlaky: passed when retried\n" + prefix + "TestFlaky2: passed when retried\n"
	out, err := script("1", nested)
	first, last, _ := strings.Cut(want, "|")
	if err != nil || !strings.Contains(out, first) || !strings.HasSuffix(out, last) || strings.Count(out, "RETRIED TESTS") != 1 {
		t.Errorf("got %v:\n%s", err, out)
	}
	if out, err := script("1", calls("TestFlaky", "TestFlaky2", "TestFlaky3", "TestFlaky4")); err == nil || strings.Contains(out, "TestFlaky4: passed when retried") {
		t.Errorf("a fourth retry: got %v:\n%s", err, out)
	}
	if out, err := script("1", calls("TestGood")); err != nil || !strings.HasSuffix(out, "\n== no test was retried\n") {
		t.Errorf("without a retry: got %v:\n%s", err, out)
	}
	if out, err := script("", calls("TestFlaky")); err == nil || !strings.Contains(out, "\n== FAILED TESTS\n"+prefix+"TestFlaky\n    ") || strings.Contains(out, "retried") {
		t.Errorf("with retries off: got %v:\n%s", err, out)
	}
	if out, err := script("1", `(`+nested+`); `+calls("TestBroken")); err == nil || !strings.Contains(out, "\n== FAILED TESTS\n"+prefix+"TestBroken\n    ") {
		t.Errorf("with a failure: got %v:\n%s", err, out)
	}
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "glovebox-tests-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left %q, %v", left, err)
	}
}

// These lines are leaks too, as testing and the client kit print them.
func TestReport_Leak(t *testing.T) {
	for text, want := range map[string]string{
		"    testing.go:1464: TempDir RemoveAll cleanup: unlinkat /tmp/TestA/001/records: directory not empty\n": "leak",
		"    x_test.go:1: leak: process 12 (S): sleep\n":                                                         "leak",
		"        goroutine 12 [select, 3 minutes]:\n":                                                            "goroutines that are left, or a crash",
		"    x_test.go:1: got 3, want 4\n":                                                                       "",
		"=== NAME  TestPanic: leak: \n":                                                                          "",
	} {
		r := newReport(&bytes.Buffer{}, false)
		for _, e := range []string{
			`{"Action":"run","Package":"p","Test":"T"}`,
			`{"Action":"output","Package":"p","Test":"T","Output":` + quote(text) + `}`,
			`{"Action":"output","Package":"p","Test":"T","Output":"--- FAIL: T (0.00s)\n"}`,
			`{"Action":"fail","Package":"p","Test":"T"}`,
			`{"Action":"fail","Package":"p"}`,
		} {
			r.line([]byte(e))
		}
		if got := r.failures(); len(got) != 1 || got[0].final != want {
			t.Errorf("%q: got %+v, want %q", text, got, want)
		}
	}
}

// The output of a package is bounded.
func TestReport_Output(t *testing.T) {
	var out bytes.Buffer
	r := newReport(&out, false)
	long := strings.Repeat("x", 60_000)
	for range 2 * maxLines / len(long) {
		r.line([]byte(`{"Action":"output","Package":"p","Test":"T","Output":` + quote(long) + `}`))
	}
	if size := r.packages["p"].size; size > maxLines {
		t.Errorf("%d bytes wait, the limit is %d", size, maxLines)
	}
	r.end()
	if !strings.HasPrefix(out.String(), "[the first lines") {
		t.Errorf("got %.100q", out.String())
	}
}

func quote(text string) string {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// The outcomes of tests and subtests are listed, so that scripts/test finds those that every
// user skips.
func TestOutcomes(t *testing.T) {
	if testing.Short() {
		t.Skip("runs go test")
	}
	t.Setenv("GOTEST_RUNS", t.TempDir())
	path := filepath.Join(t.TempDir(), "outcomes")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(outcomesEnv, path)
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-run", "Good|Skipped$|Parts", "--", "./testdata/flaky"}, nil, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := ""
	for _, line := range []string{"pass TestGood", "pass TestParts", "pass TestParts/one", "skip TestParts/two", "skip TestSkipped"} {
		outcome, test, _ := strings.Cut(line, " ")
		want += outcome + "\tgithub.com/glovebox-dev/glovebox/scripts/gotest/testdata/flaky\t" + test + "\n"
	}
	if string(text) != want {
		t.Errorf("got %q, want %q", text, want)
	}
}
