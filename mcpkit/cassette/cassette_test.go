package cassette

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/mcpkit/internal/stream"
	"github.com/glovebox-dev/glovebox/mcpkit/internal/transcript"
)

// tape writes a recording of messages: '>' marks a sent one, '<' a received one, '?'
// other output.
func tape(t *testing.T, secrets []string, messages ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := transcript.NewWriter(&b, "srv", secrets)
	for _, m := range messages {
		d := map[byte]stream.Direction{'>': stream.Sent, '<': stream.Received, '?': stream.Noise}[m[0]]
		w.Message(d, []byte(m[1:]))
	}
	return b.Bytes()
}

func read(t *testing.T, b []byte) *Recording {
	t.Helper()
	r, err := Read(bytes.NewReader(b))
	if err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	return r
}

// ask sends a request to a player and returns its notifications and the response.
func ask(t *testing.T, p *Player, id int64, method, params string) (notes []string, res *jsonrpc.Response) {
	t.Helper()
	n, err := jsonrpc.MakeID(float64(id))
	if err != nil {
		t.Fatal(err)
	}
	req := &jsonrpc.Request{ID: n, Method: method}
	if params != "" {
		req.Params = json.RawMessage(params)
	}
	if err := p.Write(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := p.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if r, ok := m.(*jsonrpc.Response); ok {
			if r.ID != n {
				t.Errorf("the answer has the id %v, want %v", r.ID, n)
			}
			return notes, r
		}
		notes = append(notes, string(m.(*jsonrpc.Request).Params))
	}
}

func TestPlayer_RepeatsResponses(t *testing.T) {
	p := NewPlayer(read(t, tape(t, nil,
		`>{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","clientInfo":{"name":"a","version":"1"}}}`,
		`<{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25"}}`,
		`?it is ready`,
		// Answers may come in any order.
		`>{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"a","arguments":{"n":1,"t":"x"},"_meta":{"progressToken":"then"}}}`,
		`>{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"b"}}`,
		`<{"jsonrpc":"2.0","id":3,"error":{"code":-5,"message":"no","data":{"why":1}}}`,
		`<{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"then","progress":1}}`,
		`<{"jsonrpc":"2.0","id":"q","method":"roots/list"}`,
		`>{"jsonrpc":"2.0","id":"q","result":{"roots":[]}}`,
		`<{"jsonrpc":"2.0","id":99,"result":{"nobody":"asked"}}`,
		`<{"jsonrpc":"2.0","id":2,"result":{"n":"first"}}`,
		`>{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"a","arguments":{"n":1,"t":"x"}}}`,
		`<{"jsonrpc":"2.0","id":4,"result":{"n":"second"}}`,
		`>{"jsonrpc":"2.0","id":5,"method":"silent"}`,
	)))
	const again = `{"arguments":{"t":"x","n":1},"_meta":{"progressToken":"now","client":"b"},"name":"a"}`
	for i, step := range []struct {
		method, params, want string
		notes                []string
	}{
		{"initialize", `{"protocolVersion":"2025-03-26"}`, `{"protocolVersion":"2025-11-25"}`, nil},
		{"tools/call", again, `{"n":"first"}`, []string{`{"progress":1,"progressToken":"now"}`}},
		{"tools/call", again, `{"n":"second"}`, nil},
		{"tools/call", again, `{"n":"second"}`, nil}, // the last stays
		{"ping", "", `{}`, nil},
	} {
		notes, res := ask(t, p, int64(100+i), step.method, step.params)
		if string(res.Result) != step.want || res.Error != nil {
			t.Errorf("%d. %s: got %s, %v, want %s", i, step.method, res.Result, res.Error, step.want)
		}
		if diff := cmp.Diff(step.notes, notes); diff != "" {
			t.Errorf("%d. %s, what came before (-want +got):\n%s", i, step.method, diff)
		}
	}
	_, res := ask(t, p, 1, "tools/call", `{"name":"b"}`)
	var e *jsonrpc.Error
	if !errors.As(res.Error, &e) || e.Code != -5 || string(e.Data) != `{"why":1}` {
		t.Errorf("a recorded error: %#v", res.Error)
	}
	for _, tt := range []struct{ method, params, want string }{
		{"silent", "", `the recording has no response to silent: the server sent none`},
		{"tools/call", `{"name":"a","arguments":{"n":2,"t":"x"}}`,
			`the recording of server "srv" does not have the request tools/call {"arguments":{"n":2,"t":"x"},"name":"a"}; near are: tools/call {"arguments":{"n":1,"t":"x"},"name":"a"}; tools/call {"name":"b"}`},
		{"tools/call", `{"name":"a","arguments":{"password":"hunter2"}}`, `{"arguments":{"password":"••••"},"name":"a"}`},
		{"tools/list", "", `nor any of that method; it has initialize, tools/call, silent`},
	} {
		_, res := ask(t, p, 1, tt.method, tt.params)
		if !IsNotRecorded(res.Error) || !strings.Contains(res.Error.Error(), tt.want) || strings.Contains(res.Error.Error(), "hunter2") {
			t.Errorf("%s %s: got %v, want %s", tt.method, tt.params, res.Error, tt.want)
		}
	}
	p.Close()
	if _, err := p.Read(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("after close: %v", err)
	}
}

