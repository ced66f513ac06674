package cassette

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/truncate"
	"github.com/glovebox-dev/glovebox/mcpkit/internal/redact"
	"github.com/glovebox-dev/glovebox/mcpkit/internal/transcript"
)

// A Player plays the server of a recording. It responds to a request with the recorded
// response, whatever the ids. Repeated requests get the recorded responses in order,
// and then the last one again. Notifications that the server sent before a response are
// sent before it again; its questions are not asked again.
//
// A request that was not recorded gets an error that names it and similar ones; see
// [IsNotRecorded]. The methods of a Player may be called concurrently.
type Player struct {
	out    chan jsonrpc.Message
	closed chan struct{}
	once   sync.Once

	mu     sync.Mutex
	r      *Recording
	played map[*exchange]bool // guarded by mu
}

var _ mcp.Connection = (*Player)(nil)

// codeNotRecorded is the error code for a request that was not recorded.
const codeNotRecorded = -32090

// maxOut bounds the messages that wait for Read before Write blocks.
const maxOut = 1000

// NewPlayer returns a player at the beginning of a recording.
func NewPlayer(r *Recording) *Player {
	return &Player{out: make(chan jsonrpc.Message, maxOut), closed: make(chan struct{}), r: r, played: make(map[*exchange]bool)}
}

// SessionID implements [mcp.Connection].
func (p *Player) SessionID() string { return "" }

