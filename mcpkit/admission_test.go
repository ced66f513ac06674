package mcpkit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/mcpkit/internal/envelope"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// manyValues is an answer of just under 16 MiB that takes hundreds of MB decoded.
func manyValues(m message) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[],"structuredContent":{"x":[%s0]}}}`, m.ID, strings.Repeat("{},", 16<<20/3-100))
}

// peakHeap returns by how many bytes the heap grew at most while f ran.
func peakHeap(f func()) uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	before, peak := m.HeapAlloc, m.HeapAlloc
	ctx, stop := context.WithCancel(context.Background())
	sampled := make(chan struct{})
	go func() {
		defer close(sampled)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapAlloc)
			<-tick.C
		}
	}()
	f()
	stop()
	<-sampled
	return peak - before
}

// A result of few bytes and many values is refused before it takes much memory, and the
// server stays usable.
func TestAdmission_ManyValues(t *testing.T) {
	nothingLeft(t)
	over := func(contentType, format string) *mcpjson.Server {
		url := hostileHTTP(t, func(w http.ResponseWriter, _ *http.Request, m message) bool {
			if m.Method != "tools/call" || m.Params.Name != "odd" {
				return false
			}
			w.Header().Set("Content-Type", contentType)
			fmt.Fprintf(w, format, manyValues(m))
			return true
		})
		return &mcpjson.Server{Name: "srv", Transport: mcpjson.TransportHTTP, URL: mcpjson.Literal(url)}
	}
	for name, def := range map[string]*mcpjson.Server{
		"program": program("srv", "returns-many-values"),
		"JSON":    over("application/json", "%s"),
		"events":  over("text/event-stream", ": \"hello\nevent: message\r\ndata: %s\r\n\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			m := manager(t, Options{Limits: Limits{Request: patience, Connect: patience}}, def)
			s := session(t, m, "srv")
			wantCall(t, s, "good", nil, "good")
			var err error
			grown := peakHeap(func() { _, err = call(t, s, "odd", nil) })
			t.Logf("the heap grew by %d MiB", grown>>20)
			if !errors.Is(err, ErrTooManyValues) {
				t.Errorf("got %.300v", err)
			}
			if grown > 256<<20 {
				t.Errorf("the heap grew by %d MiB for a message of 16 MiB", grown>>20)
			}
			wantCall(t, s, "good", nil, "good")
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("question", func(t *testing.T) {
		m := manager(t, Options{Limits: Limits{Request: patience, Connect: patience}}, program("srv", "asks-with-many-values"))
		if grown := peakHeap(func() { wantCall(t, session(t, m, "srv"), "odd", nil, "good") }); grown > 256<<20 {
			t.Errorf("the heap grew by %d MiB for a message of 16 MiB", grown>>20)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Admission is asked once for each result, before the result is decoded, and its error is
// that of the request.
func TestAdmission_Asked(t *testing.T) {
	nothingLeft(t)
	refused := errors.New("no memory")
	url := hostileHTTP(t, func(w http.ResponseWriter, _ *http.Request, m message) bool {
		if m.Method != "tools/call" {
			return false
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: %s\n\n", result(m, "good"))
		return true
	})
	for name, def := range map[string]*mcpjson.Server{
		"program": program("srv", "answers-twice"),
		"JSON":    {Name: "srv", Transport: mcpjson.TransportHTTP, URL: mcpjson.Literal(hostileHTTP(t, func(http.ResponseWriter, *http.Request, message) bool { return false }))},
		"events":  {Name: "srv", Transport: mcpjson.TransportHTTP, URL: mcpjson.Literal(url)},
	} {
		t.Run(name, func(t *testing.T) {
			m := manager(t, Options{Limits: Limits{Request: patience, Connect: patience}}, def)
			s := session(t, m, "srv")
			wantCall(t, s, "good", nil, "good")
			var asked atomic.Int64
			var answer error
			ctx := WithAdmission(t.Context(), func(ctx context.Context, memory int) error {
				if memory < 100 || memory > 100_000 {
					t.Errorf("asked for %d bytes", memory)
				}
				asked.Add(1)
				return answer
			})
			for i, want := range []error{nil, refused, nil} {
				answer = want
				if _, err := RequestTyped[map[string]any](ctx, s, "tools/call", map[string]any{"name": "odd"}); !errors.Is(err, want) || asked.Load() != int64(i+1) {
					t.Errorf("request %d: got %v, asked %d times", i, err, asked.Load())
				}
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAdmittedBody checks that a reader gets the bytes of a body unchanged, and the end of
// each message only once it is admitted, however the body arrives.
func TestAdmittedBody(t *testing.T) {
	long := strings.Repeat("x", 10_000)
	for _, c := range []struct {
		name, body string
		events     bool
		want       []int // values of the messages
	}{
		{"object", `{"a":[1,2],"b":"[,\"{"}`, false, []int{4}},
		{"lines", "{\n\"a\":\n1}\n", false, []int{1}},
		{"long", `["` + long + `",1]`, false, []int{2}},
		{"empty", "", false, nil},
		{"events", ": \"hello,\n\ndata:\nevent: a,b\ndata: [1,\ndata: 2]\n\ndata: {}\r\n\r\ndata: [" + long + ",1]", true, []int{2, 1, 2}},
		{"comments", ": ping\n\n: ping\n\n", true, nil},
	} {
		for name, in := range map[string]io.Reader{
			"whole": strings.NewReader(c.body), "bytes": iotest.OneByteReader(strings.NewReader(c.body)), "end with data": iotest.DataErrReader(strings.NewReader(c.body)),
		} {
			t.Run(c.name+" "+name, func(t *testing.T) {
				var got []int
				read := 0
				state := &connState{maxArriving: 1 << 20}
				body := &admittedBody{in: bufio.NewReader(in), events: c.events, state: state, admit: func(s *envelope.Scanner, _ bool) error {
					got = append(got, s.Values)
					if len(got) == len(c.want) && read == len(c.body) {
						t.Error("the whole message was delivered before it was admitted")
					}
					return nil
				}}
				var all []byte
				for buf := make([]byte, 100); ; {
					n, err := body.Read(buf)
					all = append(all, buf[:n]...)
					if read = len(all); err != nil {
						break
					}
				}
				if left := state.arriving.Load(); left != 0 {
					t.Errorf("%d bytes are still counted as arriving", left)
				}
				if string(all) != c.body || !slices.Equal(got, c.want) {
					t.Errorf("got %d of %d bytes, admitted %v, want %v", len(all), len(c.body), got, c.want)
				}
			})
		}
	}
}

// admissions records the memory of results.
type admissions struct {
	mu     sync.Mutex
	all    []int
	answer error
}

func (a *admissions) context(ctx context.Context) context.Context {
	return WithAdmission(ctx, func(_ context.Context, memory int) error {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.all = append(a.all, memory)
		return a.answer
	})
}

func (a *admissions) got() []int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.all)
}

// Memory is accounted for results only, while they are in use: nothing else that a server
// sends for a request takes or frees memory.
func TestAdmission_ResultsOnly(t *testing.T) {
	nothingLeft(t)
	long := strings.Repeat("x", 1<<20)
	ofLong := copies * len(result(message{ID: []byte("1")}, long))
	for name, tc := range map[string]struct {
		send func(send func(format string, args ...any) error, m message) // on the stream of the request
		want []int                                                        // memory, at least
		err  string
	}{
		"notification before": {func(send func(string, ...any) error, m message) {
			_ = send("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":%q}}\n\n", long)
			_ = send("data: %s\n\n", result(m, "good"))
		}, []int{100}, ""},
		"notifications after": {func(send func(string, ...any) error, m message) {
			_ = send("data: %s\n\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n:\n\ndata: {}\n\n", result(m, long))
		}, []int{ofLong}, ""},
		"no result": {func(send func(string, ...any) error, m message) {
			_ = send("event: other\ndata: %s\n\n", result(m, long))
			_ = send("data: %s\n\n", result(m, "good"))
		}, nil, errOddEvent.Error()},
		"spaces that JSON has not": {func(send func(string, ...any) error, m message) {
			_ = send("data: \u00a0%s\n\n", result(m, long))
		}, nil, errNoMessage.Error()},
		"question": {func(send func(string, ...any) error, m message) {
			if m.Params.State == "" {
				_ = send("data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"resultType\":\"input_required\",\"inputRequests\":{},\"requestState\":\"s\",\"x\":%q}}\n\n", m.ID, long)
				return
			}
			_ = send("data: %s\n\n", result(m, "good"))
		}, []int{ofLong, 0, 100}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			url := hostileHTTP(t, func(w http.ResponseWriter, _ *http.Request, m message) bool {
				if m.Method == "tools/call" {
					tc.send(events(w), m)
				}
				return m.Method == "tools/call"
			})
			m := manager(t, Options{Limits: Limits{Request: patience, Connect: patience}}, endpoint("srv", url))
			var a admissions
			_, err := session(t, m, "srv").CallTool(a.context(t.Context()), &mcp.CallToolParams{Name: "odd"})
			if !says(err, tc.err) {
				t.Errorf("got %v, want %q", err, tc.err)
			}
			got := a.got()
			if !slices.EqualFunc(got, tc.want, func(got, least int) bool { return got >= least && got <= 2*least+2000 && (got == 0) == (least == 0) }) {
				t.Errorf("accounted for %d bytes, want about %d", got, tc.want)
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A result is admitted once on every transport.
func TestAdmission_EveryTransport(t *testing.T) {
	nothingLeft(t)
	for name, def := range servers(t) {
		t.Run(name, func(t *testing.T) {
			m := manager(t, Options{Limits: Limits{Request: patience, Connect: patience}}, def)
			var a admissions
			_, err := session(t, m, name).CallTool(a.context(t.Context()), &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"text": "x"}})
			if got := a.got(); err != nil || len(got) != 1 || got[0] < 100 {
				t.Errorf("got %v, accounted for %d bytes", err, got)
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A result is admitted for the request that it is for, whatever stream it comes on.
func TestAdmission_OtherStream(t *testing.T) {
	nothingLeft(t)
	long := strings.Repeat("x", 1<<20)
	refused := errors.New("no memory")
	for _, stream := range []string{"another request", "GET"} {
		for _, answer := range []error{nil, refused} {
			t.Run(fmt.Sprintf("%s, %v", stream, answer), func(t *testing.T) {
				asked := make(chan message, 1)
				open := make(chan struct{})
				url := hostileHTTP(t, func(w http.ResponseWriter, r *http.Request, m message) bool {
					carries := r.Method == http.MethodGet && stream == "GET" || m.Params.Name == "carrier"
					switch {
					case carries:
						send := events(w)
						close(open)
						select {
						case other := <-asked:
							_ = send("data: %s\n\n", result(other, long))
							_ = send("data: %s\n\n", result(m, "good"))
						case <-r.Context().Done():
						}
					case m.Params.Name == "odd":
						_ = events(w)("")
						asked <- m
						<-r.Context().Done()
					default:
						return false
					}
					return true
				})
				m := manager(t, Options{Limits: Limits{Request: patience, Connect: patience}}, endpoint("srv", url))
				s := session(t, m, "srv")
				var carrier, odd admissions
				odd.answer = answer
				var wg sync.WaitGroup
				if stream != "GET" {
					wg.Go(func() { _, _ = s.CallTool(carrier.context(t.Context()), &mcp.CallToolParams{Name: "carrier"}) })
				} else {
					wantCall(t, s, "good", nil, "good") // connects
				}
				<-open
				_, err := s.CallTool(odd.context(t.Context()), &mcp.CallToolParams{Name: "odd"})
				if !errors.Is(err, answer) {
					t.Errorf("got %v, want %v", err, answer)
				}
				if got := odd.got(); len(got) != 1 || got[0] < copies*len(long) {
					t.Errorf("accounted for %d bytes, want one result of %d", got, copies*len(long))
				}
				wg.Wait()
				for _, got := range carrier.got() {
					if got > 10_000 {
						t.Errorf("the request of the stream was accounted for %d bytes", got)
					}
				}
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// A second response takes no more memory than was admitted for the first one.
func TestAdmission_SecondResponse(t *testing.T) {
	l := &connState{maxValues: 100}
	var a admissions
	ctx, f := newPendingRequest(a.context(t.Context()))
	id, err := jsonrpc.MakeID("1")
	if err != nil {
		t.Fatal(err)
	}
	l.expect(ctx, id)
	for _, tc := range []struct {
		size int
		want error
	}{{1000, nil}, {1000, nil}, {2000, errSecondResponse}, {10, nil}} {
		if _, err := l.admit(id, tc.size, 1); !errors.Is(err, tc.want) {
			t.Errorf("a response of %d bytes: got %v, want %v", tc.size, err, tc.want)
		}
	}
	if got := a.got(); !slices.Equal(got, []int{copies*1000 + valueMemory}) {
		t.Errorf("accounted for %d bytes", got)
	}
	if l.forget(f); len(l.expected) > 0 {
		t.Errorf("%d responses are still expected", len(l.expected))
	}
}

// The messages of a server that are not complete are bounded together, for each manager: an
// owner whose server has used it up does not keep another one from the same server.
func TestAdmission_Arriving(t *testing.T) {
	nothingLeft(t)
	const most = 64 << 10
	part := strings.Repeat("x", most-1000)
	var full atomic.Int64
	url := hostileHTTP(t, func(w http.ResponseWriter, r *http.Request, m message) bool {
		if m.Params.Name != "odd" {
			return false
		}
		_ = events(w)("data: {\"x\":\"%s\ndata:", part)
		full.Add(1)
		<-r.Context().Done()
		return true
	})
	m := manager(t, Options{Limits: Limits{Request: patience, Connect: patience, Message: most}}, endpoint("srv", url))
	s := session(t, m, "srv")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed := make(chan error, maxArriving+2)
	for range maxArriving + 2 {
		go func() {
			_, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "odd"})
			failed <- err
		}()
	}
	if err := <-failed; !errors.Is(err, errArriving) {
		t.Errorf("got %v", err)
	}
	other := manager(t, Options{Limits: Limits{Request: patience, Connect: patience, Message: most}}, endpoint("srv", url))
	wantCall(t, session(t, other, "srv"), "good", nil, "good")
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	cancel()
	for range maxArriving + 1 {
		<-failed
	}
	wantCall(t, s, "good", nil, "good")
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}
