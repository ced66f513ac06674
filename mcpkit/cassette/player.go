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

// A Player is the server of a recording. It answers what was asked in it with what
// was answered, whatever the ids, in the order of the recording where the same was
// asked several times and with the last answer after that. What the server told
// before an answer comes before it; what it asked of its client is not asked again.
//
// What was not asked in the recording is an error of code [codeNotRecorded] that
// names it and what is near. Its methods may be called concurrently.
type Player struct {
	out    chan jsonrpc.Message
	closed chan struct{}
	once   sync.Once

	mu     sync.Mutex
	r      *Recording
	played map[*exchange]bool // guarded by mu
}

var _ mcp.Connection = (*Player)(nil)

// codeNotRecorded is the code of the error for what is not in the recording.
const codeNotRecorded = -32090

// maxOut is how much may wait to be read before a Write waits.
const maxOut = 1000

// NewPlayer plays a recording from its beginning.
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
	asked, ok := m.(*jsonrpc.Request)
	if !ok || !asked.IsCall() {
		return nil
	}
	answers, err := p.answer(asked)
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

func (p *Player) answer(asked *jsonrpc.Request) (all []jsonrpc.Message, err error) {
	x, err := newExchange(asked)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.find(x)
	res := &jsonrpc.Response{ID: asked.ID}
	switch {
	case was == nil && asked.Method == "ping":
		res.Result = json.RawMessage("{}")
	case was == nil:
		res.Error = &jsonrpc.Error{Code: codeNotRecorded, Message: p.missing(x)}
	case was.answer == nil && asked.Method == "subscriptions/listen":
		return nil, nil // it lasts as long as the connection
	case was.answer == nil:
		res.Error = &jsonrpc.Error{Code: codeNotRecorded, Message: fmt.Sprintf("the recording has no answer to %s: the server gave none", x)}
	default:
		if !p.played[was] {
			for _, note := range was.notes {
				all = append(all, retoken(note, was.token, x.token))
			}
		}
		p.played[was] = true
		res.Result, res.Error = was.answer.Result, was.answer.Error
	}
	return append(all, res), nil
}

// find is what was asked in the recording: the first that was not played yet, else
// the last, and one without an answer only if no other is there. What is the same to
// the letter goes before what is but for secrets.
func (p *Player) find(x *exchange) (found *exchange) {
	for _, same := range []func(was, is any) bool{equal, matches} {
		for _, was := range p.r.exchanges {
			if was.method != x.method || !same(was.params, x.params) {
				continue
			}
			switch {
			case was.answer != nil && !p.played[was]:
				return was
			case was.answer != nil || found == nil:
				found = was
			}
		}
		if found != nil {
			return found
		}
	}
	return nil
}

// retoken has a note of progress be about the call that is made now.
func retoken(note *jsonrpc.Request, was, is any) *jsonrpc.Request {
	var params map[string]any
	if note.Method != "notifications/progress" || is == nil || json.Unmarshal(note.Params, &params) != nil || fmt.Sprint(params["progressToken"]) != fmt.Sprint(was) {
		return note
	}
	params["progressToken"] = is
	b, err := json.Marshal(params)
	if err != nil {
		return note
	}
	return &jsonrpc.Request{Method: note.Method, Params: b}
}

func equal(was, is any) bool { return compare(was, is, func(was, is string) bool { return was == is }) }

// matches is equal, but for what was masked.
func matches(was, is any) bool {
	return compare(was, is, func(was, is string) bool {
		parts := strings.Split(was, redact.Masked)
		if len(parts) == 1 {
			return was == is
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

func compare(was, is any, same func(was, is string) bool) bool {
	switch was := was.(type) {
	case map[string]any:
		is, ok := is.(map[string]any)
		if !ok || len(was) != len(is) {
			return false
		}
		for name, value := range was {
			other, ok := is[name]
			if !ok || !compare(value, other, same) {
				return false
			}
		}
		return true
	case []any:
		is, ok := is.([]any)
		return ok && slices.EqualFunc(was, is, func(a, b any) bool { return compare(a, b, same) })
	case string:
		is, ok := is.(string)
		return ok && same(was, is)
	}
	return was == is // numbers as they are written, true, false, null
}

// maxShown bounds a request in an error, and maxNear how many there are.
const (
	maxShown = 200
	maxNear  = 3
)

// String is the request, for errors.
func (x *exchange) String() string {
	text := ""
	if x.params != nil {
		b, err := json.Marshal(x.params)
		if err != nil {
			b = []byte("{…}") // what was decoded can be encoded
		}
		text = " " + string(transcript.Mask(b, nil))
	}
	return x.method + truncate.Bytes(text, maxShown)
}

// missing says what was not recorded, and what of the same kind was.
func (p *Player) missing(x *exchange) string {
	type near struct {
		text  string
		alike int
	}
	asked := x.String()
	var all []near
	var methods []string
	for _, was := range p.r.exchanges {
		if was.method == x.method {
			text := was.String()
			all = append(all, near{text, alike(text, asked)})
		} else if !slices.Contains(methods, was.method) {
			methods = append(methods, was.method)
		}
	}
	text := fmt.Sprintf("the recording of server %q does not have the request %s", p.r.Server, asked)
	if p.r.Cut {
		text += "; its end is missing"
	}
	if len(all) == 0 {
		return fmt.Sprintf("%s, nor any of that method; it has %s", text, strings.Join(methods[:min(len(methods), 10)], ", "))
	}
	slices.SortStableFunc(all, func(a, b near) int { return b.alike - a.alike })
	all = slices.CompactFunc(all, func(a, b near) bool { return a.text == b.text })
	shown := make([]string, 0, maxNear)
	for _, n := range all[:min(len(all), maxNear)] {
		shown = append(shown, n.text)
	}
	return fmt.Sprintf("%s; near are: %s", text, strings.Join(shown, "; "))
}

// alike is how much of the beginning and of the end of two texts is the same.
func alike(a, b string) (n int) {
	short := min(len(a), len(b))
	for n < short && a[n] == b[n] {
		n++
	}
	for end := 1; end <= short-n && a[len(a)-end] == b[len(b)-end]; end++ {
		n++
	}
	return n
}

// IsNotRecorded reports whether an error is that of a request that was not recorded.
func IsNotRecorded(err error) bool {
	var e *jsonrpc.Error
	return errors.As(err, &e) && e.Code == codeNotRecorded
}