// Close implements [mcp.Connection].
func (p *Player) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// Read implements [mcp.Connection].
func (p *Player) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case m := <-p.out:
		return m, nil
	case <-p.closed:
		return nil, io.EOF
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Write implements [mcp.Connection].
func (p *Player) Write(ctx context.Context, m jsonrpc.Message) error {
	req, ok := m.(*jsonrpc.Request)
	if !ok || !req.IsCall() {
		return nil
	}
	answers, err := p.response(req)
	if err != nil {
		return err
	}
	for _, a := range answers {
		select {
		case p.out <- a:
		case <-p.closed:
			return io.ErrClosedPipe
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (p *Player) response(req *jsonrpc.Request) (all []jsonrpc.Message, err error) {
	x, err := newExchange(req)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	recorded := p.find(x)
	res := &jsonrpc.Response{ID: req.ID}
	switch {
	case recorded == nil && req.Method == "ping":
		res.Result = json.RawMessage("{}")
	case recorded == nil:
		res.Error = &jsonrpc.Error{Code: codeNotRecorded, Message: p.missing(x)}
	case recorded.response == nil && req.Method == "subscriptions/listen":
		return nil, nil // it lasts as long as the connection
	case recorded.response == nil:
		res.Error = &jsonrpc.Error{Code: codeNotRecorded, Message: fmt.Sprintf("the recording has no response to %s: the server sent none", x)}
	default:
		if !p.played[recorded] {
			for _, note := range recorded.notes {
				all = append(all, replaceToken(note, recorded.token, x.token))
			}
		}
		p.played[recorded] = true
		res.Result, res.Error = recorded.response.Result, recorded.response.Error
	}
	return append(all, res), nil
}

// find returns the recorded exchange for a request: the first that was not played yet,
// or else the last. Exchanges without a response come last. An exact match precedes one
// that ignores masked secrets.
func (p *Player) find(x *exchange) (found *exchange) {
	for _, same := range []func(recorded, is any) bool{equal, matches} {
		for _, recorded := range p.r.exchanges {
			if recorded.method != x.method || !same(recorded.params, x.params) {
				continue
			}
			switch {
			case recorded.response != nil && !p.played[recorded]:
				return recorded
			case recorded.response != nil || found == nil:
				found = recorded
			}
		}
		if found != nil {
			return found
		}
	}
	return nil
}

// replaceToken gives a progress notification the token of the current request.
func replaceToken(note *jsonrpc.Request, recorded, is any) *jsonrpc.Request {
	var params map[string]any
	if note.Method != "notifications/progress" || is == nil || json.Unmarshal(note.Params, &params) != nil || fmt.Sprint(params["progressToken"]) != fmt.Sprint(recorded) {
		return note
	}
	params["progressToken"] = is
	b, err := json.Marshal(params)
	if err != nil {
		return note
	}
	return &jsonrpc.Request{Method: note.Method, Params: b}
}

func equal(recorded, is any) bool {
	return compare(recorded, is, func(recorded, is string) bool { return recorded == is })
}

// matches compares like equal, except that masked values match anything.
func matches(recorded, is any) bool {
	return compare(recorded, is, func(recorded, is string) bool {
		parts := strings.Split(recorded, redact.Masked)
		if len(parts) == 1 {
			return recorded == is
		}
		last := len(parts) - 1
		if !strings.HasPrefix(is, parts[0]) {
			return false
		}
		is = is[len(parts[0]):]
		for _, part := range parts[1:last] {
			_, after, ok := strings.Cut(is, part)
			if !ok {
				return false
			}
			is = after
		}
		return strings.HasSuffix(is, parts[last])
	})
}

func compare(recorded, is any, same func(recorded, is string) bool) bool {
	switch recorded := recorded.(type) {
	case map[string]any:
		is, ok := is.(map[string]any)
		if !ok || len(recorded) != len(is) {
			return false
		}
		for name, value := range recorded {
			other, ok := is[name]
			if !ok || !compare(value, other, same) {
				return false
			}
		}
		return true
	case []any:
		is, ok := is.([]any)
		return ok && slices.EqualFunc(recorded, is, func(a, b any) bool { return compare(a, b, same) })
	case string:
		is, ok := is.(string)
		return ok && same(recorded, is)
	}
	return recorded == is // numbers as written, true, false, null
}

// maxShown bounds a request in an error, maxNear the number of similar requests.
const (
	maxShown = 200
	maxNear  = 3
)

// String returns the request for errors.
func (e *exchange) String() string {
	text := ""
	if e.params != nil {
		b, err := json.Marshal(e.params)
		if err != nil {
			b = []byte("{…}") // cannot happen: it was decoded
		}
		text = " " + string(transcript.Mask(b, nil))
	}
	return e.method + truncate.Bytes(text, maxShown)
}

// missing describes a request that was not recorded, and similar ones that were.
func (p *Player) missing(x *exchange) string {
	type near struct {
		text       string
		similarity int
	}
	asked := x.String()
	var all []near
	var methods []string
	for _, recorded := range p.r.exchanges {
		if recorded.method == x.method {
			text := recorded.String()
			all = append(all, near{text, similarity(text, asked)})
		} else if !slices.Contains(methods, recorded.method) {
			methods = append(methods, recorded.method)
		}
	}
	text := fmt.Sprintf("the recording of server %q does not have the request %s", p.r.Server, asked)
	if p.r.Cut {
		text += "; its end is missing"
	}
	if len(all) == 0 {
		return fmt.Sprintf("%s, nor any of that method; it has %s", text, strings.Join(methods[:min(len(methods), 10)], ", "))
	}
	slices.SortStableFunc(all, func(a, b near) int { return b.similarity - a.similarity })
	all = slices.CompactFunc(all, func(a, b near) bool { return a.text == b.text })
	shown := make([]string, 0, maxNear)
	for _, n := range all[:min(len(all), maxNear)] {
		shown = append(shown, n.text)
	}
	return fmt.Sprintf("%s; near are: %s", text, strings.Join(shown, "; "))
}

// similarity counts the bytes that two texts have in common at the beginning and the
// end.
func similarity(a, b string) (n int) {
	short := min(len(a), len(b))
	for n < short && a[n] == b[n] {
		n++
	}
	for end := 1; end <= short-n && a[len(a)-end] == b[len(b)-end]; end++ {
		n++
	}
	return n
}

// IsNotRecorded reports whether err is the error of a request that was not recorded.
func IsNotRecorded(err error) bool {
	var e *jsonrpc.Error
	return errors.As(err, &e) && e.Code == codeNotRecorded
}
