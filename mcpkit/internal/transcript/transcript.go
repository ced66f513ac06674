// Package transcript writes the messages between a client and an MCP server as lines
// of JSON, with secrets masked. Package cassette documents the format and reads it.
package transcript

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/mcpkit/internal/redact"
	"github.com/glovebox-dev/glovebox/mcpkit/internal/stream"
)

// Version is the version of the format.
const Version = 1

// A Header is the first line of a connection.
type Header struct {
	Cassette int       `json:"cassette"`
	Server   string    `json:"server"`
	At       time.Time `json:"at"`
}

// A Line is any other line: a message, output that is not a message, or the head of
// an HTTP request or response.
type Line struct {
	At        time.Time        `json:"at"`
	Direction stream.Direction `json:"direction"`
	Message   json.RawMessage  `json:"message,omitempty"`
	Text      string           `json:"text,omitempty"`
	HTTP      *HTTP            `json:"http,omitempty"`
}

// HTTP is the head of a request or of a response.
type HTTP struct {
	Method  string              `json:"method,omitempty"`
	URL     string              `json:"url,omitempty"`
	Status  int                 `json:"status,omitempty"`
	Headers map[string][]string `json:"headers,omitempty"`
}

// A Writer writes the messages of one connection. Its methods may be called
// concurrently. It ignores write errors, because a connection matters more than its
// recording.
type Writer struct {
	mu      sync.Mutex
	out     io.Writer // guarded by mu
	secrets []string  // guarded by mu: from the definition
	added   []string  // guarded by mu: by AddSecret, the newest last
}

// maxAdded bounds the secrets added later: tokens, each valid for some minutes.
const maxAdded = 100

// NewWriter writes the header of a connection to a server. It masks the secrets, and
// everything that package redact recognizes. Each Write to out is a whole line.
func NewWriter(out io.Writer, server string, secrets []string) *Writer {
	w := &Writer{out: out, secrets: slices.Clone(secrets)}
	w.write(Header{Version, server, time.Now().UTC()})
	return w
}

// AddSecret masks another secret in the lines written from now on.
func (w *Writer) AddSecret(secret string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if secret == "" || slices.Contains(w.added, secret) {
		return
	}
	w.added = append(w.added, secret)
	w.added = w.added[max(0, len(w.added)-maxAdded):]
}

// allSecrets returns the secrets, the longest first: one may be part of another.
func (w *Writer) allSecrets() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.SortedFunc(slices.Values(slices.Concat(w.secrets, w.added)), func(a, b string) int { return len(b) - len(a) })
}

// Message writes a message, or output that is not a message. It does not retain b.
func (w *Writer) Message(d stream.Direction, b []byte) {
	l := Line{At: time.Now().UTC(), Direction: d}
	if d != stream.Noise && json.Valid(b) {
		l.Message = b
	} else {
		l.Text = string(b)
	}
	w.write(l)
}

// HTTP writes the head of a request or of a response. The caller masks its headers.
func (w *Writer) HTTP(d stream.Direction, h *HTTP) {
	w.write(Line{At: time.Now().UTC(), Direction: d, HTTP: h})
}

func (w *Writer) write(v any) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if enc.Encode(v) != nil {
		return // cannot happen with these types
	}
	text := Mask(b.Bytes(), w.allSecrets())
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = w.out.Write(text)
}

// Mask masks the secrets in all strings of a line of valid JSON.
func Mask(text []byte, secrets []string) []byte {
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
		// The line is compact: a colon follows the name directly, and its value the colon.
		isName := len(text) > 0 && text[0] == ':'
		value := string(literal[1 : len(literal)-1])
		if bytes.IndexByte(literal, '\\') >= 0 {
			_ = json.Unmarshal(literal, &value) // it is valid
		}
		of := name
		if isName {
			of = ""
		}
		if masked := redact.Mask(of, value, secrets); masked != value {
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
