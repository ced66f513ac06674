package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// server is a running glovebox serve.
type server struct {
	t        *testing.T
	cmd      *exec.Cmd
	endpoint string
	ended    chan struct{} // closed when its output has ended

	mu  sync.Mutex
	log []string // guarded by mu; the lines so far
}

// start starts a server on a free port. It is killed at the end of the test if
// it still runs.
func start(t *testing.T, state string, env []string, args ...string) *server {
	t.Helper()
	s := &server{t: t, ended: make(chan struct{})}
	s.cmd = exec.Command(glovebox(t), append([]string{"serve", "--port", "0", "--preload", "none"}, args...)...)
	s.cmd.Env = append(append(os.Environ(), "GLOVEBOX_STATE_DIR="+state), env...)
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.ended)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			s.mu.Lock()
			s.log = append(s.log, lines.Text())
			s.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		s.cmd.Process.Kill() // fails if it has ended, as it should have
		<-s.ended
		s.cmd.Wait()
		if t.Failed() {
			t.Logf("server:\n%s", strings.Join(s.lines(), "\n"))
		}
	})
	return s
}

func (s *server) lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

// find returns the index of the first line from the given one on that has all of
// words, or -1.
func (s *server) find(from int, words ...string) int {
	for i, line := range s.lines() {
		if i >= from && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			return i
		}
	}
	return -1
}

// wait waits for a line with all of words and returns its index.
func (s *server) wait(from int, words ...string) int {
	s.t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if i := s.find(from, words...); i >= 0 {
			return i
		}
		select {
		case <-s.ended:
			s.t.Fatalf("the server ended without a line with %q", words)
		default:
		}
		if time.Now().After(end) {
			s.t.Fatalf("no line with %q", words)
		}
	}
}

// exit waits for the end of the server and returns its exit code.
func (s *server) exit(limit time.Duration) int {
	s.t.Helper()
	select {
	case <-s.ended:
	case <-time.After(limit):
		s.t.Fatalf("the server has not ended after %v", limit)
	}
	s.cmd.Wait() // its error is the exit code
	return s.cmd.ProcessState.ExitCode()
}

// stop asks the server to end.
func (s *server) stop() {
	s.t.Helper()
	s.cmd.Process.Signal(syscall.SIGTERM)
	if code := s.exit(time.Minute); code != 0 {
		s.t.Errorf("exit code %d after SIGTERM", code)
	}
}

// connect returns a client of the official Go SDK.
func (s *server) connect() *client {
	s.t.Helper()
	if s.endpoint == "" {
		i := s.wait(0, "is ready: http://")
		s.endpoint = endpoint.FindString(s.lines()[i])
	}
	c := mcp.NewClient(&mcp.Implementation{Name: "glovebox-e2e", Version: "1"}, nil)
	session, err := c.Connect(s.t.Context(), &mcp.StreamableClientTransport{Endpoint: s.endpoint}, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { session.Close() })
	return &client{s.t, session}
}

type client struct {
	t *testing.T
	*mcp.ClientSession
}

// call calls a tool and returns its structured result.
func (c *client) call(tool string, args map[string]any) (map[string]any, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
	defer cancel()
	res, err := c.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tool, err)
	}
	if res.IsError {
		text, _ := json.Marshal(res.Content)
		return nil, fmt.Errorf("%s: %s", tool, text)
	}
	out, ok := res.StructuredContent.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s: structured content is %T", tool, res.StructuredContent)
	}
	return out, nil
}

// create makes a context and says where its box came from.
func (c *client) create(name string) (id, source string, err error) {
	out, err := c.call("create_context", map[string]any{"name": name})
	if err != nil {
		return "", "", err
	}
	id, _ = out["context_id"].(string)
	source, _ = out["source"].(string)
	return id, source, nil
}

