//go:build linux

package client_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// openCall sends the Open of a call.
func (f *fake) openCall(id, run uint32) {
	args, _ := json.Marshal(protocol.Call{Run: run, Method: "tool"})
	p, _ := json.Marshal(protocol.Request{Op: protocol.OpCall, Args: args})
	f.frame(protocol.Header{Type: protocol.Open, Op: id}, p)
}

func (f *fake) body(id uint32, p []byte) {
	f.frame(protocol.Header{Type: protocol.Data, Channel: protocol.Body, Op: id}, p)
}

func (f *fake) eof(id uint32) {
	f.frame(protocol.Header{Type: protocol.EOF, Channel: protocol.Body, Op: id}, nil)
}

// blocked answers no call before its end.
var blocked = hostFunc(func(ctx context.Context, _ string, _ []byte) ([]byte, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
})

// TestHostileCalls plays an agent that violates the protocol with its own operations:
// the connection ends, and nothing is left.
func TestHostileCalls(t *testing.T) {
	for name, play := range map[string]func(f *fake, op uint32){
		"no such run":    func(f *fake, op uint32) { f.openCall(2, op+2) },
		"run zero":       func(f *fake, op uint32) { f.openCall(2, 0) },
		"call of a call": func(f *fake, op uint32) { f.openCall(2, op); f.openCall(4, 2) },
		"the id twice":   func(f *fake, op uint32) { f.openCall(2, op); f.openCall(2, op) },
		"too many at a time": func(f *fake, op uint32) {
			for i := range uint32(protocol.MaxCalls + 1) {
				f.openCall(2+2*i, op)
			}
		},
		"too many": func(f *fake, op uint32) {
			for i := range uint32(protocol.MaxRunCalls + 1) {
				f.openCall(2+2*i, op)
				f.frame(protocol.Header{Type: protocol.Cancel, Op: 2 + 2*i}, nil)
				for { // its End
					h, _, err := f.rd.Next()
					if err != nil {
						return
					}
					if h.Type == protocol.End {
						break
					}
				}
			}
		},
		"another operation": func(f *fake, op uint32) {
			f.frame(protocol.Header{Type: protocol.Open, Op: 2}, []byte(`{"op":"exec","args":{"shell":"id"}}`))
		},
		"no JSON": func(f *fake, op uint32) { f.frame(protocol.Header{Type: protocol.Open, Op: 2}, []byte("{")) },
		"no arguments": func(f *fake, op uint32) {
			f.frame(protocol.Header{Type: protocol.Open, Op: 2}, []byte(`{"op":"call"}`))
		},
		"long method": func(f *fake, op uint32) {
			f.frame(protocol.Header{Type: protocol.Open, Op: 2}, []byte(`{"op":"call","args":{"run":3,"method":"`+strings.Repeat("x", 1000)+`"}}`))
		},
		"data of no call": func(f *fake, op uint32) { f.body(2, []byte("x")) },
		"end":             func(f *fake, op uint32) { f.openCall(2, op); f.end(2, nil) },
		"output": func(f *fake, op uint32) {
			f.openCall(2, op)
			f.frame(protocol.Header{Type: protocol.Data, Channel: protocol.Stdout, Op: 2}, []byte("x"))
		},
		"data after EOF": func(f *fake, op uint32) { f.openCall(2, op); f.eof(2); f.body(2, []byte("x")) },
		"data after Cancel": func(f *fake, op uint32) {
			f.openCall(2, op)
			f.frame(protocol.Header{Type: protocol.Cancel, Op: 2}, nil)
			f.body(2, []byte("x"))
		},
		"too much credit": func(f *fake, op uint32) {
			f.openCall(2, op)
			f.frame(protocol.Header{Type: protocol.Credit, Op: 2}, []byte{0x7f, 0, 0, 0})
		},
		"beyond the window": func(f *fake, op uint32) {
			f.openCall(2, op)
			for range 16 {
				f.body(2, make([]byte, protocol.MaxPayload))
			}
		},
		"the run ends before its call": func(f *fake, op uint32) { f.openCall(2, op); f.end(op, protocol.RunResult{OK: true}) },
	} {
		t.Run(name, func(t *testing.T) {
			checkGoroutines(t)
			d, f := newFake(t)
			go func() {
				f.greet()
				op, _, _ := f.open()
				if name != "too many" {
					go io.Copy(io.Discard, f.r)
				}
				play(f, op)
			}()
			l, err := client.Open(t.Context(), d, client.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			_, err = l.RunWithCalls(ctx, protocol.Run{}, []byte("1"), &record{}, blocked)
			if !errors.Is(err, client.ErrLost) {
				t.Errorf("got error %v, want ErrLost", err)
			}
		})
	}
}

// TestCalls_refusedWithoutHost checks that the agent cannot open anything while no
// operation may call.
func TestCalls_refusedWithoutHost(t *testing.T) {
	checkGoroutines(t)
	d, f := newFake(t)
	go func() {
		f.greet()
		op, _, _ := f.open()
		f.openCall(2, op)
	}()
	l, err := client.Open(t.Context(), d, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := l.Run(t.Context(), protocol.Run{}, []byte("1"), nil); !errors.Is(err, client.ErrLost) {
		t.Errorf("got error %v, want ErrLost", err)
	}
}

// TestCallFlood checks that a guest that opens as many calls as it may, each with as many
// arguments as it may, costs no more memory than these, and that a run whose agent does
// not respond ends all the same.
func TestCallFlood(t *testing.T) {
	checkGoroutines(t)
	d, f := newFake(t)
	full := make(chan struct{})
	go func() {
		f.greet()
		op, _, _ := f.open()
		go io.Copy(io.Discard, f.r)
		for i := range uint32(protocol.MaxCalls) {
			f.openCall(2+2*i, op)
		}
		// Half of the window of each: the arguments never end.
		for i := range uint32(protocol.MaxCalls) {
			f.body(2+2*i, make([]byte, protocol.MaxPayload))
		}
		close(full)
	}()
	l, err := client.Open(t.Context(), d, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	ctx, cancel := context.WithCancel(t.Context())
	var called atomic.Int32
	done := make(chan error, 1)
	go func() {
		_, err := l.RunWithCalls(ctx, protocol.Run{GraceMS: 1}, []byte("1"), nil, hostFunc(func(context.Context, string, []byte) ([]byte, error) {
			called.Add(1)
			return nil, nil
		}))
		done <- err
	}()
	<-full
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > protocol.MaxCalls*(protocol.MaxCallArgs+2*protocol.Window) {
		t.Errorf("memory grew by %d bytes", grown)
	}
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got error %v, want that of the context", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the run hangs with its calls")
	}
	if called.Load() != 0 {
		t.Errorf("%d calls with half of their arguments were made", called.Load())
	}
}

// TestCall_contextUntilSent checks that the context of a call lasts until the guest has its
// answer: the host accounts for the answer until then.
func TestCall_contextUntilSent(t *testing.T) {
	const size = 4 * protocol.Window
	checkGoroutines(t)
	d, f := newFake(t)
	calls := make(chan context.Context, 1)
	go func() {
		f.greet()
		op, _, _ := f.open()
		f.openCall(2, op)
		f.eof(2)
		ctx := <-calls
		got := 0
		for ended := false; !ended; {
			h, p, err := f.rd.Next()
			if err != nil {
				t.Error(err)
				return
			}
			if h.Op != 2 {
				continue
			}
			if h.Type == protocol.Data {
				if got += len(p); got < size-2*protocol.Window && ctx.Err() != nil { // one window may be under way
					t.Errorf("the context ended after %d bytes", got)
				}
				f.frame(protocol.Header{Type: protocol.Credit, Op: 2}, binary.BigEndian.AppendUint32(nil, uint32(len(p))))
			}
			ended = h.Type == protocol.End
		}
		if got != size {
			t.Errorf("the guest got %d bytes of the answer, want %d", got, size)
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Second):
			t.Error("the context lasts after the end of the call")
		}
		f.end(op, protocol.RunResult{OK: true})
	}()
	l, err := client.Open(t.Context(), d, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = l.RunWithCalls(t.Context(), protocol.Run{}, []byte("1"), &record{}, hostFunc(func(ctx context.Context, _ string, _ []byte) ([]byte, error) {
		calls <- ctx
		return make([]byte, size), nil
	}))
	if err != nil {
		t.Error(err)
	}
}

// FuzzCallFrames feeds the host frames of calls while a run is in progress.
func FuzzCallFrames(f *testing.F) {
	open := func(id, run uint32) []byte {
		args, _ := json.Marshal(protocol.Call{Run: run, Method: "tool"})
		p, _ := json.Marshal(protocol.Request{Op: protocol.OpCall, Args: args})
		return append(protocol.Header{Type: protocol.Open, Op: id, Length: uint32(len(p))}.Append(nil), p...)
	}
	f.Add(open(2, 3))
	f.Add(append(open(2, 3), protocol.Header{Type: protocol.EOF, Channel: protocol.Body, Op: 2}.Append(nil)...))
	f.Add(append(open(2, 3), protocol.Header{Type: protocol.Cancel, Op: 2}.Append(nil)...))
	f.Add(append(open(2, 3), open(2, 3)...))
	f.Add(protocol.Header{Type: protocol.Data, Channel: protocol.Body, Op: 2}.Append(nil))
	f.Fuzz(func(t *testing.T, in []byte) {
		d, fk := newFake(t)
		go func() {
			fk.greet()
			fk.open()
			go io.Copy(io.Discard, fk.r)
			fk.w.Write(in)
			fk.w.Close()
		}()
		l, err := client.Open(t.Context(), d, client.Options{})
		if err != nil {
			return
		}
		l.RunWithCalls(t.Context(), protocol.Run{}, []byte("1"), &record{}, hostFunc(func(_ context.Context, method string, args []byte) ([]byte, error) {
			if len(args) > protocol.MaxCallArgs || len(method) > protocol.MaxMethod {
				t.Errorf("%d bytes of arguments, method of %d", len(args), len(method))
			}
			return args, nil
		}))
		l.Close()
	})
}
