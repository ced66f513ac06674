// Package cassette keeps what a client and an MCP server said to each other, and
// plays the server's part again from it.
//
// A recording is lines of JSON. The first says what it is:
//
//	{"cassette":1,"server":"github","at":"2026-11-21T20:00:00Z"}
//
// and comes again for each further connection to the server. The others are what was
// said, in the order of time:
//
//	{"at":"…","direction":"sent","message":{"jsonrpc":"2.0","id":1,"method":"tools/list"}}
//	{"at":"…","direction":"received","message":{"jsonrpc":"2.0","id":1,"result":{…}}}
//	{"at":"…","direction":"noise","text":"what a server wrote that is no message"}
//	{"at":"…","direction":"received","http":{"status":200,"headers":{…}}}
//
// Secrets are masked when they are written; see [mcpjson.Redact]. Each line is one
// write, so that whatever ends a recording leaves all lines but the last whole.
//
// A [Writer] writes the lines of one connection, a [File] keeps them on disk, [Read]
// reads them, and a [Player] is a server that answers from them.
package cassette

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/mcpkit/internal/stream"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// version is that of the format.
const version = 1

// A header is the first line of a connection.
type header struct {
	Cassette int       `json:"cassette"`
	Server   string    `json:"server"`
	At       time.Time `json:"at"`
}

// A line is any other.
type line struct {
	At        time.Time        `json:"at"`
	Direction stream.Direction `json:"direction"`
	Message   json.RawMessage  `json:"message,omitempty"`
	Text      string           `json:"text,omitempty"`
	HTTP      *HTTP            `json:"http,omitempty"`
}

// HTTP is the head of a request, or of its answer.
type HTTP struct {
	Method  string              `json:"method,omitempty"`
	URL     string              `json:"url,omitempty"`
	Status  int                 `json:"status,omitempty"`
	Headers map[string][]string `json:"headers,omitempty"`
}

// A Writer writes what is said over one connection. Its methods may be called
// concurrently. What cannot be written is left out: a recording is not worth a
// connection.
type Writer struct {
	mu      sync.Mutex
	out     io.Writer // guarded by mu
	secrets []string  // guarded by mu: those of the definition
	hidden  []string  // guarded by mu: those that came later, the newest last
}

// maxHidden bounds the secrets that come later: tokens, of which each is good for
// some minutes.
const maxHidden = 100

// NewWriter writes the header of a connection to a server. The secrets, and what
// looks like one, never reach out. Every Write of out is a whole line.
func NewWriter(out io.Writer, server string, secrets []string) *Writer {
	w := &Writer{out: out, secrets: slices.Clone(secrets)}
	w.write(header{version, server, time.Now().UTC()})
	return w
}

// Hide keeps another secret out of what is written from now on.
func (w *Writer) Hide(secret string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if secret == "" || slices.Contains(w.hidden, secret) {
		return
	}
	w.hidden = append(w.hidden, secret)
	w.hidden = w.hidden[max(0, len(w.hidden)-maxHidden):]
}

// all are the secrets, the longest first: one may be part of another.
func (w *Writer) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.SortedFunc(slices.Values(slices.Concat(w.secrets, w.hidden)), func(a, b string) int { return len(b) - len(a) })
}

// Message writes a message, or what is none. It does not keep b.
func (w *Writer) Message(d stream.Direction, b []byte) {
	l := line{At: time.Now().UTC(), Direction: d}
	if d != stream.Noise && json.Valid(b) {
		l.Message = b
	} else {
		l.Text = string(b)
	}
	w.write(l)
}

// HTTP writes the head of a request or of an answer. Which headers may be shown is
// the caller's to say.
func (w *Writer) HTTP(d stream.Direction, h *HTTP) {
	w.write(line{At: time.Now().UTC(), Direction: d, HTTP: h})
}

func (w *Writer) write(v any) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if enc.Encode(v) != nil {
		return // nothing that is written here cannot be encoded
	}
	text := redact(b.Bytes(), w.all())
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = w.out.Write(text)
}

// redact masks the secrets in all strings of a line, which is valid JSON.
func redact(text []byte, secrets []string) []byte {
	var out bytes.Buffer
	out.Grow(len(text))
	name := ""
	for {
		from := bytes.IndexByte(text, '"')
		if from < 0 {
			out.Write(text)
			return out.Bytes()
		}
		to := from + 1
		for text[to] != '"' {
			if text[to] == '\\' {
				to++
			}
			to++
		}
		to++
		literal := text[from:to]
		out.Write(text[:from])
		text = text[to:]
		// The line is compact: a name is followed by its colon, and that by its value.
		isName := len(text) > 0 && text[0] == ':'
		value := string(literal[1 : len(literal)-1])
		if bytes.IndexByte(literal, '\\') >= 0 {
			_ = json.Unmarshal(literal, &value) // it is valid
		}
		of := name
		if isName {
			of = ""
		}
		if masked := mcpjson.Redact(of, value, secrets); masked != value {
			literal = quote(masked)
		}
		out.Write(literal)
		name = ""
		if isName && len(text) > 1 && text[1] == '"' {
			name = value
		}
	}
}

func quote(s string) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string can be encoded
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
