//go:build linux

package microsandbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/enginetest"
)

// TestLife_OfOneGuest takes one boot, for machines on which the conformance suite takes
// hours.
func TestLife_OfOneGuest(t *testing.T) {
	h := onHost(t)
	e := h.open(t)
	defer func() { e.Close() }()
	before := h.held(t)
	spec := h.spec()
	spec.Agent = engine.Program{Path: enginetest.Probe(t), Args: []string{"probe", "agent", "echo"}}
	volume := t.TempDir()
	spec.Mounts = []engine.Mount{{Host: volume, Guest: "/mnt/volume"}}
	step := func(what string, f func(ctx context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), h.wait)
		defer cancel()
		began := time.Now()
		err := f(ctx)
		t.Logf("%s: %.1f s, %v", what, time.Since(began).Seconds(), err)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	var g engine.Guest
	step("create", func(ctx context.Context) (err error) {
		g, err = e.Create(ctx, "box-1", spec)
		return err
	})
	defer g.Destroy(context.Background())
	echo := func(n int) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			conn, err := g.Dial(ctx)
			if err != nil {
				return err
			}
			defer conn.Close()
			return roundTrip(ctx, conn, bytes.Repeat([]byte("every byte\x00\xff\r\n"), n))
		}
	}
	step("first echo", echo(1))
	step("echo on a new stream", echo(10))
	step("echo of 1.3 MB", echo(100_000))
	step("create with the same id", func(ctx context.Context) error {
		if _, err := e.Create(ctx, "box-1", spec); !errors.Is(err, engine.ErrExists) {
			t.Errorf("got %v, want ErrExists", err)
		}
		return nil
	})
	step("open another engine, which must leave the guest alone", func(context.Context) error {
		return h.open(t).Close()
	})
	step("stats", func(ctx context.Context) error {
		s, err := e.Stats(ctx, "box-1")
		if s.MemoryBytes == 0 || s.CPU == 0 || s.Processes == 0 {
			t.Errorf("got %+v", s)
		}
		return err
	})
	step("pause", func(ctx context.Context) error { return e.Pause(ctx, "box-1") })
	step("pause again", func(ctx context.Context) error { return e.Pause(ctx, "box-1") })
	step("silence", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Second, errSilent)
		defer cancel()
		if err := echo(1)(ctx); !errors.Is(err, errSilent) {
			t.Errorf("a paused guest has answered: %v", err)
		}
		return nil
	})
	step("resume", func(ctx context.Context) error { return e.Resume(ctx, "box-1") })
	step("resume again", func(ctx context.Context) error { return e.Resume(ctx, "box-1") })
	step("8 MiB to a slow reader", func(ctx context.Context) error { return slowly(ctx, g) })
	var state engine.GuestState
	step("detach", func(ctx context.Context) (err error) {
		if state, err = e.State(ctx, "box-1"); err != nil {
			return err
		}
		return e.Detach(ctx, "box-1")
	})
	step("recover in another engine", func(ctx context.Context) (err error) {
		if err := e.Close(); err != nil {
			return err
		}
		e = h.open(t)
		if states, err := e.List(ctx); err != nil || len(states) != 1 || states[0].ID != "box-1" {
			t.Errorf("list: got %+v, %v", states, err)
		}
		g, err = e.Recover(ctx, state)
		return err
	})
	step("echo of a recovered guest", echo(1))
	step("destroy", g.Destroy)
	step("wait", func(ctx context.Context) error {
		exit, err := g.Wait(ctx)
		if exit.Reason != engine.ExitDestroyed {
			t.Errorf("got %+v", exit)
		}
		return err
	})
	if _, err := g.Dial(t.Context()); !errors.Is(err, engine.ErrGone) {
		t.Errorf("dial after destroy: got %v, want ErrGone", err)
	}
	if err := e.Pause(t.Context(), "box-1"); !errors.Is(err, engine.ErrGone) {
		t.Errorf("pause after destroy: got %v, want ErrGone", err)
	}
	after := h.held(t)
	slices.Sort(before)
	slices.Sort(after)
	if !slices.Equal(before, after) {
		t.Errorf("leak: held before %q and after %q", before, after)
	}
}

// slowly sends 8 windows to an agent that echoes, and reads the answer slowly at first.
func slowly(ctx context.Context, g engine.Guest) error {
	const size, part = 8 << 20, 1 << 20
	conn, err := g.Dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	wrote := make(chan error, 1)
	go func() {
		b := bytes.Repeat([]byte("0123456789abcde\n"), part/16)
		for range size / part {
			if _, err := conn.Write(b); err != nil {
				wrote <- err
				return
			}
		}
		wrote <- nil
	}()
	want := bytes.Repeat([]byte("0123456789abcde\n"), part/16)
	got := make([]byte, part)
	for i := range size / part {
		if i < 3 {
			time.Sleep(2 * time.Second) // every buffer on the way fills
		}
		if _, err := io.ReadFull(conn, got); err != nil {
			return fmt.Errorf("after %d MiB: %w", i, err)
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("MiB %d differs", i)
		}
	}
	return <-wrote
}

var errSilent = errors.New("no answer")

// roundTrip sends p to an agent that echoes, and compares the answer. It fails with the
// cause of ctx if that ends first; conn has to be closed then.
func roundTrip(ctx context.Context, conn io.ReadWriteCloser, p []byte) error {
	done := make(chan error, 2)
	go func() {
		_, err := conn.Write(p)
		done <- err
	}()
	go func() {
		got := make([]byte, len(p))
		_, err := io.ReadFull(conn, got)
		if err == nil && !bytes.Equal(got, p) {
			err = errors.New("the echo differs")
		}
		done <- err
	}()
	for range 2 {
		select {
		case err := <-done:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// TestLife_AgentEnds takes one boot for each way in which a guest ends by itself.
func TestLife_AgentEnds(t *testing.T) {
	h := onHost(t)
	e := h.open(t)
	defer e.Close()
	for _, c := range []struct {
		name string
		args []string
		want engine.Exit
	}{
		{"code 0", []string{"exit", "0"}, engine.Exit{Reason: engine.ExitExited}},
		{"code 7", []string{"exit", "7"}, engine.Exit{Reason: engine.ExitExited, Code: 7}},
		{"signal", []string{"die", "9"}, engine.Exit{Reason: engine.ExitExited, Code: 128 + 9}},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := h.spec()
			spec.Agent = engine.Program{Path: enginetest.Probe(t), Args: append([]string{"probe", "agent"}, c.args...)}
			ctx, cancel := context.WithTimeout(t.Context(), 2*h.wait)
			defer cancel()
			g, err := e.Create(ctx, "box-2", spec)
			if err != nil {
				t.Fatal(err)
			}
			defer g.Destroy(context.Background())
			conn, err := g.Dial(ctx)
			if err == nil {
				_, err = conn.Write([]byte{1})
			}
			if err != nil {
				t.Fatal(err)
			}
			if exit, err := g.Wait(ctx); err != nil || exit.Reason != c.want.Reason || exit.Code != c.want.Code {
				t.Errorf("got %+v, %v; want %+v", exit, err, c.want)
			}
		})
	}
}