// run runs Python in a context and returns what it prints.
func (c *client) run(id, code string) (string, error) {
	out, err := c.call("run_code", map[string]any{"context_id": id, "code": code})
	if err != nil {
		return "", err
	}
	if out["success"] != true {
		return "", fmt.Errorf("run_code %.60q: %v", code, out["stderr"])
	}
	stdout, _ := out["stdout"].(string)
	return strings.TrimSpace(stdout), nil
}

// needPool skips the test unless the binary has a pool.
func needPool(t *testing.T) {
	t.Helper()
	help, err := exec.Command(glovebox(t), "serve", "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(help), "--pool-size") {
		t.Skip("this binary has no pool: serve has no flag --pool-size")
	}
}

// needSource skips the test unless create_context tells where a box came from.
func needSource(t *testing.T, c *client) {
	t.Helper()
	list, err := c.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range list.Tools {
		if schema, _ := json.Marshal(tool.OutputSchema); tool.Name == "create_context" && !strings.Contains(string(schema), `"source"`) {
			t.Skip("the result of create_context has no source")
		}
	}
}

// residue prints what a box has of an earlier one, a number that no other box
// draws, and leaves traces for a later one.
const residue = `
import os, random, subprocess
seen = [n for n in ("mark",) if n in globals()] + [v for v in os.environ if v == "MARK"]
paths = [os.path.expanduser(p) for p in ("/tmp/mark", "~/mark", "/dev/shm/mark")]
seen += [p for p in paths if os.path.exists(p)]
for pid in os.listdir("/proc"):
    if pid.isdigit() and "86399" in open(f"/proc/{pid}/cmdline").read():
        seen.append("process")
print(seen, random.getrandbits(64))
mark = os.environ["MARK"] = "mark"
for p in paths:
    open(p, "w").write("mark")
subprocess.Popen(["sleep", "86399"], start_new_session=True)
del seen, paths, pid, p
`

// TestPool drives a server with a pool of 3 from its start to its end.
func TestPool(t *testing.T) {
	needPool(t)
	s := start(t, t.TempDir(), nil, "--pool-size", "3", "--log-level", "debug")
	c := s.connect()
	checked := s.wait(0, "health check passed")

	// The log tells the steps in their order.
	at := 0
	for _, words := range [][]string{
		{"level=INFO", "pool begins to fill", "template=python", "size=3"},
		{"level=INFO", "pool member is ready", "template=python", "ready=1"},
		{"level=INFO", "pool member is ready", "template=python", "ready=2"},
		{"level=INFO", "pool member is ready", "template=python", "ready=3"},
		{"level=INFO", "pool is full", "template=python"},
		{"level=INFO", "health check passed"},
	} {
		i := s.find(at, words...)
		if i < 0 || i > checked {
			t.Fatalf("the log has no line with %q where it should be", words)
		}
		at = i
	}

	needSource(t, c)
	id, source, err := c.create("first")
	if err != nil || source != "warm" {
		t.Fatalf("create_context: got source %q, %v, want warm", source, err)
	}
	if _, err := c.run(id, residue); err != nil {
		t.Fatal(err)
	}
	out, err := c.run(id, residue)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []string{"'mark'", "'MARK'", "/tmp/mark", "/home/user/mark", "/dev/shm/mark", "'process'"} {
		if !strings.Contains(out, w) {
			t.Errorf("a box does not see its own traces: got %q, want %s among them", out, w)
		}
	}
	s.wait(checked+1, "pool member is ready", "template=python", "ready=3")

	// More at once than the pool has.
	const burst = 10
	var mu sync.Mutex
	sources, outputs := make(map[string]int), make(map[string]int)
	var ids []string
	var wg sync.WaitGroup
	for i := range burst {
		wg.Go(func() {
			id, source, err := c.create(fmt.Sprintf("burst-%d", i))
			if err != nil {
				t.Error(err)
				return
			}
			out, err := c.run(id, residue)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			ids = append(ids, id)
			sources[source]++
			outputs[out]++
		})
	}
	wg.Wait()
	if sources["warm"] == 0 || sources["cold"] == 0 || sources["warm"]+sources["cold"] != burst {
		t.Errorf("%d creates at once: got sources %v, want some warm and the others cold", burst, sources)
	}
	for out, n := range outputs {
		if !strings.HasPrefix(out, "[] ") || n != 1 {
			t.Errorf("%d boxes print %q, want each to have seen nothing and to have drawn a number of its own", n, out)
		}
	}
	full := len(s.lines())
	for _, id := range append(ids, id) {
		if _, err := c.call("stop_context", map[string]any{"context_id": id}); err != nil {
			t.Error(err)
		}
	}
	// A box of the pool that was made while others lived, and a later one.
	for i := range 4 {
		id, source, err := c.create(fmt.Sprintf("later-%d", i))
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.run(id, residue)
		if err != nil || !strings.HasPrefix(out, "[] ") || outputs[out] != 0 {
			t.Errorf("a later box (%s): got %q, %v", source, out, err)
		}
		outputs[out]++
	}
	if i := s.find(full, "level=WARN"); i >= 0 {
		t.Errorf("the log warns: %s", s.lines()[i])
	}
	s.stop()
}

