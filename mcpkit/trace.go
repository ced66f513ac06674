package mcpkit

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/mcpkit/internal/stream"
	"github.com/glovebox-dev/glovebox/mcpkit/internal/transcript"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// openTrace returns the writer for the messages of a connection, or nil. It masks the
// secrets in r.
func (s *Session) openTrace(l *connState, r *mcpjson.Resolved) *transcript.Writer {
	out := s.openOutputs(".wire.jsonl", s.m.opts.Trace)
	if out == nil {
		return nil
	}
	l.onClose = append(l.onClose, func() { out.Close() })
	var secrets []string
	if r != nil {
		secrets = slices.Clone(r.Secrets)
		for _, h := range r.Headers {
			if h.Secret {
				secrets = append(secrets, h.Value)
			}
		}
	}
	return transcript.NewWriter(out, s.def.Name, secrets)
}

// messageTracer returns the function that traces the messages of a stream; nil for
// none.
func messageTracer(w *transcript.Writer) func(stream.Direction, []byte) {
	if w == nil {
		return nil
	}
	return w.Message
}

// teeTrace calls both functions for each message. The first may be nil.
func teeTrace(a, b func(stream.Direction, []byte)) func(stream.Direction, []byte) {
	if a == nil {
		return b
	}
	return func(d stream.Direction, line []byte) {
		a(d, line)
		b(d, line)
	}
}

// httpTracer traces the heads of HTTP requests and responses, and the messages in their
// bodies. Other bodies, such as those of a login, are not traced.
type httpTracer struct {
	next http.RoundTripper
	w    *transcript.Writer
	max  int // bytes of a message
}

// RoundTrip implements [http.RoundTripper].
func (t *httpTracer) RoundTrip(req *http.Request) (*http.Response, error) {
	// The token of a login is not among the secrets of a definition.
	if _, token, ok := strings.Cut(req.Header.Get("Authorization"), " "); ok {
		t.w.AddSecret(token)
	}
	t.w.HTTP(stream.Sent, &transcript.HTTP{Method: req.Method, URL: maskURL(req.URL), Headers: maskHeaders(req.Header)})
	if req.GetBody != nil {
		if body, err := req.GetBody(); err == nil {
			b, err := io.ReadAll(io.LimitReader(body, int64(t.max)+1))
			body.Close()
			if err == nil && len(b) <= t.max {
				t.message(stream.Sent, b)
			}
		}
	}
	res, err := t.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	t.w.HTTP(stream.Received, &transcript.HTTP{Status: res.StatusCode, Headers: maskHeaders(res.Header)})
	res.Body = tap(res, t.max, t.received)
	return res, nil
}

// tap returns the body of a response and passes each message in it to onMessage, before the
// message is read completely. max bounds the bytes of a message; larger ones are not
// passed.
func tap(res *http.Response, max int, onMessage func([]byte)) io.ReadCloser {
	switch mediaType(res) {
	case "application/json":
		return &messageTap{ReadCloser: res.Body, onMessage: onMessage, max: max}
	case "text/event-stream":
		return &messageTap{ReadCloser: res.Body, onMessage: onMessage, max: max, events: true}
	}
	return res.Body
}

// CloseIdleConnections supports [http.Client.CloseIdleConnections].
func (t *httpTracer) CloseIdleConnections() { closeIdle(t.next) }

// received traces a message of the server, or a batch.
func (t *httpTracer) received(b []byte) { t.message(stream.Received, b) }

// message traces a message, or a batch.
func (t *httpTracer) message(d stream.Direction, b []byte) {
	batch := []json.RawMessage{b}
	if b = bytes.TrimSpace(b); len(b) > 0 && b[0] == '[' && json.Unmarshal(b, &batch) != nil {
		return
	}
	for _, one := range batch {
		if _, err := jsonrpc.DecodeMessage(one); err == nil {
			t.w.Message(d, one)
		}
	}
}

// messageTap is a response body that passes on its messages while it is read. It does
// not keep messages larger than max.
type messageTap struct {
	io.ReadCloser
	onMessage func([]byte)
	max       int  // bytes of a message
	events    bool // an event stream; otherwise the body is one message
	done      bool
	buf       []byte // the message or line so far
	data      []byte // the event so far
	size      int    // of the line, including bytes not in buf
	truncated bool   // the message is too large
}

func (t *messageTap) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	for rest := p[:n]; len(rest) > 0; {
		part, line := rest, false
		if i := bytes.IndexByte(rest, '\n'); t.events && i >= 0 {
			part, line = rest[:i], true
			rest = rest[i+1:]
		} else {
			rest = nil
		}
		t.size += len(part)
		if t.truncated = t.truncated || len(t.buf)+len(t.data)+len(part) > t.max; !t.truncated {
			t.buf = append(t.buf, part...)
		}
		if line {
			t.line()
		}
	}
	if err != nil && !t.done && !t.events && !t.truncated {
		t.done = true
		t.onMessage(t.buf)
	}
	return n, err
}

// line handles a complete line of an event stream.
func (t *messageTap) line() {
	text, empty := bytes.TrimSuffix(t.buf, []byte("\r")), t.size <= 1 && len(bytes.TrimSuffix(t.buf, []byte("\r"))) == 0
	t.buf, t.size = t.buf[:0], 0
	if empty {
		if len(t.data) > 0 && !t.truncated {
			t.onMessage(t.data)
		}
		t.data, t.truncated = t.data[:0], false
		return
	}
	if data, ok := bytes.CutPrefix(text, []byte("data:")); ok && !t.truncated {
		t.data = append(t.data, bytes.TrimPrefix(data, []byte(" "))...)
	}
}

// publicHeaders are the headers whose values are not masked: they are known to contain
// no secrets.
var publicHeaders = map[string]bool{
	"Accept": true, "Allow": true, "Cache-Control": true, "Content-Encoding": true, "Content-Length": true, "Content-Type": true,
	"Date": true, "Last-Event-Id": true, "Mcp-Method": true, "Mcp-Name": true, "Mcp-Protocol-Version": true, "Retry-After": true,
	"Server": true, "Transfer-Encoding": true, "User-Agent": true, "Www-Authenticate": true,
}

// maskHeaders returns the headers with all other values masked.
func maskHeaders(from http.Header) map[string][]string {
	shown := make(map[string][]string, len(from))
	for name, values := range from {
		if !publicHeaders[http.CanonicalHeaderKey(name)] {
			values = []string{mcpjson.Masked}
		}
		shown[name] = values
	}
	return shown
}

// maskURL returns a URL without credentials, and with its query masked.
func maskURL(u *url.URL) string {
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	text := shown.String()
	if u.RawQuery != "" {
		text += "?" + mcpjson.Masked
	}
	return text
}
