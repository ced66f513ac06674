package stream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// input is a stream with some bytes to read. It discards writes.
type input struct {
	io.Reader
	written bytes.Buffer
}

func (i *input) Write(p []byte) (int, error) { return i.written.Write(p) }
func (i *input) Close() error                { return nil }

// methods reads all messages and returns the methods of requests, and "=" for
// responses.
func methods(t *testing.T, c *Conn) (all []string, err error) {
	t.Helper()
	for {
		m, err := c.Read(t.Context())
		if err != nil {
			return all, err
		}
		switch m := m.(type) {
		case *jsonrpc.Request:
			all = append(all, m.Method)
		case *jsonrpc.Response:
			all = append(all, "=")
		}
	}
}

func TestRead(t *testing.T) {
	const a, b, answer = `{"jsonrpc":"2.0","id":1,"method":"a"}`, `{"jsonrpc":"2.0","method":"b"}`, `{"jsonrpc":"2.0","id":1,"result":{}}`
	for _, tt := range []struct {
		name, in string
		want     []string
		noise    int64
	}{
		{"messages", a + "\n" + b + "\r\n" + answer + "\n", []string{"a", "b", "="}, 0},
		{"empty lines", "\n\n" + a + "\n  \n" + b + "\n", []string{"a", "b"}, 0},
		{"no end of the last line", a + "\n" + b, []string{"a", "b"}, 0},
		{"a log line", "Server running on stdio\n" + a + "\n", []string{"a"}, 1},
		{"a log line in JSON", `{"level":"info","msg":"up"}` + "\n" + a + "\n", []string{"a"}, 1},
		{"half a message", a[:10] + "\n" + b + "\n", []string{"b"}, 1},
		{"two messages in a line", a + b + "\n" + answer + "\n", []string{"a", "b", "="}, 0},
		{"a message and noise in a line", a + " and more\n" + b + "\n", []string{"a", "b"}, 1},
		{"a batch", "[" + a + "," + answer + "]\n", []string{"a", "="}, 0},
		{"a batch with noise", "[" + a + ",1," + b + "]\n", []string{"a", "b"}, 1},
		{"an empty batch", "[]\n" + a + "\n", []string{"a"}, 0},
		{"a broken batch", "[" + a + "\n" + b + "\n", []string{"b"}, 1},
		{"a batch of too many", "[" + strings.Repeat("{},", maxBatch) + "{}]\n" + a + "\n", []string{"a"}, 1},
		{"another version", `{"jsonrpc":"1.0","id":1,"method":"a"}` + "\n" + b + "\n", []string{"b"}, 1},
		{"an answer to nothing", `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}` + "\n" + b + "\n", []string{"b"}, 1},
		{"binary", "\x00\xff\xfe\n" + a + "\n", []string{"a"}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := New(&input{Reader: strings.NewReader(tt.in)}, Options{})
			got, err := methods(t, c)
			if !errors.Is(err, io.EOF) {
				t.Errorf("got %v, want EOF", err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || c.noise.Load() != tt.noise {
				t.Errorf("noise %d, want %d; (-want +got)\n%s", c.noise.Load(), tt.noise, diff)
			}
		})
	}
}

func TestRead_LineTooLarge(t *testing.T) {
	fits := `{"jsonrpc":"2.0","method":"` + strings.Repeat("x", 100) + `"}`
	c := New(&input{Reader: strings.NewReader(fits + "\n" + fits + " \n")}, Options{MaxMessage: len(fits)})
	if _, err := c.Read(t.Context()); err != nil {
		t.Errorf("a message of just the limit: %v", err)
	}
	if _, err := c.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("a message over the limit: %v", err)
	}
	// One that never ends is not kept.
	endless := New(&input{Reader: io.LimitReader(forever{}, 1<<40)}, Options{MaxMessage: 1 << 20})
	if _, err := endless.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("an endless line: %v", err)
	}
}