// A session of the SDK's client and server is recorded and played to another client.
func TestPlayer_SDKClient(t *testing.T) {
	var b bytes.Buffer
	w := transcript.NewWriter(&b, "srv", nil)
	s := mcp.NewServer(&mcp.Implementation{Name: "srv", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "count"}, func(_ context.Context, _ *mcp.CallToolRequest, in struct {
		To int `json:"to"`
	}) (*mcp.CallToolResult, map[string]int, error) {
		return nil, map[string]int{"counted": in.To}, nil
	})
	there, here := mcp.NewInMemoryTransports()
	ss, err := s.Connect(t.Context(), there, nil)
	if err != nil {
		t.Fatal(err)
	}
	use := func(transport mcp.Transport) string {
		cs, err := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, nil).Connect(t.Context(), transport, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer cs.Close()
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "count", Arguments: map[string]any{"to": 3}})
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(res)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	want := use(recording{here, w})
	ss.Wait()
	if got := use(played{NewPlayer(read(t, b.Bytes()))}); got != want || !strings.Contains(got, `{"counted":3}`) {
		t.Errorf("played: %s\nrecorded: %s", got, want)
	}
}

type recording struct {
	mcp.Transport
	w *transcript.Writer
}

func (r recording) Connect(ctx context.Context) (mcp.Connection, error) {
	conn, err := r.Transport.Connect(ctx)
	return recorded{conn, r.w}, err
}

type recorded struct {
	mcp.Connection
	w *transcript.Writer
}

func (r recorded) Read(ctx context.Context) (jsonrpc.Message, error) {
	m, err := r.Connection.Read(ctx)
	if err == nil {
		if b, err := jsonrpc.EncodeMessage(m); err == nil {
			r.w.Message(stream.Received, b)
		}
	}
	return m, err
}

func (r recorded) Write(ctx context.Context, m jsonrpc.Message) error {
	if b, err := jsonrpc.EncodeMessage(m); err == nil {
		r.w.Message(stream.Sent, b)
	}
	return r.Connection.Write(ctx, m)
}

type played struct{ p *Player }

func (p played) Connect(context.Context) (mcp.Connection, error) { return p.p, nil }

func TestWriter_MasksSecrets(t *testing.T) {
	secrets := []string{"hunter2", "hunter2-and-more", `quo"ted`}
	b := tape(t, secrets,
		`>{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"login","arguments":{"password":"swordfish","q":"is it hunter2?","apiKey":"k1"}}}`,
		`<{"jsonrpc":"2.0","id":1,"result":{"text":"you said hunter2-and-more and quo\"ted <b>","nextPageToken":"page2","access_token":"abcdef","hunter2":"x",`+
			`"key":"sk-`+strings.Repeat("a", 30)+`","tokens":"12","path":"C:\\"}}`,
		`?log: hunter2`,
	)
	for _, never := range []string{"hunter2", "swordfish", "k1", "quo", "abcdef", "sk-a", "and-more"} {
		if bytes.Contains(b, []byte(never)) {
			t.Errorf("the recording contains %s", never)
		}
	}
	for _, want := range []string{`"nextPageToken":"page2"`, `"tokens":"12"`, `you said •••• and •••• <b>`, `"path":"C:\\"`, `is it ••••?`} {
		if !bytes.Contains(b, []byte(want)) {
			t.Errorf("the recording lacks %s", want)
		}
	}
	if t.Failed() {
		t.Logf("%s", b)
	}
	// The same with other secrets is the same request.
	_, res := ask(t, NewPlayer(read(t, b)), 7, "tools/call", `{"name":"login","arguments":{"password":"other","q":"is it secret?","apiKey":"k2"}}`)
	if !bytes.Contains(res.Result, []byte("you said ••••")) {
		t.Errorf("with other secrets: %s, %v", res.Result, res.Error)
	}
	_, res = ask(t, NewPlayer(read(t, b)), 7, "tools/call", `{"name":"login","arguments":{"password":"other","q":"was it secret?","apiKey":"k2"}}`)
	if !IsNotRecorded(res.Error) {
		t.Errorf("another question: %s, %v", res.Result, res.Error)
	}
}

func TestRead_InvalidRecordings(t *testing.T) {
	const head = `{"cassette":1,"server":"srv","at":"2026-01-01T00:00:00Z"}` + "\n"
	for text, want := range map[string]string{
		"":                             "it is empty",
		"{}\n":                         "line 1: it is not a recording",
		"x\n":                          "line 1: it is not a recording",
		`{"cassette":2}` + "\n":        "version 2, this program supports 1",
		head + "x\n":                   "line 2: it is damaged",
		head + "{}\n":                  `line 2: unknown direction ""`,
		head + head + "x\n":            "line 3",
		head + `{"cassette":1}` + "\n": `it belongs to server "", the recording to "srv"`,
		head + `{"direction":"sent","message":{}}` + "\n":                                 "line 2: invalid message",
		head + `{"direction":"sent","message":17}` + "\n":                                 "line 2: invalid message",
		head + strings.Repeat(`{"direction":"noise"}`+"\n", maxLines):                     "more than 100000 lines",
		head + `{"direction":"noise","text":"` + strings.Repeat("x", maxRecording) + `"}`: "larger than 67108864 bytes",
	} {
		if _, err := Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: got %v, want %s", text, err, want)
		}
	}
}