// TestBrokenPython holds that a server that cannot make any box says so and ends.
func TestBrokenPython(t *testing.T) {
	needPool(t)
	const words = "this Python is broken"
	for _, c := range []struct {
		name  string
		make  func(t *testing.T, dir string) string // returns GLOVEBOX_PYTHON
		wants []string
	}{
		{"everywhere", func(t *testing.T, dir string) string {
			file := filepath.Join(dir, "python3")
			if err := os.WriteFile(file, []byte("#!/bin/sh\necho "+words+" >&2\nexit 7\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			return file
		}, []string{words, "GLOVEBOX_PYTHON"}},
		{"in boxes", func(t *testing.T, dir string) string {
			venv := filepath.Join(dir, "venv")
			if out, err := exec.Command("/usr/bin/python3", "-m", "venv", "--without-pip", venv).CombinedOutput(); err != nil {
				t.Skipf("no virtual environment can be made: %v: %s", err, out)
			}
			sites, err := filepath.Glob(filepath.Join(venv, "lib", "python3*", "site-packages"))
			if err != nil || len(sites) != 1 {
				t.Fatalf("site-packages of the environment: %v, %v", sites, err)
			}
			// The host asks in isolated mode what there is.
			code := "import os, sys; sys.flags.isolated or (os.write(2, b'" + words + "\\n'), os._exit(7))\n"
			if err := os.WriteFile(filepath.Join(sites[0], "broken.pth"), []byte(code), 0o644); err != nil {
				t.Fatal(err)
			}
			return filepath.Join(venv, "bin", "python3")
		}, []string{"health check", "python", words}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			// The user of boxes needs a way to the interpreter.
			for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
				os.Chmod(d, 0o755) // some are not ours to change and need not be
			}
			state := filepath.Join(dir, "state")
			s := start(t, state, []string{"GLOVEBOX_PYTHON=" + c.make(t, dir)}, "--pool-size", "3")
			if code := s.exit(3 * time.Minute); code != 1 {
				t.Errorf("got exit code %d, want 1", code)
			}
			said := strings.Join(s.lines(), "\n")
			i := s.find(0, "glovebox: error: ")
			if i < 0 || s.find(i, "glovebox: hint: ") < 0 {
				t.Fatal("the server does not say why it ends and what helps")
			}
			for _, w := range c.wants {
				if !strings.Contains(said[strings.Index(said, "glovebox: error: "):], w) {
					t.Errorf("the error does not say %q", w)
				}
			}
			if left := instances(t, state); len(left) > 0 {
				t.Errorf("left in the state directory: %q", left)
			}
		})
	}
}

