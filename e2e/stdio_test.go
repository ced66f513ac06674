package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// child is a stdio server with its client.
type child struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	stderr polltest.Buffer
	done   chan struct{} // closed when its output has ended

	mu      sync.Mutex
	last    int                     // guarded by mu: id of a request
	waiting map[int]chan<- *message // guarded by mu
}

// message is a response.
type message struct {
	ID     int
	Result *answer
	Error  *struct{ Message string }
}

// spawn starts a stdio server on a state directory and initializes the session. The end of
// the test kills it.
func spawn(t *testing.T, dir string, env ...string) *child {
	t.Helper()
	c := &child{cmd: exec.Command(glovebox(t), "stdio"), done: make(chan struct{}), waiting: make(map[int]chan<- *message)}
	c.cmd.Env = append(environment(t, dir), env...)
	c.cmd.Stderr = &c.stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.done)
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 64<<20)
		for lines.Scan() {
			var m message
			if json.Unmarshal(lines.Bytes(), &m) != nil {
				continue
			}
			c.mu.Lock()
			if w := c.waiting[m.ID]; w != nil {
				delete(c.waiting, m.ID)
				w <- &m
			}
			c.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		c.crash()
		if t.Failed() {
			t.Logf("server %d:\n%s", c.cmd.Process.Pid, c.stderr.String())
		}
	})
	c.send(t, "initialize", map[string]any{"protocolVersion": "2025-06-18", "capabilities": map[string]any{}, "clientInfo": map[string]any{"name": "e2e", "version": "1"}})
	if _, err := io.WriteString(c.in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	return c
}

// begin sends a request and returns a channel for the response.
func (c *child) begin(t *testing.T, method string, params any) <-chan *message {
	t.Helper()
	answer := make(chan *message, 1)
	c.mu.Lock()
	c.last++
	id := c.last
	c.waiting[id] = answer
	c.mu.Unlock()
	line, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "method": method, "params": params})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.in.Write(append(line, '\n')); err != nil {
		t.Fatalf("%s: %v\n%s", method, err, c.stderr.String())
	}
	return answer
}

// send sends a request and waits for the response. It returns a JSON-RPC error as a failed
// result.
func (c *child) send(t *testing.T, method string, params any) *answer {
	t.Helper()
	select {
	case m := <-c.begin(t, method, params):
		if m.Error != nil {
			return &answer{IsError: true, Content: []content{{Type: "text", Text: m.Error.Message}}}
		}
		return m.Result
	case <-c.done:
		t.Fatalf("%s: the server ended\n%s", method, c.stderr.String())
	case <-time.After(2 * time.Minute):
		t.Fatalf("%s: no answer within two minutes\n%s", method, c.stderr.String())
	}
	return nil
}

// try calls a tool.
func (c *child) try(t *testing.T, tool string, args map[string]any) *answer {
	t.Helper()
	return c.send(t, "tools/call", map[string]any{"name": tool, "arguments": args})
}

// call is try for a call that must succeed.
func (c *child) call(t *testing.T, tool string, args map[string]any) *answer {
	t.Helper()
	a := c.try(t, tool, args)
	if a.IsError {
		t.Fatalf("%s %v: %s", tool, args, a.text())
	}
	return a
}

// crash kills the server itself, which the process that the client has started would outlive
// otherwise, and waits for its end.
func (c *child) crash() {
	for _, server := range children(c.cmd.Process.Pid) {
		_ = syscall.Kill(server, syscall.SIGKILL) // it may have ended
	}
	c.cmd.Process.Kill()
	_ = c.wait() // the signal
}

func (c *child) wait() error {
	<-c.done
	return c.cmd.Wait()
}

// end closes the input and waits for the server to exit.
func (c *child) end(t *testing.T) {
	t.Helper()
	c.in.Close()
	if err := c.wait(); err != nil {
		t.Errorf("end of the input: %v\n%s", err, c.stderr.String())
	}
}

