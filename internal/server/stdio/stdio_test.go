package stdio_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/polltest"
	"github.com/glovebox-dev/glovebox/internal/server/stdio"
)

const (
	initialize  = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
	oldInit     = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
)

func server() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "t", Version: "1"}, nil)
	s.AddTool(&mcp.Tool{Name: "wait", Description: "waits", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			var in struct {
				MS int `json:"ms"`
			}
			_ = json.Unmarshal(req.Params.Arguments, &in)
			select {
			case <-time.After(time.Duration(in.MS) * time.Millisecond):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "waited"}}}, nil
		})
	return s
}

func wait(id any, ms int) string {
	raw, _ := json.Marshal(id)
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"wait","arguments":{"ms":%d}}}`, raw, ms)
}

// inUse is an id that a test uses twice at once.
const inUse = `"w"`

type output struct {
	mu sync.Mutex
	bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.Buffer.Write(p)
}

// start serves a client over the transport and returns a channel that is closed
// when the connection has ended.
func start(t testing.TB, s *mcp.Server, tr *stdio.Transport) (ended chan struct{}) {
	ended = make(chan struct{})
	go func() {
		defer close(ended)
		_ = tr.Serve(t.Context(), func(of mcp.Transport) (*mcp.ServerSession, error) { return s.Connect(t.Context(), of, nil) })
	}()
	return ended
}

// run feeds input to a session and returns what it wrote, by id; errors
// without an id are numbered.
func run(t *testing.T, tr *stdio.Transport, input io.Reader) map[string]string {
	t.Helper()
	var out output
	tr.In, tr.Out = input, &out
	ended := start(t, server(), tr)
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("the session does not end")
	}
	answers := make(map[string]string)
	sc := bufio.NewScanner(&out.Buffer)
	sc.Buffer(nil, 1<<20)
	for n := 0; sc.Scan(); {
		line := sc.Text()
		if strings.HasPrefix(line, "[") {
			answers["batch"] = line
			continue
		}
		var m struct {
			V  string          `json:"jsonrpc"`
			ID json.RawMessage `json:"id"`
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil || m.V != "2.0" {
			t.Errorf("%q is not JSON-RPC", line)
		}
		key := string(m.ID)
		if key == "null" {
			n++
			key = fmt.Sprint("null", n)
		}
		if _, twice := answers[key]; twice && key != inUse {
			t.Errorf("id %s is answered twice", key)
		}
		answers[key] += line
	}
	return answers
}

func lines(l ...string) io.Reader { return strings.NewReader(strings.Join(l, "\n") + "\n") }

// TestPipe_AnswersEverything: a server whose input ends, as in a shell pipe, answers
// every request that it received.
func TestPipe_AnswersEverything(t *testing.T) {
	in := []string{initialize, initialized}
	for i := range 20 {
		in = append(in, wait(i+1, 10*(20-i)))
	}
	got := run(t, &stdio.Transport{}, strings.NewReader(strings.Join(in, "\n"))) // no last newline
	for i := range 21 {
		if !strings.Contains(got[fmt.Sprint(i)], `"result"`) {
			t.Errorf("id %d: got %q", i, got[fmt.Sprint(i)])
		}
	}
}

func TestLines_Invalid(t *testing.T) {
	got := run(t, &stdio.Transport{MaxLine: 2000}, lines(
		"\xef\xbb\xbf"+initialize+"\r", initialized, "",
		`{"jsonrpc":`, // null1
		`not json`,    // null2
		`"text"`,      // null3
		`[]`,          // null4: a batch, which this revision lacks
		`[{"jsonrpc":"2.0","id":1,"method":"ping"}]`,             // null5
		"{\"jsonrpc\":\"2.0\",\"id\":\"u\",\"method\":\"\xff\"}", // null6
		`{"jsonrpc":"1.0","id":2,"method":"ping"}`,
		`{"jsonrpc":"2.0","id":3}`,
		`{"jsonrpc":"2.0","id":4,"method":"no/such"}`,
		`{"jsonrpc":"2.0","id":5,"method":"ping"} trailing`, // null7
		`{"jsonrpc":"2.0","id":"long","method":"ping","params":{"x":"`+strings.Repeat("x", 70_000)+`"}}`,
		`{"jsonrpc":"2.0","method":"no/such/notification"}`,
		`{"jsonrpc":"2.0","id":99,"result":{}}`, // an answer to nothing
		wait("w", 100), wait("w", 1),
		"   ", "\t"+`{"jsonrpc":"2.0","id":6,"method":"ping"}`,
	))
	for id, want := range map[string]string{
		"0": `"result"`, "null1": "-32700", "null2": "-32700", "null3": "-32600", "null4": "-32600", "null5": "-32600", "null6": "-32700",
		"2": "-32600", "3": "-32600", "4": "-32601", "null7": "-32700", `"long"`: "-32600", "6": `"result":{}`,
		inUse: "is in use",
	} {
		if !strings.Contains(got[id], want) {
			t.Errorf("id %s: got %q, want %s", id, got[id], want)
		}
	}
	for id, line := range got {
		if strings.Contains(line, `"code":0`) {
			t.Errorf("id %s: an error without a code: %s", id, line)
		}
	}
}

// TestRequests_LimitInFlight: a request over the limit is refused, and the others are
// answered.
func TestRequests_LimitInFlight(t *testing.T) {
	const most = 1000
	in := []string{initialize, initialized}
	for id := range most + 5 {
		in = append(in, wait(id+1, 4000))
	}
	got := run(t, &stdio.Transport{}, lines(in...))
	answered, refused := 0, 0
	for id, line := range got {
		switch {
		case id == "0":
		case strings.Contains(line, `"waited"`):
			answered++
		case strings.Contains(line, "-32600") && strings.Contains(line, "1000 requests are in flight"):
			refused++
		default:
			t.Errorf("id %s: %s", id, line)
		}
	}
	if answered < most-1 || refused == 0 || answered+refused != most+5 {
		t.Errorf("%d answered, %d refused", answered, refused)
	}
}

func TestRequests_BeforeInitialize(t *testing.T) {
	got := run(t, &stdio.Transport{}, lines(wait(1, 0)))
	if !strings.Contains(got["1"], "-32600") {
		t.Errorf("got %q", got["1"])
	}
}

func TestBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pr, pw := io.Pipe()
		go func() {
			fmt.Fprintln(pw, oldInit)
			fmt.Fprintln(pw, initialized)
			synctest.Wait() // the revision is known
			fmt.Fprintln(pw, `[`+wait(1, 50)+`,{"jsonrpc":"2.0","method":"notifications/initialized"},`+wait(2, 1)+`,{"id":3}]`)
			pw.Close()
		}()
		got := run(t, &stdio.Transport{}, pr)
		var answers []struct {
			ID    any             `json:"id"`
			Error json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal([]byte(got["batch"]), &answers); err != nil || len(answers) != 3 {
			t.Errorf("got %v, %v", got, err)
		}
	})
}

// abortable returns a server whose calls end when abort is called.
func abortable(t *testing.T) (s *mcp.Server, abort func()) {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	s = server()
	s.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(c context.Context, m string, r mcp.Request) (mcp.Result, error) {
			c, stop := context.WithCancel(c)
			defer stop()
			defer context.AfterFunc(ctx, stop)()
			return next(c, m, r)
		}
	})
	return s, cancel
}

func TestGrace_AbortsCalls(t *testing.T) {
	s, abort := abortable(t)
	var out output
	ended := start(t, s, &stdio.Transport{
		In: lines(initialize, initialized, wait(1, 60_000)), Out: &out,
		Grace: 100 * time.Millisecond, Abort: abort,
	})
	begin := time.Now()
	<-ended
	if time.Since(begin) > 5*time.Second {
		t.Errorf("ended after %v", time.Since(begin))
	}
	if !strings.Contains(out.String(), `"id":1,"error"`) {
		t.Errorf("got %q", out.String())
	}
}

// TestGrace_CallIgnoresCancel: a call that ignores its cancellation delays the end of a
// session only briefly.
func TestGrace_CallIgnoresCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output
		aborted := false
		begin := time.Now()
		ended := start(t, server(), &stdio.Transport{
			In: lines(initialize, initialized, wait(1, 600_000)), Out: &out,
			Grace: 10 * time.Second, Abort: func() { aborted = true },
		})
		<-ended
		if took := time.Since(begin); !aborted || took <= 10*time.Second || took > 15*time.Second {
			t.Errorf("aborted %v, ended after %v", aborted, took)
		}
	})
}

// unreadPipe takes one write and then blocks until the test ends.
type unreadPipe struct {
	output
	full bool
	end  <-chan struct{}
}

func (p *unreadPipe) Write(b []byte) (int, error) {
	if p.full {
		<-p.end
		return 0, io.ErrClosedPipe
	}
	p.full = true
	return p.output.Write(b)
}

// TestStop_ClientDoesNotRead: a client that lives on and reads nothing does not keep Serve from
// returning, whichever goroutine writes to it. That is no error: other transports go on.
func TestStop_ClientDoesNotRead(t *testing.T) {
	for name, lines := range map[string][]string{
		"an answer":        {wait(1, 1)},
		"invalid lines":    {"x", "x", "x"},
		"a duplicate id":   {wait(1, 60_000), wait(1, 1), wait(1, 1)},
		"a batch":          {`[{"id":3},{"id":4}]`, "x"},
		"many at once":     slices.Repeat([]string{"x"}, 3000),
		"an end of input":  {"x", "end"},
		"an answer at EOF": {wait(1, 1), "end"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				end, stop := make(chan struct{}), make(chan struct{})
				in, client := io.Pipe()
				go func() {
					for _, l := range slices.Concat([]string{oldInit, initialized}, lines) {
						if l == "end" {
							client.Close()
							return
						}
						if _, err := fmt.Fprintln(client, l); err != nil {
							return
						}
					}
				}()
				served := make(chan error)
				s := server()
				go func() {
					tr := &stdio.Transport{In: in, Out: &unreadPipe{end: end}, Grace: 20 * time.Second, StopGrace: 10 * time.Second, Stop: stop}
					served <- tr.Serve(t.Context(), func(of mcp.Transport) (*mcp.ServerSession, error) { return s.Connect(t.Context(), of, nil) })
				}()
				time.Sleep(time.Second)
				begin := time.Now()
				if !strings.Contains(strings.Join(lines, " "), "end") {
					close(stop)
				}
				if err := <-served; err != nil {
					t.Error(err)
				}
				if took := time.Since(begin); took > 40*time.Second {
					t.Errorf("ended after %v", took)
				}
				close(end)
				in.Close()
			})
		})
	}
}

// The calls of a killed client are cancelled. Those of a client that only ended its input
// are answered.
func TestClient_KilledAbortsCalls(t *testing.T) {
	s, abort := abortable(t)
	inr, inw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer inr.Close()
	outr, outw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer outw.Close()
	aborted := make(chan struct{})
	ended := start(t, s, &stdio.Transport{
		In: inr, Out: outw, Abort: func() { abort(); close(aborted) },
	})
	fmt.Fprintf(inw, "%s\n%s\n%s\n%s\n", initialize, initialized, wait(1, 60_000), wait(2, 1000))
	answers := bufio.NewScanner(outr)
	answers.Scan() // to initialize
	inw.Close()
	if answers.Scan(); !strings.Contains(answers.Text(), `"id":2`) || strings.Contains(answers.Text(), "error") {
		t.Errorf("after the end of the input: got %q, want the answer to request 2", answers.Text())
	}
	outr.Close()
	select {
	case <-aborted:
	case <-time.After(30 * time.Second):
		t.Error("the call of a client that is gone has not been cancelled after 30 s")
		abort()
	}
	<-ended
}

const (
	modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"}}`
	discover   = `{"jsonrpc":"2.0","id":"d","method":"server/discover","params":{` + modernMeta + `}}`
)

