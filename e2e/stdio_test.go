package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// child is a server over stdio and the client that started it.
type child struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	stderr lockedBuffer
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

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// spawn starts a server over stdio on a state directory and shakes hands. It is
// killed at the end of the test, if it still runs.
func spawn(t *testing.T, dir string, env ...string) *child {
	t.Helper()
	c := &child{cmd: exec.Command(glovebox(t), "stdio"), done: make(chan struct{}), waiting: make(map[int]chan<- *message)}
	c.cmd.Env = append(environment(t, dir), env...)
	c.cmd.Stderr = &c.stderr
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
		c.cmd.Process.Kill()
		c.wait()
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

// begin sends a request and returns where the answer will come.
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

// send sends a request and waits for the answer. An error of the protocol is an
// answer that failed.
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

// call is try for a call that must not fail.
func (c *child) call(t *testing.T, tool string, args map[string]any) *answer {
	t.Helper()
	a := c.try(t, tool, args)
	if a.IsError {
		t.Fatalf("%s %v: %s", tool, args, a.text())
	}
	return a
}

func (c *child) wait() error {
	<-c.done
	return c.cmd.Wait()
}

// end closes the input and gives the server as long as it takes.
func (c *child) end(t *testing.T) {
	t.Helper()
	c.in.Close()
	if err := c.wait(); err != nil {
		t.Errorf("end of the input: %v\n%s", err, c.stderr.String())
	}
}

// endWithin closes the input, sends SIGTERM after a time and SIGKILL after
// another.
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

// Two clients that name no context have one each, at once and one after the other,
// and nothing of either is lost: a third finds both by the ids that were told.
func TestEachStdioClientHasADefaultContext(t *testing.T) {
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
