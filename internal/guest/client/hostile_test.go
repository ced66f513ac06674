//go:build linux

package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// fake is the peer of a connection, played by the test.
type fake struct {
	r, w *os.File
	rd   *protocol.Reader
}

// pair is a connection over two pipes.
type pair struct{ r, w *os.File }

func (p pair) Read(b []byte) (int, error)                       { return p.r.Read(b) }
func (p pair) Write(b []byte) (int, error)                      { return p.w.Write(b) }
func (p pair) Close() error                                     { p.r.Close(); return p.w.Close() }
func (p pair) Dial(context.Context) (io.ReadWriteCloser, error) { return p, nil }

// newFake returns a dialer and its fake agent.
func newFake(t testing.TB) (pair, *fake) {
	t.Helper()
	r1, w1, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r2, w2, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{r: r1, w: w2, rd: protocol.NewReader(r1)}
	t.Cleanup(func() {
		for _, f := range []*os.File{r1, w1, r2, w2} {
			f.Close()
		}
	})
	return pair{r2, w1}, f
}

func (f *fake) frame(h protocol.Header, p []byte) {
	h.Length = uint32(len(p))
	f.w.Write(append(h.Append(nil), p...))
}

func (f *fake) end(op uint32, result any) {
	raw, _ := json.Marshal(result)
	p, _ := json.Marshal(protocol.Response{Result: raw})
	f.frame(protocol.Header{Type: protocol.End, Op: op}, p)
}

// open reads the next Open.
func (f *fake) open() (op uint32, req protocol.Request, ok bool) {
	for {
		h, p, err := f.rd.Next()
		if err != nil {
			return 0, req, false
		}
		if h.Type == protocol.Open {
			return h.Op, req, json.Unmarshal(p, &req) == nil
		}
	}
}

// greet answers hello correctly.
func (f *fake) greet() {
	op, req, _ := f.open()
	var h protocol.Hello
	json.Unmarshal(req.Args, &h)
	f.end(op, protocol.HelloResult{Version: protocol.Version, Nonce: h.Nonce})
}

// garbage is an invalid frame.
var garbage = []byte("HTTP/1.1 200 OK\r\n\r\n{}")

func TestHello_Hostile(t *testing.T) {
	for name, play := range map[string]func(f *fake){
		"closes":  func(f *fake) { f.w.Close() },
		"nothing": func(f *fake) {},
		"garbage": func(f *fake) { f.w.Write(garbage) },
		"half a header": func(f *fake) {
			f.w.Write(protocol.Header{Type: protocol.End, Op: 1}.Append(nil)[:7])
			f.w.Close()
		},
		"half a payload": func(f *fake) {
			f.w.Write(protocol.Header{Type: protocol.End, Op: 1, Length: 1000}.Append(nil))
			f.w.Close()
		},
		"oversized frame": func(f *fake) {
			f.w.Write([]byte{0x47, byte(protocol.End), 0, 0, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff})
		},
		"wrong operation": func(f *fake) { f.end(3, protocol.HelloResult{}) },
		"wrong nonce": func(f *fake) {
			op, _, _ := f.open()
			f.end(op, protocol.HelloResult{Version: protocol.Version, Nonce: "x"})
		},
		"wrong version": func(f *fake) { op, _, _ := f.open(); f.end(op, protocol.HelloResult{Version: 99}) },
		"no JSON":       func(f *fake) { op, _, _ := f.open(); f.frame(protocol.Header{Type: protocol.End, Op: op}, []byte("{")) },
		"another type":  func(f *fake) { op, _, _ := f.open(); f.end(op, []int{1}) },
		"its own operation": func(f *fake) {
			f.frame(protocol.Header{Type: protocol.Open, Op: 2}, []byte(`{"op":"ping"}`))
		},
		"error": func(f *fake) {
			op, _, _ := f.open()
			f.frame(protocol.Header{Type: protocol.End, Op: op}, []byte(`{"error":{"code":"version","message":"no"}}`))
		},
	} {
		t.Run(name, func(t *testing.T) {
			checkGoroutines(t)
			d, f := newFake(t)
			go play(f)
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			start := time.Now()
			l, err := client.Open(ctx, d, client.Options{})
			if err == nil {
				l.Close()
				t.Fatal("link opened")
			}
			if d := time.Since(start); d > 2*time.Second {
				t.Errorf("took %v", d)
			}
			d2, f2 := newFake(t)
			go func() {
				f2.rd.Resync(0, func(string) bool { return true })
				play(f2)
			}()
			if l, err := client.Resume(ctx, d2, client.Options{}); err == nil {
				l.Close()
				t.Fatal("link resumed")
			}
		})
	}
}