// endWithin closes the input, sends SIGTERM after term and SIGKILL after another kill.
func (c *child) endWithin(term, kill time.Duration) {
	c.in.Close()
	signal := func(after time.Duration, sig syscall.Signal) bool {
		select {
		case <-c.done:
			return false
		case <-time.After(after):
			_ = c.cmd.Process.Signal(sig)
			return true
		}
	}
	if signal(term, syscall.SIGTERM) {
		signal(kill, syscall.SIGKILL)
	}
	_ = c.wait() // the signal
}

// Each client that names no context gets one of its own. A third client finds both by
// their ids, with their state.
func TestDefaultContext_OfEachStdioClient(t *testing.T) {
	t.Parallel()
	dir := state(t)
	a, b := spawn(t, dir), spawn(t, dir)
	var ids []string
	for i, c := range []*child{a, b} {
		made := c.call(t, "run_code", map[string]any{"code": fmt.Sprintf("x = %d; open('note', 'w').write('%d')", i, i)})
		if made.str("context_id") == "" || made.StructuredContent["context_created"] != true {
			t.Fatalf("client %d: got %s, want the id of a new context", i, made.text())
		}
		ids = append(ids, made.str("context_id"))
		if again := c.call(t, "run_code", map[string]any{"code": "print(x, open('note').read())"}); again.str("stdout") != fmt.Sprintf("%d %d\n", i, i) {
			t.Errorf("client %d, again: got %s", i, again.text())
		}
	}
	a.end(t)
	b.end(t)
	c := spawn(t, dir)
	if fresh := c.call(t, "run_code", map[string]any{"code": "print('x' in globals())"}); fresh.str("stdout") != "False\n" || fresh.StructuredContent["context_created"] != true {
		t.Errorf("a third client: got %s, want a new context", fresh.text())
	}
	list, err := json.Marshal(c.call(t, "list_contexts", map[string]any{}).StructuredContent)
	if err != nil {
		t.Fatal(err)
	}
	for i, id := range ids {
		if !strings.Contains(string(list), id) {
			t.Errorf("the context of client %d is not listed: %s", i, list)
		}
		if got := c.call(t, "run_code", map[string]any{"context_id": id, "code": "print(x, open('note').read())"}); got.str("stdout") != fmt.Sprintf("%d %d\n", i, i) {
			t.Errorf("the context of client %d: got %s", i, got.text())
		}
	}
	c.end(t)
}

// An id that a client chose names one box among all servers of a state directory. A server
// that does not hold it returns an error instead of creating an empty second box, and
// takes the box over when the other server has ended.
func TestBoxID_HeldByAnotherServer(t *testing.T) {
	t.Parallel()
	dir := state(t)
	a, b := spawn(t, dir), spawn(t, dir)
	a.call(t, "execute_code", map[string]any{"session_id": "shared", "code": "x = 1"})
	id := a.call(t, "create_context", map[string]any{"name": "of a"}).str("context_id")
	a.call(t, "run_code", map[string]any{"context_id": id, "code": "x = 2"})
	for tool, args := range map[string]map[string]any{
		"execute_code": {"session_id": "shared", "code": "'x' in globals()"},
		"stop_session": {"session_id": "shared"},
		"run_code":     {"context_id": id, "code": "x"},
		"stop_context": {"context_id": "of a"},
	} {
		if got := b.try(t, tool, args); !got.IsError || !strings.Contains(got.text(), "another Glovebox server process") || !strings.Contains(got.text(), "end the other client") {
			t.Errorf("%s of another server's box: got %s", tool, got.text())
		}
	}
	if got := a.call(t, "execute_code", map[string]any{"session_id": "shared", "code": "print(x)"}); got.str("stdout") != "1\n" {
		t.Errorf("the server that has it: got %s", got.text())
	}
	a.in.Close() // and does not wait: the next server waits for it to let go
	if got := b.call(t, "execute_code", map[string]any{"session_id": "shared", "code": "print(x)"}); got.str("stdout") != "1\n" {
		t.Errorf("the session, when the other server ends: got %s", got.text())
	}
	if got := b.call(t, "run_code", map[string]any{"context_id": "of a", "code": "print(x)"}); got.str("stdout") != "2\n" {
		t.Errorf("the context, when the other server ends: got %s", got.text())
	}
	a.end(t)
	b.end(t)
}

