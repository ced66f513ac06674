//go:build linux

package client_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/engine/stdiolink"
	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/embed/embedtest"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// guest is a real agent in a process without isolation.
type guest struct {
	home   string
	cmd    *exec.Cmd
	stream *stdiolink.Stream
}

func (g *guest) Dial(context.Context) (io.ReadWriteCloser, error) { return g.stream.Dial() }

// newGuest starts an agent that ends with the test.
func newGuest(t testing.TB) *guest {
	t.Helper()
	p := embedtest.Program(t)
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	g := &guest{home: t.TempDir() + "/home", stream: stdiolink.New(outR, inW)}
	g.cmd = &exec.Cmd{Path: p.Path, Args: p.Args, Stdin: inR, Stdout: outW, Stderr: os.Stderr}
	if err := g.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	inR.Close()
	outW.Close()
	t.Cleanup(func() {
		g.stream.Close()
		done := make(chan error, 1)
		go func() { done <- g.cmd.Wait() }()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("agent ended: %v", err)
			}
		case <-time.After(10 * time.Second):
			g.cmd.Process.Kill()
			t.Errorf("agent did not end with its stream; killed: %v", <-done)
		}
	})
	return g
}

func (g *guest) options() client.Options {
	return client.Options{Hello: protocol.Hello{
		Home: g.home, UID: -1, GID: -1,
		Interpreters: map[string]string{"python": look("python3"), "javascript": look("node")},
	}}
}

func look(name string) string {
	p, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return p
}

// newConn starts an agent and connects to it.
func newConn(t testing.TB) (*client.Conn, *guest) {
	t.Helper()
	g := newGuest(t)
	l, err := client.Open(t.Context(), g, g.options())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, g
}

// record is a Sink that keeps everything.
type record struct {
	mu       sync.Mutex
	out, err []byte
	displays []protocol.Display
}

func (r *record) Output(ch protocol.Channel, p []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ch == protocol.Stdout {
		r.out = append(r.out, p...)
	} else {
		r.err = append(r.err, p...)
	}
}

func (r *record) Display(d protocol.Display) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.displays = append(r.displays, d)
}

// code returns the code of an agent's error, "" for nil.
func code(t *testing.T, err error) protocol.Code {
	t.Helper()
	if err == nil {
		return ""
	}
	var we *protocol.Error
	if !errors.As(err, &we) {
		t.Fatalf("got error %v, want one of the agent", err)
	}
	return we.Code
}