// The answer to a request that is over the limit fails this request, as soon as it is known
// which one, and the connection goes on.
func TestRead_AnswerTooLarge(t *testing.T) {
	large := errors.New("too large")
	text := strings.Repeat("x", 3<<20)
	next := `{"jsonrpc":"2.0","id":8,"result":{}}` + "\n"
	for name, c := range map[string]struct {
		in  string
		end string // of the error that ends the connection; "": it goes on
	}{
		"id first":            {`{"jsonrpc":"2.0","id":7,"result":{"x":"` + text + `"}}` + "\n" + next, ""},
		"id last":             {`{"jsonrpc":"2.0","result":{"id":9,"x":"` + text + `"},"id":7}` + "\n" + next, ""},
		"a request":           {`{"jsonrpc":"2.0","id":7,"method":"m","params":{"x":"` + text + `"}}` + "\n" + next, "larger than 1048576 bytes"},
		"a notification":      {`{"jsonrpc":"2.0","method":"m","params":{"x":"` + text + `"}}` + "\n" + next, "larger than 1048576 bytes"},
		"a batch":             {`[{"jsonrpc":"2.0","id":7,"result":{"x":"` + text + `"}}]` + "\n" + next, "larger than 1048576 bytes"},
		"no message":          {text + "\n" + next, "larger than 1048576 bytes"},
		"larger than is read": {`{"jsonrpc":"2.0","result":{"x":"` + strings.Repeat(text, 6) + `"},"id":7}` + "\n" + next, "larger than 1048576 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			c1 := New(&input{Reader: strings.NewReader(c.in)}, Options{MaxMessage: 1 << 20, TooLarge: large})
			m, err := c1.Read(t.Context())
			if c.end != "" {
				if err == nil || !strings.Contains(err.Error(), c.end) {
					t.Errorf("got %v, %v", m, err)
				}
				return
			}
			r, ok := m.(*jsonrpc.Response)
			if err != nil || !ok || r.ID.Raw() != int64(7) || !errors.Is(r.Error, large) {
				t.Fatalf("got %+v, %v", m, err)
			}
			if m, err = c1.Read(t.Context()); err != nil || m.(*jsonrpc.Response).ID.Raw() != int64(8) {
				t.Errorf("the next message: %+v, %v", m, err)
			}
		})
	}
}

type forever struct{}

func (forever) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestClose_EndsRead(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	c := New(here, Options{})
	done := make(chan error, 1)
	go func() { _, err := c.Read(context.Background()); done <- err }()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want EOF", err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
}

func TestWrite_PeerDoesNotRead(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	c := New(here, Options{})
	enough := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, enough)
	defer cancel()
	m := &jsonrpc.Request{Method: "a"}
	if err := c.Write(ctx, m); !errors.Is(err, enough) {
		t.Errorf("got %v, want %v", err, enough)
	}
	if err := c.Write(t.Context(), m); err == nil {
		t.Error("the connection is still open in the middle of a message")
	}
}

// slowPeer reads a message only after the sender has given up, or the stream was closed.
type slowPeer struct {
	input
	giveUp func()
	closed chan struct{}
}

func (p *slowPeer) Write(b []byte) (int, error) {
	p.giveUp()
	select {
	case <-p.closed:
		return 0, io.ErrClosedPipe
	case <-time.After(100 * time.Millisecond):
	}
	return p.input.Write(b)
}

func (p *slowPeer) Close() error { close(p.closed); return nil }

// A sender that gives up at the moment of the write does not cost the connection.
func TestWrite_CancelledWhileWriting(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	peer := &slowPeer{giveUp: cancel, closed: make(chan struct{})}
	c := New(peer, Options{})
	for _, ctx := range []context.Context{ctx, t.Context()} {
		if err := c.Write(ctx, &jsonrpc.Request{Method: "a"}); err != nil {
			t.Errorf("got %v", err)
		}
	}
	if n := bytes.Count(peer.written.Bytes(), []byte("\n")); n != 2 {
		t.Errorf("%d messages were written", n)
	}
}

