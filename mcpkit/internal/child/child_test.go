//go:build unix

package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/polltest"
	"github.com/glovebox-dev/glovebox/internal/proctest"
	"github.com/glovebox-dev/glovebox/mcpkit/internal/stream"
)

// TestMain runs the test server if the environment selects it.
func TestMain(m *testing.M) {
	if report := os.Getenv(ttyEnv); report != "" {
		os.Exit(startFromTerminal(report))
	}
	if report := os.Getenv(interruptEnv); report != "" {
		os.Exit(waitForInterrupt(report))
	}
	if dir := os.Getenv(rootInNameEnv); dir != "" {
		os.Exit(startAsRootInName(dir))
	}
	if os.Getenv("CHILD_TEST_SERVER") != "" {
		server := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
		mcp.AddTool(server, &mcp.Tool{Name: "env", Description: "the environment"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			fmt.Println("a line of the log")
			fmt.Fprintln(os.Stderr, "called")
			wd, _ := os.Getwd()
			text := strings.Join(append(os.Environ(), wd), "\n")
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
		})
		if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil && !errors.Is(err, io.EOF) {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(proctest.Main(m))
}

func sh(script string) *Command {
	return &Command{Name: "srv", Argv: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=" + os.Getenv("PATH")}, Grace: 200 * time.Millisecond}
}

func connect(t *testing.T, c *Command) mcp.Connection {
	t.Helper()
	conn, err := c.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestConnect_Session(t *testing.T) {
	t.Setenv("SECRET_OF_THE_HOST", "hunter2")
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var stderr polltest.Buffer
	c := &Command{Name: "srv", Argv: []string{os.Args[0]}, Dir: dir, Env: []string{"CHILD_TEST_SERVER=1", "A=b"}, Stderr: &stderr}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, nil).Connect(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "env"})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := res.Content[0].(*mcp.TextContent).Text, "CHILD_TEST_SERVER=1\nA=b\n"+dir; got != want {
		t.Errorf("the program sees %q, want %q", got, want)
	}
	if err := session.Close(); err != nil {
		t.Error(err)
	}
	if got := stderr.String(); got != "called\n" {
		t.Errorf("standard error is %q", got)
	}
}

func TestConnect_StartErrors(t *testing.T) {
	for _, tt := range []struct {
		c    *Command
		want string
	}{
		{&Command{Name: "srv"}, "it has no command"},
		{&Command{Name: "srv", Argv: []string{"no-such-program-anywhere"}}, `install "no-such-program-anywhere"`},
		{&Command{Name: "srv", Argv: []string{"/dev/null"}}, "permission denied"},
		{&Command{Name: "srv", Argv: []string{"/bin/sh"}, Dir: "/no/such/directory"}, "no such file or directory"},
	} {
		if _, err := tt.c.Connect(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), `"srv"`) {
			t.Errorf("%v: got %v, want %q", tt.c.Argv, err, tt.want)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	cancel(enough)
	if _, err := sh("sleep 100").Connect(ctx); !errors.Is(err, enough) {
		t.Errorf("got %v, want %v", err, enough)
	}
}

func TestExitError_ExplainsExit(t *testing.T) {
	c := connect(t, sh(`echo "first line" >&2; printf 'fatal: no \033[31mtoken\033[0m\n' >&2; exit 3`))
	_, err := c.Read(t.Context())
	var ended *ExitError
	if !errors.As(err, &ended) {
		t.Fatalf("got %v, want ExitError", err)
	}
	if got, want := ended.Error(), `mcp server "srv" ended: exit status 3; it last wrote: first line | fatal: no [31mtoken[0m`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	c = connect(t, sh(`kill -9 $$`))
	if _, err := c.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "signal: killed") {
		t.Errorf("got %v, want the signal", err)
	}
	c = connect(t, sh(`exec >&-; sleep 100`))
	if _, err := c.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "has closed its output") {
		t.Errorf("got %v, want an error about closed output", err)
	}
	// Of much, the end is kept.
	c = connect(t, sh(`head -c 1000000 /dev/zero | tr '\0' x >&2; echo the end >&2; exit 1`))
	if _, err := c.Read(t.Context()); !errors.As(err, &ended) || !strings.HasSuffix(ended.Words, "xthe end") || len(ended.Words) > maxTail {
		t.Errorf("got %v", err)
	}
}

// pids waits until a script has written n process ids, one a line, and returns them.
func pids(t *testing.T, file string, n int) (all []int) {
	t.Helper()
	polltest.Until(t, 20*time.Second, fmt.Sprintf("%s has %d numbers", file, n), func() bool {
		b, _ := os.ReadFile(file)
		if fields := strings.Fields(string(b)); len(fields) >= n && strings.HasSuffix(string(b), "\n") {
			for _, f := range fields {
				pid, err := strconv.Atoi(f)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, pid)
			}
		}
		return all != nil
	})
	return all
}

// gone waits until a process has exited, or is a zombie.
func gone(t *testing.T, pid int) {
	t.Helper()
	polltest.Until(t, 10*time.Second, fmt.Sprintf("leak: process %d ends", pid), func() bool {
		if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
			return true
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err == nil && strings.Contains(string(stat), ") Z ")
	})
}