// If two servers get the same new id at the same time, one creates the box and the other
// returns an error.
func TestBoxID_CreatedByTwoServersAtOnce(t *testing.T) {
	t.Parallel()
	dir := state(t)
	a, b := spawn(t, dir), spawn(t, dir)
	for i := range 10 {
		args := map[string]any{"session_id": fmt.Sprint("s", i), "code": "n = globals().get('n', 0) + 1; print(n)"}
		one := a.begin(t, "tools/call", map[string]any{"name": "execute_code", "arguments": args})
		other := b.begin(t, "tools/call", map[string]any{"name": "execute_code", "arguments": args})
		made := 0
		for _, m := range []*message{<-one, <-other} {
			switch {
			case m.Error == nil && !m.Result.IsError:
				made++
			case m.Error != nil && strings.Contains(m.Error.Message, "another Glovebox server"),
				m.Result != nil && strings.Contains(m.Result.text(), "another Glovebox server"):
			default:
				t.Errorf("id %d: got %+v", i, m)
			}
		}
		if made > 1 {
			t.Errorf("id %d: both servers made a box", i)
		}
	}
	a.end(t)
	b.end(t)
}

// The first call on the id of a box that its server never wrote reports the loss, however
// soon that comes after the start of the next server.
func TestLostBox_ReportedAtOnce(t *testing.T) {
	t.Parallel()
	dir := state(t)
	for range 3 {
		a := spawn(t, dir)
		id := a.call(t, "create_context", map[string]any{"name": "lost"}).str("context_id")
		a.call(t, "execute_code", map[string]any{"session_id": "gone", "code": "x = 1"})
		a.crash()

		b := spawn(t, dir)
		for _, name := range []string{id, "lost"} {
			if got := b.try(t, "run_code", map[string]any{"context_id": name, "code": "1"}); !got.IsError || !strings.Contains(got.text(), "killed before the box had been written") {
				t.Errorf("context %s: got %s", name, got.text())
			}
		}
		got := b.call(t, "execute_code", map[string]any{"session_id": "gone", "code": "print('x' in globals())"})
		if got.StructuredContent["state_lost"] != true || !strings.Contains(got.text(), "killed before the box had been written") {
			t.Errorf("session: got %s", got.text())
		}
		b.call(t, "stop_session", map[string]any{"session_id": "gone"})
		b.end(t)
	}
}

// written counts the boxes with data on disk.
func written(t *testing.T, dir string) int {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "snapshots", "records", "*", "saved.json"))
	if err != nil {
		t.Fatal(err)
	}
	return len(found)
}

// A client that ends its server as mcporter does (end of input, SIGTERM and SIGKILL within
// a second and a half) loses at most the last call of each box, even on a busy machine,
// and the next call reports that loss.
func TestStop_ClientKillsServerEarly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		boxes   int
		running bool
	}{{"one box", 1, false}, {"three boxes", 3, false}, {"under a call", 2, true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := state(t)
			a := spawn(t, dir)
			ids := make([]string, c.boxes)
			for i := range ids {
				ids[i] = a.call(t, "create_context", map[string]any{"name": fmt.Sprint("c", i)}).str("context_id")
				a.call(t, "run_code", map[string]any{"context_id": ids[i], "code": fmt.Sprintf("x, last = %d, False", i)})
			}
			until(t, "all are on disk", func() bool { return written(t, dir) == c.boxes })
			for _, id := range ids {
				a.call(t, "run_code", map[string]any{"context_id": id, "code": "last = True"})
			}
			if c.running {
				a.begin(t, "tools/call", map[string]any{"name": "run_code", "arguments": map[string]any{
					"context_id": ids[0], "timeout": 60, "code": "import time; open('on', 'w').close(); time.sleep(50); x = 'over'",
				}})
				until(t, "the code runs", func() bool {
					return !a.try(t, "download_file", map[string]any{"context_id": ids[0], "path": "on"}).IsError
				})
			}
			a.endWithin(700*time.Millisecond, 700*time.Millisecond)

			b := spawn(t, dir)
			for i, id := range ids {
				got := b.try(t, "run_code", map[string]any{"context_id": id, "code": "print(x, last)"})
				whole, behind := fmt.Sprintf("%d True\n", i), fmt.Sprintf("%d False\n", i)
				if said := got.str("stdout"); said != whole && (said != behind || got.StructuredContent["state_lost"] != true) {
					t.Errorf("context %d after the end: got %s", i, got.text())
				}
			}
			b.end(t)
		})
	}
}