// TestFrames_Hostile plays an agent that behaves until an operation is in progress: the
// operation and the connection must fail soon.
func TestFrames_Hostile(t *testing.T) {
	data := func(ch protocol.Channel) func(f *fake, op uint32) {
		return func(f *fake, op uint32) {
			f.frame(protocol.Header{Type: protocol.Data, Channel: ch, Op: op}, []byte("x"))
		}
	}
	for name, play := range map[string]func(f *fake, op uint32){
		"closes":  func(f *fake, op uint32) { f.w.Close() },
		"garbage": func(f *fake, op uint32) { f.w.Write(garbage) },
		"unknown operation": func(f *fake, op uint32) {
			f.frame(protocol.Header{Type: protocol.Data, Channel: protocol.Stdout, Op: op + 2}, nil)
		},
		"operation zero":       func(f *fake, op uint32) { f.frame(protocol.Header{Type: protocol.End}, []byte("{}")) },
		"operation that ended": func(f *fake, op uint32) { f.frame(protocol.Header{Type: protocol.End, Op: 1}, []byte("{}")) },
		"output on stdin":      data(protocol.Stdin),
		"output on control":    data(protocol.Control),
		"opens": func(f *fake, op uint32) {
			f.frame(protocol.Header{Type: protocol.Open, Op: op}, []byte(`{"op":"ping"}`))
		},
		"cancels": func(f *fake, op uint32) { f.frame(protocol.Header{Type: protocol.Cancel, Op: op}, nil) },
		"too much credit": func(f *fake, op uint32) {
			f.frame(protocol.Header{Type: protocol.Credit, Op: op}, []byte{0x7f, 0, 0, 0})
		},
		"short credit": func(f *fake, op uint32) { f.frame(protocol.Header{Type: protocol.Credit, Op: op}, []byte{1}) },
		"end of output twice": func(f *fake, op uint32) {
			f.frame(protocol.Header{Type: protocol.EOF, Channel: protocol.Stdout, Op: op}, nil)
			f.frame(protocol.Header{Type: protocol.EOF, Channel: protocol.Stdout, Op: op}, nil)
		},
		"end of output with bytes": func(f *fake, op uint32) {
			f.frame(protocol.Header{Type: protocol.EOF, Channel: protocol.Stdout, Op: op}, []byte("x"))
		},
		"display is no JSON": func(f *fake, op uint32) {
			f.frame(protocol.Header{Type: protocol.Data, Channel: protocol.Displays, Op: op}, []byte("{"))
		},
		"display of many representations": func(f *fake, op uint32) {
			f.frame(protocol.Header{Type: protocol.Data, Channel: protocol.Displays, Op: op}, manyRepresentations(4*protocol.MaxRepresentations))
		},
		"display is no UTF-8": func(f *fake, op uint32) {
			f.frame(protocol.Header{Type: protocol.Data, Channel: protocol.Displays, Op: op}, []byte("{\"data\":{\"text/plain\":\"\xff\"}}"))
		},
		"endless display": func(f *fake, op uint32) {
			for range 2 * protocol.MaxDisplay / protocol.MaxPayload {
				f.frame(protocol.Header{Type: protocol.Data, Channel: protocol.Displays, Op: op, More: true}, make([]byte, protocol.MaxPayload-protocol.HeaderSize))
			}
		},
		"result of another type": func(f *fake, op uint32) { f.end(op, []string{"x"}) },
	} {
		t.Run(name, func(t *testing.T) {
			checkGoroutines(t)
			d, f := newFake(t)
			go func() {
				f.greet()
				op, _, _ := f.open()
				go io.Copy(io.Discard, f.r)
				play(f, op)
			}()
			l, err := client.Open(t.Context(), d, client.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			_, err = l.Run(ctx, protocol.Run{}, []byte("1"), &record{})
			if !errors.Is(err, client.ErrLost) {
				t.Errorf("got error %v, want ErrLost", err)
			}
			<-l.Done()
			if _, err := l.Ping(ctx); !errors.Is(err, client.ErrLost) {
				t.Errorf("ping afterwards: got error %v, want ErrLost", err)
			}
		})
	}
}

// TestAgent_Unresponsive checks that waiting for an agent that does not respond is
// bounded.
func TestAgent_Unresponsive(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	checkGoroutines(t)
	d, f := newFake(t)
	go func() {
		f.greet()
		io.Copy(io.Discard, f.r)
	}()
	l, err := client.Open(t.Context(), d, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cause := errors.New("the caller went away")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(cause) })
	start := time.Now()
	_, err = l.Run(ctx, protocol.Run{GraceMS: 100}, []byte("1"), nil)
	if !errors.Is(err, cause) || errors.Is(err, client.ErrLost) {
		t.Errorf("got error %v, want the cause of the context", err)
	}
	if d := time.Since(start); d < 5*time.Second || d > 7*time.Second {
		t.Errorf("took %v", d)
	}
}

