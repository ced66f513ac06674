//go:build linux

package client_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// network is a Network of functions; nil ones wait for the end.
type network struct {
	lookup func(ctx context.Context, name string) protocol.LookupResult
	serve  func(ctx context.Context, d protocol.Dial, c net.Conn) error
}

func (n network) Lookup(ctx context.Context, name string) protocol.LookupResult {
	if n.lookup != nil {
		return n.lookup(ctx, name)
	}
	<-ctx.Done()
	return protocol.LookupResult{Status: protocol.LookupFailed}
}

func (n network) Serve(ctx context.Context, d protocol.Dial, c net.Conn) error {
	if n.serve != nil {
		return n.serve(ctx, d, c)
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// request sends an Open of the guest.
func (f *fake) request(id uint32, op protocol.Op, args any) {
	raw, _ := json.Marshal(args)
	p, _ := json.Marshal(protocol.Request{Op: op, Args: raw})
	f.frame(protocol.Header{Type: protocol.Open, Op: id}, p)
}

func (f *fake) dial(id uint32) {
	f.request(id, protocol.OpDial, protocol.Dial{Door: protocol.DoorTCP, Name: "example.org", Port: 443})
}

func (f *fake) lookup(id uint32) {
	f.request(id, protocol.OpLookup, protocol.Lookup{Name: "example.org"})
}

// next returns the next frame of an operation.
func (f *fake) next(t *testing.T, op uint32) (protocol.Header, []byte) {
	t.Helper()
	for {
		h, p, err := f.rd.Next()
		if err != nil {
			t.Errorf("read frame of operation %d: %v", op, err)
			return h, nil
		}
		if h.Op == op {
			return h, p
		}
	}
}

// openNetwork opens a connection to a fake with a network, which Cleanup closes.
func openNetwork(t testing.TB, n client.Network) (*client.Conn, *fake) {
	t.Helper()
	d, f := newFake(t)
	go f.greet()
	l, err := client.Open(t.Context(), d, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if n != nil {
		l.SetNetwork(n)
	}
	return l, f
}

// lost fails the test unless the connection ends.
func lost(t *testing.T, l *client.Conn) {
	t.Helper()
	select {
	case <-l.Done():
		if err := l.Err(); !errors.Is(err, client.ErrLost) || errors.Is(err, io.EOF) {
			t.Errorf("got error %v, want ErrLost for a violation", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the connection goes on")
	}
}

// TestHostile_Dials plays an agent that violates the protocol with dials and lookups: the
// connection ends, and nothing is left.
func TestHostile_Dials(t *testing.T) {
	for name, play := range map[string]func(f *fake){
		"no JSON":            func(f *fake) { f.frame(protocol.Header{Type: protocol.Open, Op: 2}, []byte(`{"op":"dial","args":[]}`)) },
		"no arguments":       func(f *fake) { f.frame(protocol.Header{Type: protocol.Open, Op: 2}, []byte(`{"op":"dial"}`)) },
		"unknown door":       func(f *fake) { f.request(2, protocol.OpDial, protocol.Dial{Door: "udp"}) },
		"name of a proxy":    func(f *fake) { f.request(2, protocol.OpDial, protocol.Dial{Door: "http", Name: "example.org"}) },
		"an address":         func(f *fake) { f.request(2, protocol.OpDial, protocol.Dial{Door: "tcp", Name: "127.0.0.1", Port: 80}) },
		"a name with NUL":    func(f *fake) { f.request(2, protocol.OpDial, protocol.Dial{Door: "tcp", Name: "a.b\x00.c", Port: 80}) },
		"upper case":         func(f *fake) { f.request(2, protocol.OpLookup, protocol.Lookup{Name: "Example.org"}) },
		"no port":            func(f *fake) { f.request(2, protocol.OpDial, protocol.Dial{Door: "tcp", Name: "example.org"}) },
		"lookup of nothing":  func(f *fake) { f.request(2, protocol.OpLookup, protocol.Lookup{}) },
		"the id twice":       func(f *fake) { f.dial(2); f.dial(2) },
		"the id of a lookup": func(f *fake) { f.lookup(2); f.dial(2) },
		"the id of a dial":   func(f *fake) { f.dial(2); f.lookup(2) },
		"data of no dial":    func(f *fake) { f.body(2, []byte("x")) },
		"data of a lookup":   func(f *fake) { f.lookup(2); f.body(2, []byte("x")) },
		"end":                func(f *fake) { f.dial(2); f.end(2, nil) },
		"open":               func(f *fake) { f.dial(2); f.frame(protocol.Header{Type: protocol.Open, Op: 2}, nil) },
		"output": func(f *fake) {
			f.dial(2)
			f.frame(protocol.Header{Type: protocol.Data, Channel: protocol.Stdout, Op: 2}, []byte("x"))
		},
		"data after EOF":      func(f *fake) { f.dial(2); f.eof(2); f.body(2, []byte("x")) },
		"EOF twice":           func(f *fake) { f.dial(2); f.eof(2); f.eof(2) },
		"too much credit":     func(f *fake) { f.dial(2); f.frame(protocol.Header{Type: protocol.Credit, Op: 2}, []byte{0, 0, 0, 1}) },
		"credit of the link":  func(f *fake) { f.frame(protocol.Header{Type: protocol.Credit}, []byte{0, 0, 0, 1}) },
		"data of the link":    func(f *fake) { f.frame(protocol.Header{Type: protocol.Data, Channel: protocol.Body}, []byte("x")) },
		"half a credit":       func(f *fake) { f.dial(2); f.frame(protocol.Header{Type: protocol.Credit, Op: 2}, []byte{0, 0}) },
		"beyond the window":   func(f *fake) { f.dial(2); f.body(2, make([]byte, protocol.DialWindow)) },
		"small frames beyond": func(f *fake) { f.dial(2); many(f, 2, protocol.DialWindow/protocol.HeaderSize+1) },
		"too many dials": func(f *fake) {
			for i := range uint32(protocol.MaxDials + 1) {
				f.dial(2 + 2*i)
			}
		},
		"too many lookups": func(f *fake) {
			for i := range uint32(protocol.MaxLookups + 1) {
				f.lookup(2 + 2*i)
			}
		},
		"data after Cancel": func(f *fake) {
			f.dial(2)
			f.frame(protocol.Header{Type: protocol.Cancel, Op: 2}, nil)
			f.body(2, []byte("x"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			checkGoroutines(t)
			l, f := openNetwork(t, network{})
			go play(f)
			lost(t, l)
			l.Close()
		})
	}
}

// many sends empty frames.
func many(f *fake, id uint32, n int) {
	var b []byte
	for range n {
		b = protocol.Header{Type: protocol.Data, Channel: protocol.Body, Op: id}.Append(b)
	}
	f.w.Write(b)
}

// TestHostile_DialBeforeNetwork checks that a guest without a network cannot dial.
func TestHostile_DialBeforeNetwork(t *testing.T) {
	for name, open := range map[string]func(f *fake){"dial": func(f *fake) { f.dial(2) }, "lookup": func(f *fake) { f.lookup(2) }} {
		t.Run(name, func(t *testing.T) {
			checkGoroutines(t)
			l, f := openNetwork(t, nil)
			open(f)
			lost(t, l)
			l.Close()
		})
	}
}

// TestHostile_SlowDialEnd checks that an agent that does not end the data of a dial after its End can
// send no more than a window, and occupies a place.
func TestHostile_SlowDialEnd(t *testing.T) {
	checkGoroutines(t)
	l, f := openNetwork(t, network{serve: func(context.Context, protocol.Dial, net.Conn) error { return nil }})
	for i := range uint32(protocol.MaxDials) {
		f.dial(2 + 2*i)
		for h := (protocol.Header{}); h.Type != protocol.End; {
			h, _ = f.next(t, 2+2*i)
		}
	}
	f.body(2, make([]byte, 1000)) // crosses the End
	f.eof(2)
	f.dial(2)
	for h := (protocol.Header{}); h.Type != protocol.End; {
		h, _ = f.next(t, 2)
	}
	select {
	case <-l.Done():
		t.Fatalf("the connection ended: %v", l.Err())
	default:
	}
	f.dial(2 + 2*protocol.MaxDials)
	lost(t, l)
}

// TestHostile_DialMemory checks that dials nobody reads cost no more than their windows.
func TestHostile_DialMemory(t *testing.T) {
	checkGoroutines(t)
	l, f := openNetwork(t, network{})
	go io.Copy(io.Discard, f.r)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range uint32(protocol.MaxDials) {
		f.dial(2 + 2*i)
		f.body(2+2*i, make([]byte, protocol.MaxDialFrame))
		f.body(2+2*i, make([]byte, protocol.MaxDialFrame-2*protocol.HeaderSize))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 2*protocol.MaxDials*protocol.DialWindow {
		t.Errorf("memory grew by %d bytes", grown)
	}
	select {
	case <-l.Done():
		t.Errorf("the connection ended: %v", l.Err())
	default:
	}
}

// TestDial_Bytes passes bytes in both directions, far more than a window, and ends both
// directions one after the other.
func TestDial_Bytes(t *testing.T) {
	const size = 5*protocol.DialWindow + 17
	checkGoroutines(t)
	served := make(chan error, 1)
	_, f := openNetwork(t, network{serve: func(_ context.Context, d protocol.Dial, c net.Conn) error {
		if d.Name != "example.org" || d.Port != 443 {
			t.Errorf("got %+v", d)
		}
		n, err := io.Copy(c, io.LimitReader(c, size))
		if err == nil && n == size {
			_, err = c.Read(make([]byte, 1))
		}
		if err == io.EOF {
			err = c.(interface{ CloseWrite() error }).CloseWrite()
		}
		served <- err
		return nil
	}})
	sent := make([]byte, size)
	for i := range sent {
		sent[i] = byte(i * 7)
	}
	f.dial(2)
	var got []byte
	rest, window := sent, protocol.DialWindow
	eof := false
	for {
		for len(rest) > 0 && window > protocol.HeaderSize {
			n := min(len(rest), window-protocol.HeaderSize, 10_000)
			f.body(2, rest[:n])
			rest, window = rest[n:], window-protocol.Cost(n)
		}
		if len(rest) == 0 && !eof {
			eof = true
			f.eof(2)
		}
		h, p := f.next(t, 2)
		switch h.Type {
		case protocol.Data:
			if len(p) > protocol.MaxDialFrame {
				t.Errorf("a frame of %d bytes", len(p))
			}
			got = append(got, p...)
			credit := binary.BigEndian.AppendUint32(nil, uint32(protocol.Cost(len(p))))
			f.frame(protocol.Header{Type: protocol.Credit, Op: 2}, credit)
			f.frame(protocol.Header{Type: protocol.Credit}, credit)
			continue
		case protocol.Credit:
			window += int(binary.BigEndian.Uint32(p))
			continue
		case protocol.EOF:
			continue
		case protocol.End:
		default:
			t.Fatalf("got frame %+v", h)
		}
		break
	}
	if string(got) != string(sent) {
		t.Errorf("got %d bytes, want the %d that were sent", len(got), len(sent))
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestDial_AllDialsWindow checks that all dials together have at most a window of data on the
// way to an agent that has not read it, so that other operations go on.
func TestDial_AllDialsWindow(t *testing.T) {
	checkGoroutines(t)
	l, f := openNetwork(t, network{serve: func(_ context.Context, _ protocol.Dial, c net.Conn) error {
		_, err := c.Write(make([]byte, protocol.DialWindow))
		return err
	}})
	for id := range uint32(8) {
		f.dial(2 + 2*id)
	}
	var pinged bool
	for total := 0; ; {
		h, p, err := f.rd.Next()
		if err != nil {
			t.Fatal(err)
		}
		switch h.Type {
		case protocol.Data:
			total += protocol.Cost(len(p))
		case protocol.Open:
			if total > protocol.AllDialsWindow {
				t.Errorf("%d bytes of data came before a ping, want at most %d", total, protocol.AllDialsWindow)
			}
			return
		}
		if total > protocol.AllDialsWindow-protocol.Cost(protocol.MaxDialFrame) && !pinged {
			pinged = true
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); l.Ping(ctx) }()
			t.Cleanup(func() { cancel(); l.Close(); <-done })
		}
	}
}

// TestDial_Conn checks the deadlines and ends of the connection given to Serve.
func TestDial_Conn(t *testing.T) {
	for name, serve := range map[string]func(t *testing.T, ctx context.Context, c net.Conn){
		"read deadline": func(t *testing.T, _ context.Context, c net.Conn) {
			c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("read: got %v", err)
			}
			c.SetDeadline(time.Time{})
			if _, err := c.Write([]byte("x")); err != nil {
				t.Errorf("write: %v", err)
			}
		},
		"deadline during a read": func(t *testing.T, _ context.Context, c net.Conn) {
			time.AfterFunc(10*time.Millisecond, func() { c.SetReadDeadline(time.Unix(1, 0)) })
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("read: got %v", err)
			}
		},
		"write deadline": func(t *testing.T, _ context.Context, c net.Conn) {
			c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
			n, err := c.Write(make([]byte, 2*protocol.DialWindow)) // the guest returns no credit
			if !errors.Is(err, os.ErrDeadlineExceeded) || n == 0 || n > protocol.DialWindow {
				t.Errorf("write: got %d, %v", n, err)
			}
		},
		"close during a read": func(t *testing.T, _ context.Context, c net.Conn) {
			time.AfterFunc(10*time.Millisecond, func() { c.Close() })
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
				t.Errorf("read: got %v", err)
			}
			if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
				t.Errorf("write: got %v", err)
			}
		},
		"cancel": func(t *testing.T, ctx context.Context, c net.Conn) {
			c.Write([]byte("cancel"))
			if _, err := c.Write(make([]byte, 2*protocol.DialWindow)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("write: got %v", err)
			}
			<-ctx.Done()
		},
		"lost": func(t *testing.T, ctx context.Context, c net.Conn) {
			c.Write([]byte("hang up"))
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, client.ErrLost) {
				t.Errorf("read: got %v", err)
			}
			<-ctx.Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			checkGoroutines(t)
			done := make(chan struct{})
			l, f := openNetwork(t, network{serve: func(ctx context.Context, _ protocol.Dial, c net.Conn) error {
				defer close(done)
				serve(t, ctx, c)
				return nil
			}})
			f.dial(2)
			go func() {
				for {
					h, p, err := f.rd.Next()
					switch {
					case err != nil:
						return
					case string(p) == "cancel":
						f.frame(protocol.Header{Type: protocol.Cancel, Op: 2}, nil)
					case string(p) == "hang up":
						f.w.Close()
					}
					_ = h
				}
			}()
			select {
			case <-done:
			case <-time.After(20 * time.Second):
				t.Fatal("Serve hangs")
			}
			l.Close()
		})
	}
}

// TestDial_ResetReachesGuest checks that only the error of a reset is one for the guest.
func TestDial_ResetReachesGuest(t *testing.T) {
	for want, result := range map[protocol.Code]error{"": errors.New("refused"), protocol.CodeLost: syscall.ECONNRESET} {
		_, f := openNetwork(t, network{serve: func(context.Context, protocol.Dial, net.Conn) error { return result }})
		f.dial(2)
		_, p := f.next(t, 2)
		var resp protocol.Response
		if err := json.Unmarshal(p, &resp); err != nil {
			t.Fatal(err)
		}
		if got := resp.Error; (got == nil) != (want == "") || got != nil && got.Code != want {
			t.Errorf("after %v: got %+v, want code %q", result, got, want)
		}
	}
}

// TestLookup checks answers, and that a guest that no longer waits ends a lookup.
func TestLookup(t *testing.T) {
	checkGoroutines(t)
	_, f := openNetwork(t, network{lookup: func(ctx context.Context, name string) protocol.LookupResult {
		if name == "slow.example.org" {
			<-ctx.Done()
		}
		return protocol.LookupResult{Status: protocol.LookupOK, Ports: []int{443}, TTL: 5}
	}})
	f.request(2, protocol.OpLookup, protocol.Lookup{Name: "slow.example.org"})
	f.lookup(4)
	_, p := f.next(t, 4)
	if want := `{"result":{"status":"ok","ports":[443],"ttl":5}}`; string(p) != want {
		t.Errorf("got %s, want %s", p, want)
	}
	f.frame(protocol.Header{Type: protocol.Cancel, Op: 2}, nil)
	if h, _ := f.next(t, 2); h.Type != protocol.End {
		t.Errorf("got %+v", h)
	}
}

// TestConfigure_OldAgent checks that settings are not sent to an agent that does not know
// them.
func TestConfigure_OldAgent(t *testing.T) {
	l, _ := openNetwork(t, network{})
	if err := l.Configure(t.Context(), protocol.Network{On: true}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("got %v, want errors.ErrUnsupported", err)
	}
}

// FuzzDialFrames feeds the host frames of dials and lookups.
func FuzzDialFrames(f *testing.F) {
	open := func(id uint32, op protocol.Op, args any) []byte {
		raw, _ := json.Marshal(args)
		p, _ := json.Marshal(protocol.Request{Op: op, Args: raw})
		return append(protocol.Header{Type: protocol.Open, Op: id, Length: uint32(len(p))}.Append(nil), p...)
	}
	dial := open(2, protocol.OpDial, protocol.Dial{Door: protocol.DoorTCP, Name: "a.b", Port: 1})
	f.Add(dial)
	f.Add(append(dial, append(protocol.Header{Type: protocol.Data, Channel: protocol.Body, Op: 2, Length: 1}.Append(nil), 'x')...))
	f.Add(append(dial, protocol.Header{Type: protocol.EOF, Channel: protocol.Body, Op: 2}.Append(nil)...))
	f.Add(append(dial, protocol.Header{Type: protocol.Cancel, Op: 2}.Append(nil)...))
	f.Add(append(dial, dial...))
	f.Add(open(4, protocol.OpDial, protocol.Dial{Door: protocol.DoorHTTP}))
	f.Add(open(2, protocol.OpLookup, protocol.Lookup{Name: "a.b"}))
	f.Fuzz(func(t *testing.T, in []byte) {
		l, fk := openNetwork(t, network{
			lookup: func(_ context.Context, name string) protocol.LookupResult {
				if !protocol.ValidName(name) {
					t.Errorf("lookup of %q", name)
				}
				return protocol.LookupResult{Status: protocol.LookupOK, Ports: []int{443}}
			},
			serve: func(_ context.Context, d protocol.Dial, c net.Conn) error {
				if err := d.Check(); err != nil {
					t.Error(err)
				}
				_, err := io.Copy(c, c)
				return err
			},
		})
		go io.Copy(io.Discard, fk.r)
		fk.w.Write(in)
		fk.w.Close()
		<-l.Done()
		l.Close()
	})
}