// A Write whose context ends while it waits for another does not affect that one.
func TestWrite_CancelledWhileWaiting(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	c := New(here, Options{})
	defer c.Close()
	first := make(chan error, 1)
	begun := make([]byte, 1)
	go func() { first <- c.Write(t.Context(), &jsonrpc.Request{Method: "a"}) }()
	if _, err := io.ReadFull(there, begun); err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, enough)
	defer cancel()
	if err := c.Write(ctx, &jsonrpc.Request{Method: "b"}); !errors.Is(err, enough) {
		t.Errorf("the second: got %v, want %v", err, enough)
	}
	rest, err := bufio.NewReader(there).ReadString('\n')
	if err != nil || string(begun)+rest != `{"jsonrpc":"2.0","method":"a"}`+"\n" {
		t.Errorf("got %q, %v", string(begun)+rest, err)
	}
	if err := <-first; err != nil {
		t.Errorf("the first: %v", err)
	}
}

// The messages of a batch are counted while they are decoded.
func TestRead_BatchTooLarge(t *testing.T) {
	line := []byte("[" + strings.Repeat("0,", 1<<20) + "0]")
	c := New(&input{Reader: strings.NewReader("")}, Options{})
	if n := testing.AllocsPerRun(1, func() { c.messages(line) }); n > 10*maxBatch || c.noise.Load() != 2 {
		t.Errorf("%v allocations, %d lines of noise", n, c.noise.Load())
	}
}

// The trace contains what was sent and received.
func TestTrace(t *testing.T) {
	in := &input{Reader: strings.NewReader("hi\n" + `{"jsonrpc":"2.0","method":"a"}` + "\n")}
	var got []string
	c := New(in, Options{Trace: func(d Direction, b []byte) { got = append(got, string(d)+" "+string(b)) }})
	if err := c.Write(t.Context(), &jsonrpc.Request{Method: "b"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{`sent {"jsonrpc":"2.0","method":"b"}`, "noise hi", `received {"jsonrpc":"2.0","method":"a"}`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got, want := in.written.String(), `{"jsonrpc":"2.0","method":"b"}`+"\n"; got != want {
		t.Errorf("written: %q, want %q", got, want)
	}
}

// The SDK's client works over a Conn, with a server that writes other output in
// between.
func TestConn_Session(t *testing.T) {
	here, there := net.Pipe()
	server := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "echo", Description: "echo"}, func(_ context.Context, _ *mcp.CallToolRequest, in struct{ Text string }) (*mcp.CallToolResult, any, error) {
		there.Write([]byte("a line of the log\n{\"level\":\"info\"}\n"))
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: in.Text}}}, nil, nil
	})
	ss, err := server.Connect(t.Context(), &mcp.IOTransport{Reader: there, Writer: there}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ss.Close()
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, nil).Connect(t.Context(), transport{New(here, Options{})}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cs.Close()
	for range 3 {
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"Text": "hello"}})
		if err != nil || res.Content[0].(*mcp.TextContent).Text != "hello" {
			t.Fatalf("got %+v, %v", res, err)
		}
	}
}

// transport is a transport with an existing connection.
type transport struct{ conn mcp.Connection }

func (t transport) Connect(context.Context) (mcp.Connection, error) { return t.conn, nil }

func FuzzRead(f *testing.F) {
	f.Add([]byte("{}\n[{}]\n"), 100)
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"a"}`), 40)
	f.Fuzz(func(t *testing.T, in []byte, limit int) {
		c := New(&input{Reader: bytes.NewReader(in)}, Options{MaxMessage: limit & 0xfff})
		for range len(in) + 2 {
			if _, err := c.Read(t.Context()); err != nil {
				return
			}
		}
		t.Error("more messages than bytes")
	})
}
