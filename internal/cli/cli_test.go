package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/glovebox-dev/glovebox/internal/perplexity/perplexitytest"
	"github.com/glovebox-dev/glovebox/internal/proctest"
)

func TestMain(m *testing.M) {
	Parts() // this executable plays the isolation's parts, as the program does
	// No process may outlive a test, which removes its state, except in
	// TestFinishTemplates_AfterQuickClients. This line also runs in the servers of tests.
	if _, set := os.LookupEnv("GLOVEBOX_FINISH_TEMPLATES"); !set {
		os.Setenv("GLOVEBOX_FINISH_TEMPLATES", "false")
	}
	testscript.Main(proctest.Checked(m), map[string]func(){
		"glovebox": func() {
			os.Exit(Main(context.Background(), os.Args[1:], Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
		},
		"asker":  asker,
		"keeper": keeper,
	})
}

// The scripts run the real program with real boxes. They share a state
// directory, as several programs of one user do.
func TestScripts(t *testing.T) {
	state := t.TempDir()
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("GLOVEBOX_STATE_DIR", state)
			env.Setenv("GLOVEBOX_FINISH_TEMPLATES", "false")
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("GLOVEBOX_ONLY_USER", "0") // also in a container without other users
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"listen":    listenCommand,
			"jsonlines": jsonLines,
			"searchapi": searchAPICommand,
		},
		Condition: func(cond string) (bool, error) {
			return cond == "root" && os.Geteuid() == 0, nil
		},
	})
}

// listenCommand takes a port until the end of the script: listen VARIABLE.
func listenCommand(ts *testscript.TestScript, _ bool, args []string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { ln.Close() })
	ts.Setenv(args[0], strconv.Itoa(ln.Addr().(*net.TCPAddr).Port))
}

// searchAPICommand starts a stand-in for the API of web search until the end of the
// script, and sets variables to its URL and key: searchapi URL KEY.
func searchAPICommand(ts *testscript.TestScript, _ bool, args []string) {
	api, stop := perplexitytest.Start()
	ts.Defer(stop)
	ts.Setenv(args[0], api.URL)
	ts.Setenv(args[1], perplexitytest.Key)
}

// jsonLines fails unless every line of a file is JSON: jsonlines FILE COUNT.
func jsonLines(ts *testscript.TestScript, _ bool, args []string) {
	lines := strings.Split(strings.TrimSpace(ts.ReadFile(args[0])), "\n")
	if want, err := strconv.Atoi(args[1]); err != nil || len(lines) != want {
		ts.Fatalf("got %d lines, want %s: %q", len(lines), args[1], lines)
	}
	for _, line := range lines {
		if !json.Valid([]byte(line)) {
			ts.Fatalf("not JSON: %s", line)
		}
	}
}

// run calls Main in this process.
func run(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = Main(context.Background(), args, Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
	return code, out.String(), errs.String()
}

func TestPrintable(t *testing.T) {
	got := printable("a\x1b[31mb\x07\u009bc\td é")
	if want := `a\x1b[31mb\x07\u009bc` + "\td é"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestHelp_OfEveryCommand(t *testing.T) {
	a := &app{lookup: os.LookupEnv, Streams: Streams{Out: io.Discard, Err: io.Discard}}
	for _, cmd := range a.root().Commands() {
		if !cmd.Runnable() {
			continue // a topic
		}
		code, stdout, stderr := run(cmd.Name(), "--help")
		if code != 0 || stderr != "" || !strings.Contains(stdout, "Usage:") {
			t.Errorf("%s --help: got code %d, stdout %q, stderr %q", cmd.Name(), code, stdout, stderr)
		}
	}
}

// TestMain_LibrariesDoNotLog: net/http logs what a host has sent, perhaps with a secret.
func TestMain_LibrariesDoNotLog(t *testing.T) {
	if code, _, stderr := run("version"); code != 0 {
		t.Fatal(stderr)
	}
	if log.Writer() != io.Discard {
		t.Error("libraries log to standard error")
	}
}