// TestKilledServer holds that the next start removes what a killed server has
// left, and nothing of one that lives.
func TestKilledServer(t *testing.T) {
	needPool(t)
	state := t.TempDir()
	begin := func() *server {
		s := start(t, state, nil, "--pool-size", "1")
		s.wait(0, "health check passed")
		return s
	}
	living := begin()
	mine := instances(t, state)
	victim := begin()
	theirs := slices.DeleteFunc(instances(t, state), func(name string) bool { return slices.Contains(mine, name) })
	if len(mine) != 1 || len(theirs) != 1 {
		t.Fatalf("instances of the servers: %q and %q, want one each", mine, theirs)
	}
	lc := living.connect()
	lid, _, err := lc.create("box")
	if err == nil {
		_, err = lc.run(lid, "x = 6 * 7")
	}
	if err != nil {
		t.Fatal(err)
	}
	vc := victim.connect()
	vid, _, err := vc.create("box")
	if err == nil {
		_, err = vc.run(vid, "x = 1")
	}
	if err != nil {
		t.Fatal(err)
	}

	pids := descendants(t, victim.cmd.Process.Pid)
	if len(pids) < 4 {
		t.Fatalf("the server has the processes %v, want those of two boxes at least", pids)
	}
	if err := victim.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		left := slices.DeleteFunc(slices.Clone(pids), func(pid int) bool { return !lives(pid) })
		if len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("processes %v outlive their server", left)
		}
	}
	victim.exit(time.Minute)

	next := begin()
	if got := instances(t, state); len(got) != 2 || !slices.Contains(got, mine[0]) || slices.Contains(got, theirs[0]) {
		t.Errorf("instances: got %q, want %q, a new one, and %q no more", got, mine[0], theirs[0])
	}
	for _, dir := range []string{state, "/sys/fs/cgroup"} {
		if left := named(t, dir, theirs[0]); len(left) > 0 {
			t.Errorf("left of the killed server: %q", left)
		}
	}
	for _, pid := range []string{"self", strconv.Itoa(next.cmd.Process.Pid), strconv.Itoa(living.cmd.Process.Pid)} {
		mounts, err := os.ReadFile(filepath.Join("/proc", pid, "mountinfo"))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(mounts), theirs[0]) {
			t.Errorf("mounts of the killed server are left, as process %s sees it", pid)
		}
	}
	if out, err := lc.run(lid, "print(x)"); err != nil || out != "42" {
		t.Errorf("the context of the other server: got %q, %v", out, err)
	}
	nc := next.connect()
	if nid, _, err := nc.create("fresh"); err != nil {
		t.Error(err)
	} else if out, err := nc.run(nid, "print(6*7)"); err != nil || out != "42" {
		t.Errorf("a context of the next server: got %q, %v", out, err)
	}
	living.stop()
	next.stop()
	if left := instances(t, state); len(left) > 0 {
		t.Errorf("left after the servers have ended: %q", left)
	}
	if left := named(t, "/sys/fs/cgroup", mine[0]); len(left) > 0 {
		t.Errorf("left after the server has ended: %q", left)
	}
}

// instances lists the directories of single servers.
func instances(t *testing.T, state string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(state, "gvisor"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// named lists what is below dir and has part in its name. What cannot be read or
// vanishes meanwhile is passed over.
func named(t *testing.T, dir, part string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.Contains(filepath.Base(path), part) {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// stat returns state and parent of a process; the state is empty if there is none.
func stat(pid int) (state string, parent int) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0
	}
	fields := strings.Fields(string(b)[strings.LastIndexByte(string(b), ')')+1:])
	parent, _ = strconv.Atoi(fields[1])
	return fields[0], parent
}

// lives reports whether a process runs. A zombie is waited for by whoever adopts
// orphans here.
func lives(pid int) bool {
	state, _ := stat(pid)
	return state != "" && state != "Z"
}

// descendants lists a process and those below it.
func descendants(t *testing.T, pid int) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	children := make(map[int][]int)
	for _, e := range entries {
		if child, err := strconv.Atoi(e.Name()); err == nil {
			_, parent := stat(child)
			children[parent] = append(children[parent], child)
		}
	}
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}