func modernWait(id any, ms int) string {
	raw, _ := json.Marshal(id)
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{%s,"name":"wait","arguments":{"ms":%d}}}`, raw, modernMeta, ms)
}

// TestInitialize_AfterDiscover: a client that probes for the newer revision and then
// falls back is served in both, in any order.
func TestInitialize_AfterDiscover(t *testing.T) {
	for name, in := range map[string][]string{
		"probe only":  {discover, initialize, initialized, wait(1, 1)},
		"probe later": {initialize, initialized, discover, wait(1, 1)},
		"both in use": {discover, modernWait("m", 1), initialize, initialized, wait(1, 1), modernWait("n", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			got := run(t, &stdio.Transport{}, lines(in...))
			for _, want := range []struct{ id, text string }{
				{`"d"`, `"supportedVersions"`}, {"0", `"protocolVersion":"2025-11-25"`}, {"1", "waited"},
			} {
				if !strings.Contains(got[want.id], want.text) {
					t.Errorf("id %s: got %q, want %s", want.id, got[want.id], want.text)
				}
			}
			if name == "both in use" && (!strings.Contains(got[`"m"`], "complete") || !strings.Contains(got[`"n"`], "complete")) {
				t.Errorf("the modern calls: got %q and %q", got[`"m"`], got[`"n"`])
			}
		})
	}
}

// TestCancelled_GetsNoAnswer: a cancelled request is not answered, and its id can be used
// again.
func TestCancelled_GetsNoAnswer(t *testing.T) {
	cancel := func(id, meta string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s%s}}`, id, meta)
	}
	for name, in := range map[string][]string{
		"older":       {initialize, initialized, wait(1, 60_000), wait("two", 60_000), cancel("1", ""), cancel(`"two"`, ""), cancel("99", ""), cancel("{}", ""), wait(3, 300)},
		"modern":      {modernWait(1, 60_000), modernWait("two", 60_000), cancel("1", ","+modernMeta), cancel(`"two"`, ""), modernWait(3, 300)},
		"a batch":     {oldInit, initialized, "[" + wait(1, 60_000) + "," + wait(2, 300) + "]", cancel("1", ""), wait(3, 300)},
		"a handshake": {initialize, cancel("0", ""), initialized, wait(3, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := run(t, &stdio.Transport{}, lines(in...))
			for _, id := range []string{"1", `"two"`} {
				if got[id] != "" {
					t.Errorf("the cancelled request %s is answered: %s", id, got[id])
				}
			}
			if !strings.Contains(got["3"], "waited") {
				t.Errorf("another request: got %q", got["3"])
			}
			switch name {
			case "a batch":
				if !strings.Contains(got["batch"], `"id":2`) || strings.Contains(got["batch"], `"id":1`) {
					t.Errorf("the batch: got %q, want the answer to request 2 alone", got["batch"])
				}
			case "a handshake":
				if !strings.Contains(got["0"], "protocolVersion") {
					t.Errorf("initialize, which cannot be cancelled: got %q", got["0"])
				}
			}
		})
	}
}