// A process tree like that of npx, in which all processes ignore signals.
const tree = `trap '' TERM INT HUP
( trap '' TERM INT HUP; sh -c 'echo $$ >>"$0"; while :; do sleep 1000; done' "$0" & echo $$ >>"$0"; wait ) &
echo $$ >>"$0"
`

func TestClose_EndsProcessTree(t *testing.T) {
	for name, rest := range map[string]string{
		"deaf":                     "while :; do sleep 1000; done",
		"ends with its input":      "cat >/dev/null",
		"has ended, leaving some":  "exit 0",
		"crashed, leaving some":    "kill -9 $$",
		"closed its output itself": "exec >&-; while :; do sleep 1000; done",
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "pids")
			c := &Command{Name: "srv", Argv: []string{"/bin/sh", "-c", tree + "while [ $(wc -l <\"$0\") -lt 3 ]; do sleep 0.01; done\n" + rest, file},
				Env: []string{"PATH=" + os.Getenv("PATH")}, Grace: 50 * time.Millisecond}
			conn := connect(t, c)
			all := pids(t, file, 3)
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
			for _, pid := range all {
				gone(t, pid)
			}
		})
	}
}

// A program that exits by itself takes its process tree with it, before the connection
// closes.
func TestExit_EndsProcessTree(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pids")
	c := connect(t, &Command{Name: "srv", Argv: []string{"/bin/sh", "-c", tree + "while [ $(wc -l <\"$0\") -lt 3 ]; do sleep 0.01; done; exit 7", file},
		Env: []string{"PATH=" + os.Getenv("PATH")}, Grace: 10 * time.Second})
	for _, pid := range pids(t, file, 3) {
		gone(t, pid)
	}
	if _, err := c.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "exit status 7") {
		t.Errorf("got %v, want its exit status", err)
	}
}

func TestClose_WaitsForGrace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "end")
	c := sh(`trap 'echo TERM >"` + file + `"' TERM; cat >/dev/null; echo input >"` + file + `"`)
	c.Grace = 10 * time.Second
	connect(t, c).Close()
	if b, err := os.ReadFile(file); err != nil || string(b) != "input\n" {
		t.Errorf("the program noticed %q, %v, want the end of its input", b, err)
	}
	c = sh(`trap 'echo TERM >"` + file + `"; exit' TERM; echo '{"jsonrpc":"2.0","method":"up"}'; while :; do sleep 0.01; done`)
	conn := connect(t, c)
	if _, err := conn.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if b, err := os.ReadFile(file); err != nil || string(b) != "TERM\n" {
		t.Errorf("the program noticed %q, %v, want TERM", b, err)
	}
}

// Idle programs get SIGTERM long before Grace has passed. Programs that work after the
// end of their input are left to it, whichever of their processes works.
func TestClose_IdleProgram(t *testing.T) {
	if _, known := activityOf(os.Getpid()); !known {
		t.Skip("this system does not report the activity of processes")
	}
	const work = `i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done`
	for name, tt := range map[string]struct{ script, want string }{
		"does nothing, nor its child":  {`sleep 1000 & wait`, "TERM"},
		"works on its end":             {work + `; echo input >"$0"`, "input"},
		"has a child work on its end":  {`( ` + work + ` ); echo input >"$0"`, "input"},
		"waits for one child by other": {`( ( ` + work + ` ) & wait ); echo input >"$0"`, "input"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "end")
			c := &Command{Name: "srv", Argv: []string{"/bin/sh", "-c", `trap 'echo TERM >"$0"; exit' TERM
echo '{"jsonrpc":"2.0","method":"up"}'; cat >/dev/null; ` + tt.script, file},
				Env: []string{"PATH=" + os.Getenv("PATH")}, Grace: time.Minute, Idle: 200 * time.Millisecond}
			conn := connect(t, c)
			if _, err := conn.Read(t.Context()); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			conn.Close()
			if took := time.Since(begun); took > 40*time.Second {
				t.Errorf("Close took %v", took)
			}
			if b, err := os.ReadFile(file); err != nil || string(b) != tt.want+"\n" {
				t.Errorf("the program noticed %q, %v, want %s", b, err, tt.want)
			}
		})
	}
}

func TestWrite_ProgramDoesNotRead(t *testing.T) {
	c := sh("sleep 1000")
	c.Stream = stream.Options{MaxMessage: 16 << 20}
	conn := connect(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // enough to come to the write
	defer cancel()
	params := []byte(`{"x":"` + strings.Repeat("x", 1<<20) + `"}`)
	if err := conn.Write(ctx, &jsonrpc.Request{Method: "a", Params: params}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}
	gone(t, conn.(interface{ Process() int }).Process())
}

func TestConnect_ManyConcurrently(t *testing.T) {
	before := descriptors(t)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			conn, err := sh(`cat >/dev/null`).Connect(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			var closing sync.WaitGroup
			for range 3 {
				closing.Go(func() { conn.Close() })
			}
			closing.Wait()
			if _, err := conn.Read(t.Context()); !errors.Is(err, io.EOF) {
				t.Errorf("read after close: %v", err)
			}
		})
	}
	wg.Wait()
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("this system does not list open files:", err)
	}
	return len(names)
}