// A server that stops during a call saves the results of earlier calls at once, without
// waiting for that call.
func TestStop_SavesBoxDuringCall(t *testing.T) {
	t.Parallel()
	dir := state(t)
	a := spawn(t, dir, "GLOVEBOX_PAUSE_AFTER=never") // which writes none before
	id := a.call(t, "create_context", map[string]any{"name": "c"}).str("context_id")
	a.sleeps(t, id)
	if n := written(t, dir); n != 0 {
		t.Fatalf("%d boxes are on disk during the first call", n)
	}
	a.in.Close() // the answer is still read
	until(t, "the box is on disk", func() bool { return written(t, dir) == 1 })
	a.crash()
	b := spawn(t, dir)
	if got := b.try(t, "run_code", map[string]any{"context_id": id, "code": "print(x)"}); got.str("stdout") != "1\n" {
		t.Errorf("after the kill: got %s", got.text())
	}
	b.end(t)
}

// A new box is on disk during a call that takes long, such as an installation: a server that is
// killed then loses the call, not the state before it.
func TestSave_NewBoxDuringLongCall(t *testing.T) {
	t.Parallel()
	dir := state(t)
	a := spawn(t, dir)
	id := a.call(t, "create_context", map[string]any{"name": "c"}).str("context_id")
	a.sleeps(t, id)
	until(t, "the box is on disk", func() bool { return written(t, dir) == 1 })
	a.crash()
	b := spawn(t, dir)
	got := b.try(t, "run_code", map[string]any{"context_id": id, "code": "print(x)"})
	if got.str("stdout") != "1\n" || got.StructuredContent["state_lost"] != true {
		t.Errorf("after the kill: got %s, want the state before the call and the loss of the call", got.text())
	}
	b.end(t)
}

// sleeps begins a call of a context that sets x to 1 and then sleeps, and waits until it does.
func (c *child) sleeps(t *testing.T, id string) {
	t.Helper()
	c.begin(t, "tools/call", map[string]any{"name": "run_code", "arguments": map[string]any{
		"context_id": id, "timeout": 120, "code": "import time; x = 1; open('on', 'w').close(); time.sleep(100)",
	}})
	until(t, "the code runs", func() bool {
		return !c.try(t, "download_file", map[string]any{"context_id": id, "path": "on"}).IsError
	})
}