// TestCancelled_IDIsReusable: the id of a cancelled request can be used again once its
// handler has returned.
func TestCancelled_IDIsReusable(t *testing.T) {
	inr, inw := io.Pipe()
	outr, outw := io.Pipe()
	ended := start(t, server(), &stdio.Transport{In: inr, Out: outw})
	answers := bufio.NewScanner(outr)
	fmt.Fprintf(inw, "%s\n%s\n%s\n", initialize, initialized, wait(1, 60_000))
	answers.Scan() // to initialize
	fmt.Fprintln(inw, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	polltest.Until(t, 10*time.Second, "the id can be used again", func() bool {
		fmt.Fprintln(inw, wait(1, 1))
		if !answers.Scan() {
			t.Fatal("the session has ended")
		}
		again := strings.Contains(answers.Text(), "waited")
		if !again && !strings.Contains(answers.Text(), "is in use") {
			t.Fatalf("got %s", answers.Text())
		}
		return again
	})
	inw.Close()
	<-ended
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestOutput_BrokenPipe(t *testing.T) {
	pr, pw := io.Pipe()
	defer pw.Close()
	ended := start(t, server(), &stdio.Transport{In: pr, Out: broken{}})
	go fmt.Fprintln(pw, initialize)
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Fatal("the session did not end with its client")
	}
}

// FuzzReader: no input ends a session early, and every line of the answer is
// JSON-RPC.
func FuzzReader(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
	f.Add([]byte("[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]\n{}\n\xef\xbb\xbf"))
	f.Add([]byte(`{"jsonrpc":"2.0","id":"end","method":"tools/call","params":[]}`))
	f.Add(bytes.Repeat([]byte("["), 5000))
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.Contains(data, []byte(`initialize`)) || bytes.Contains(data, []byte(`the-end`)) {
			return
		}
		in := initialize + "\n" + initialized + "\n" + string(data) + "\n" + `{"jsonrpc":"2.0","id":"the-end","method":"ping"}` + "\n"
		var out output
		ended := start(t, server(), &stdio.Transport{In: strings.NewReader(in), Out: &out, MaxLine: 4096, Grace: 5 * time.Second})
		<-ended
		if !strings.Contains(out.String(), `"id":"the-end","result"`) {
			t.Errorf("%q: the session ended early: %q", data, out.String())
		}
		for line := range strings.SplitSeq(strings.TrimSpace(out.String()), "\n") {
			if !json.Valid([]byte(line)) {
				t.Errorf("%q: %q is not JSON", data, line)
			}
		}
	})
}