// TestOpen_LogsLevelByCause checks that the connection logs a warning when the guest fails,
// and none when the caller gives the guest up.
func TestOpen_LogsLevelByCause(t *testing.T) {
	for name, c := range map[string]struct {
		play  func(cancel context.CancelFunc, f *fake)
		warns bool
	}{
		"caller cancels":   {func(cancel context.CancelFunc, f *fake) { f.open(); cancel() }, false},
		"guest closes":     {func(_ context.CancelFunc, f *fake) { f.open(); f.w.Close() }, true},
		"host closes":      {func(_ context.CancelFunc, f *fake) { f.greet() }, false},
		"guest misbehaves": {func(_ context.CancelFunc, f *fake) { f.w.Write(garbage) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			checkGoroutines(t)
			d, f := newFake(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go c.play(cancel, f)
			var logged bytes.Buffer
			log := slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
			conn, err := client.Open(ctx, d, client.Options{Log: log})
			if err == nil {
				conn.Close()
			}
			// Open and Close have waited for the goroutines that log.
			if text := logged.String(); strings.Contains(text, "level=WARN") != c.warns || !strings.Contains(text, "connection to guest ended") {
				t.Errorf("logged %q, want a warning: %v", text, c.warns)
			}
		})
	}
}

// TestAgent_DoesNotRead checks that an agent that does not read blocks no caller.
func TestAgent_DoesNotRead(t *testing.T) {
	checkGoroutines(t)
	d, f := newFake(t)
	go f.greet()
	l, err := client.Open(t.Context(), d, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	done := make(chan error, 64)
	for range 64 {
		go func() {
			_, err := l.Run(ctx, protocol.Run{}, bytes.Repeat([]byte("x"), 1<<20), nil)
			done <- err
		}()
	}
	<-ctx.Done()
	l.Close()
	for range 64 {
		select {
		case err := <-done:
			if err == nil {
				t.Error("run succeeded")
			}
		case <-time.After(5 * time.Second):
			t.Fatal("run hangs after Close")
		}
	}
}

// slow is a Sink that blocks until it is released.
type slow struct {
	started, proceed chan struct{}
	n                int
}

func (s *slow) Output(_ protocol.Channel, p []byte) {
	if s.n == 0 {
		close(s.started)
		<-s.proceed
	}
	s.n += len(p)
}
func (s *slow) Display(protocol.Display) {}

// TestFrames_FloodIsBounded checks that a flood of frames, tiny ones included, costs no
// more memory than the window while the reader is slow, and closes the connection.
func TestFrames_FloodIsBounded(t *testing.T) {
	for _, size := range []int{1, 4096, protocol.MaxPayload} {
		checkGoroutines(t)
		d, f := newFake(t)
		go func() {
			f.greet()
			op, _, _ := f.open()
			go io.Copy(io.Discard, f.r)
			h := protocol.Header{Type: protocol.Data, Op: op, Length: uint32(size)}
			var b []byte
			for i := range 4 {
				h.Channel = protocol.Stdout + protocol.Channel(i%2)
				b = append(h.Append(b), make([]byte, size)...)
			}
			for {
				if _, err := f.w.Write(b); err != nil {
					return
				}
			}
		}()
		l, err := client.Open(t.Context(), d, client.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		s := &slow{started: make(chan struct{}), proceed: make(chan struct{})}
		done := make(chan error, 1)
		go func() {
			_, err := l.Run(t.Context(), protocol.Run{}, []byte("1"), s)
			done <- err
		}()
		select {
		case <-l.Done():
		case <-time.After(10 * time.Second):
			t.Fatal("the flood did not end the link")
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 16<<20 {
			t.Errorf("frames of %d bytes: memory grew by %d bytes", size, grown)
		}
		close(s.proceed)
		if err := <-done; !errors.Is(err, client.ErrLost) {
			t.Errorf("got error %v, want ErrLost", err)
		}
		l.Close()
	}
}

// TestSink_BlockedDelaysNoOther checks that a caller that does not consume its output
// delays no other operation.
func TestSink_BlockedDelaysNoOther(t *testing.T) {
	l, _ := newConn(t)
	s := &slow{started: make(chan struct{}), proceed: make(chan struct{})}
	done := make(chan error, 1)
	go func() {
		_, err := l.Exec(t.Context(), protocol.Exec{Shell: "head -c 20000000 /dev/zero"}, nil, s)
		done <- err
	}()
	<-s.started
	for range 100 {
		if _, err := l.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	close(s.proceed)
	if err := <-done; err != nil || s.n != 20_000_000 {
		t.Errorf("got %d bytes, %v", s.n, err)
	}
}

// checkGoroutines fails the test if it leaves goroutines of this project behind.
func checkGoroutines(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		var left string
		none := func() bool {
			buf := make([]byte, 1<<20)
			left = ""
			for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
				if strings.Contains(g, "internal/guest/client.") && !strings.Contains(g, "client_test.") {
					left += g + "\n\n"
				}
			}
			return left == ""
		}
		if !polltest.Soon(5*time.Second, none) {
			t.Errorf("leak: goroutines\n%s", left)
		}
	})
}

// FuzzConnInput feeds the host arbitrary bytes instead of an agent's.
func FuzzConnInput(f *testing.F) {
	ok, _ := json.Marshal(protocol.Response{Result: json.RawMessage(`{"version":1}`)})
	h := protocol.Header{Type: protocol.End, Op: 1, Length: uint32(len(ok))}
	f.Add(append(h.Append(nil), ok...))
	f.Add(protocol.Header{Type: protocol.Data, Channel: protocol.Displays, Op: 3, Length: 2}.Append([]byte("{}")))
	f.Add(garbage)
	f.Fuzz(func(t *testing.T, in []byte) {
		d, fk := newFake(t)
		go func() {
			go io.Copy(io.Discard, fk.r)
			fk.w.Write(in)
			fk.w.Close()
		}()
		if l, err := client.Open(t.Context(), d, client.Options{}); err == nil {
			l.Close()
			t.Error("link opened without a nonce")
		}
		d, again := newFake(t)
		go func() {
			again.greet()
			go io.Copy(io.Discard, again.r)
			again.w.Write(in)
			again.w.Close()
		}()
		l, err := client.Open(t.Context(), d, client.Options{})
		if err != nil {
			return
		}
		l.Run(t.Context(), protocol.Run{}, []byte("1"), &record{})
		l.Close()
	})
}

// manyRepresentations returns the JSON of a display with n representations.
func manyRepresentations(n int) []byte {
	data := make(map[string]string, n)
	for i := range n {
		data[strconv.Itoa(i)] = ""
	}
	b, err := json.Marshal(protocol.Display{Data: data})
	if err != nil {
		panic(err)
	}
	return b
}

// An agent that does not notice that a backup is cancelled does not hold up the one who cancels it:
// a box that leaves memory is to be written.
func TestBackup_CancelDoesNotWait(t *testing.T) {
	d, f := newFake(t)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		f.greet()
		op, _, _ := f.open()
		f.frame(protocol.Header{Type: protocol.Data, Channel: protocol.Body, Op: op}, []byte("archive"))
		cancel()
	}()
	l, err := client.Open(t.Context(), d, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	begun := time.Now()
	_, err = l.Backup(ctx, protocol.Backup{}, io.Discard)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if took := time.Since(begun); took > 3*time.Second {
		t.Errorf("it took %v", took)
	}
}