// A client may kill the process that it has started, and its process group, at any moment: at once
// after a call, or during one. The server stops as if it had been asked to, so that nothing is lost
// but the call, and lets go of the client's streams. The next server waits for the box.
func TestStop_ClientKillsServerAtOnce(t *testing.T) {
	t.Parallel()
	for _, during := range []bool{false, true} {
		t.Run(fmt.Sprint("during a call ", during), func(t *testing.T) {
			t.Parallel()
			dir := state(t)
			a := spawn(t, dir, "GLOVEBOX_PAUSE_AFTER=never") // which writes none before
			id := a.call(t, "create_context", map[string]any{"name": "c"}).str("context_id")
			if during {
				a.sleeps(t, id)
			} else {
				a.call(t, "run_code", map[string]any{"context_id": id, "code": "x = 1; open('f', 'wb').write(bytes(50_000_000))"})
			}
			server := children(a.cmd.Process.Pid)
			if err := syscall.Kill(-a.cmd.Process.Pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			_ = a.wait() // the signal; returns when the server has let go of the output
			b := spawn(t, dir)
			list := b.call(t, "list_contexts", map[string]any{})
			if !strings.Contains(list.text(), id) { // on disk already, or in use by the killed server
				t.Errorf("after the kill, the context is not listed: %s", list.text())
			}
			got := b.try(t, "run_code", map[string]any{"context_id": id, "code": "print(x)"})
			if cut := strings.Contains(got.text(), "were cut off"); got.str("stdout") != "1\n" || cut != during {
				t.Errorf("after the kill: got %s", got.text())
			}
			b.end(t)
			until(t, "the killed server has ended", func() bool {
				return len(server) > 0 && !slices.ContainsFunc(server, running)
			})
		})
	}
}

// running reports whether a process runs: one that has ended may still have its parent to wait for.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// A stopping server saves the most recently used boxes first: it begins with a box only when
// all that were used later are written, but for those it writes at the same time.
func TestStop_SavesLastUsedFirst(t *testing.T) {
	t.Parallel()
	dir := state(t)
	a := spawn(t, dir, "GLOVEBOX_PAUSE_AFTER=never", "GOMAXPROCS=2") // which writes none before
	const n, atOnce = 8, 2                                           // box.writers of two processors
	used := map[string]int{}                                         // the order in which the boxes were used
	for i := range n {
		id := a.call(t, "create_context", map[string]any{"name": fmt.Sprint("c", i)}).str("context_id")
		used[id] = i
		a.call(t, "run_code", map[string]any{"context_id": id, "code": "x = 1"})
	}
	a.end(t)
	records, err := filepath.Glob(filepath.Join(dir, "snapshots", "records", "*", "saved.json"))
	if err != nil || len(records) != n {
		t.Fatalf("on disk: %v, %v", records, err)
	}
	written := make([]time.Time, n) // in the order of use
	for _, path := range records {
		var saved struct {
			Record struct {
				BoxID string `json:"box_id"`
			} `json:"record"`
		}
		data, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(data, &saved)
		}
		info, statErr := os.Stat(path)
		if err != nil || statErr != nil {
			t.Fatal(err, statErr)
		}
		written[used[saved.Record.BoxID]] = info.ModTime()
	}
	for i, at := range written {
		later := 0 // of those used later, how many were not written yet
		for _, other := range written[i+1:] {
			if other.After(at) {
				later++
			}
		}
		if later >= atOnce {
			t.Errorf("box %d was written before %d boxes used later, of which %d are written at once: %v", i, later, atOnce, written)
		}
	}
}

// A new box is saved within seconds of its first call, not only when it is paused. A later
// SIGKILL then loses only the calls since.
func TestSave_NewBoxWithinSeconds(t *testing.T) {
	t.Parallel()
	dir := state(t)
	a := spawn(t, dir)
	id := a.call(t, "create_context", map[string]any{"name": "new"}).str("context_id")
	a.call(t, "run_code", map[string]any{"context_id": id, "code": "x = 1"})
	begun := time.Now()
	until(t, "the box is on disk", func() bool { return written(t, dir) == 1 })
	if took := time.Since(begun); took > 15*time.Second { // it is paused after 30
		t.Errorf("the new box was written after %v", took)
	}
	a.crash()
	b := spawn(t, dir)
	if got := b.try(t, "run_code", map[string]any{"context_id": id, "code": "print(x)"}); got.str("stdout") != "1\n" {
		t.Errorf("after the kill: got %s", got.text())
	}
	b.end(t)
}

// An idle box is saved and paused as soon as it has been idle for pause-after.
func TestSave_IdleBoxAtPauseAfter(t *testing.T) {
	t.Parallel()
	const after = 12 * time.Second
	a := spawn(t, state(t), fmt.Sprintf("GLOVEBOX_PAUSE_AFTER=%d", after/time.Second))
	a.call(t, "run_code", map[string]any{"code": "x = 1"})
	begun := time.Now()
	until(t, "the box is paused", func() bool {
		list, err := json.Marshal(a.call(t, "list_contexts", map[string]any{}).StructuredContent)
		return err == nil && strings.Contains(string(list), `"paused"`)
	})
	if took := time.Since(begun); took < after-time.Second || took > 2*after { // the machine may be busy
		t.Errorf("paused after %v, want %v", took, after)
	}
	a.end(t)
}