// A recording cut off at any byte can be played up to there.
func TestRead_CutRecording(t *testing.T) {
	whole := tape(t, nil,
		`>{"jsonrpc":"2.0","id":1,"method":"a"}`, `<{"jsonrpc":"2.0","id":1,"result":{"n":1}}`,
		`>{"jsonrpc":"2.0","id":2,"method":"b"}`, `<{"jsonrpc":"2.0","id":2,"result":{"n":2}}`)
	first := bytes.IndexByte(whole, '\n') + 1
	for n := first; n < len(whole); n++ {
		r := read(t, whole[:n])
		if want := whole[n-1] != '\n'; r.Cut != want {
			t.Fatalf("cut at %d: Cut is %v", n, r.Cut)
		}
		if lines := bytes.Count(whole[:n], []byte("\n")); lines >= 3 {
			if _, res := ask(t, NewPlayer(r), 9, "a", ""); string(res.Result) != `{"n":1}` {
				t.Fatalf("cut at %d: %s, %v", n, res.Result, res.Error)
			}
		}
	}
}

func TestCreate_Files(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.jsonl")
	record := func(method string) {
		t.Helper()
		f, err := Create(path)
		if err != nil {
			t.Fatal(err)
		}
		transcript.NewWriter(f, "srv", nil).Message(stream.Sent, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":%q}`, method))
		transcript.NewWriter(f, "srv", nil) // a second connection
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte("late\n")); !errors.Is(err, os.ErrClosed) {
			t.Errorf("after close: %v", err)
		}
	}
	record("first")
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	record("second")
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	r, err := Load(path)
	if err != nil || len(r.exchanges) != 1 || r.exchanges[0].method != "second" || r.Server != "srv" {
		t.Errorf("%+v, %v", r, err)
	}

	// Nothing else is touched.
	other := filepath.Join(t.TempDir(), "notes")
	if err := os.WriteFile(other, []byte("notes\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{other, link, t.TempDir(), filepath.Join(t.TempDir(), "no", "such")} {
		if f, err := Create(at); err == nil {
			f.Close()
			t.Errorf("%s: no error", at)
		}
	}
	if b, err := os.ReadFile(other); err != nil || string(b) != "notes\n" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := Load(t.TempDir()); err == nil {
		t.Error("a directory: no error")
	}
}

// Exceeding the size limit is an error, and the recording up to there is valid.
func TestFile_SizeLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.jsonl")
	f, err := Create(path)
	if err != nil {
		t.Fatal(err)
	}
	f.left = 500
	w := transcript.NewWriter(f, "srv", nil)
	w.Message(stream.Sent, []byte(`{"jsonrpc":"2.0","id":1,"method":"a"}`))
	w.Message(stream.Received, []byte(`{"jsonrpc":"2.0","id":1,"result":{"x":"`+strings.Repeat("x", 500)+`"}}`))
	w.Message(stream.Sent, []byte(`{"jsonrpc":"2.0","id":2,"method":"b"}`))
	if err := f.Close(); err == nil || !strings.Contains(err.Error(), "the rest is missing") {
		t.Errorf("got %v", err)
	}
	r, err := Load(path)
	if err != nil || len(r.exchanges) != 1 || r.Cut {
		t.Errorf("%+v, %v", r, err)
	}
}

func FuzzRead(f *testing.F) {
	const head = `{"cassette":1,"server":"srv","at":"2026-01-01T00:00:00Z"}` + "\n"
	f.Add([]byte(head + `{"direction":"sent","message":{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"progressToken":1}}}}` + "\n" +
		`{"direction":"received","message":[{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1}},{"jsonrpc":"2.0","id":1,"result":{}}]}` + "\n"))
	f.Add([]byte(head + `{"direction":"noise","text":"x"}` + "\n" + head + `{"direction":"sent","http":{"status":200}}` + "\ncut"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Read(bytes.NewReader(b))
		if err != nil {
			return
		}
		p := NewPlayer(r)
		for _, x := range r.exchanges[:min(len(r.exchanges), maxOut/10)] {
			params, err := json.Marshal(x.params)
			if err != nil {
				t.Fatal(err)
			}
			id, _ := jsonrpc.MakeID("asked")
			req := &jsonrpc.Request{ID: id, Method: x.method}
			if x.params != nil {
				req.Params = params
			}
			answers, err := p.response(req)
			if err != nil {
				t.Fatalf("%s: %v", x, err)
			}
			if len(answers) > 0 {
				if res := answers[len(answers)-1].(*jsonrpc.Response); res.ID != id {
					t.Fatalf("%s: answered %v", x, res.ID)
				}
			}
		}
	})
}
