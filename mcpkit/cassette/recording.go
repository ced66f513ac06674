package cassette

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/mcpkit/internal/stream"
	"github.com/glovebox-dev/glovebox/mcpkit/internal/transcript"
)

const (
	maxHeader = 64 << 10
	// maxLines bounds the lines kept in memory, for files of short lines.
	maxLines = 100_000
)

// A Recording is the content of a recording.
type Recording struct {
	// Server is the name of the server.
	Server string
	// Cut reports that the last line is incomplete, because recording was interrupted.
	Cut bool

	exchanges []*exchange
}

// An exchange is a request of the client and its response.
type exchange struct {
	method   string
	params   any                // without _meta
	token    any                // progress token, or nil
	notes    []*jsonrpc.Request // notifications of the server before the response
	response *jsonrpc.Response  // nil if there was none
}

// Load reads a recording from a file.
func Load(path string) (*Recording, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read recording %s: %w", path, cause(err))
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is not a regular file")
	}
	var r *Recording
	if err == nil {
		r, err = Read(f)
	}
	if err != nil {
		return nil, fmt.Errorf("read recording %s: %w", path, err)
	}
	return r, nil
}

// Read reads a recording of at most 64 MiB. It ignores an incomplete last line.
func Read(in io.Reader) (*Recording, error) {
	lines := bufio.NewReader(io.LimitReader(in, maxRecording+1))
	d := decoder{open: make(map[jsonrpc.ID]*exchange)}
	size := 0
	for n := 1; ; n++ {
		text, err := lines.ReadBytes('\n')
		size += len(text)
		switch {
		case size > maxRecording:
			return nil, fmt.Errorf("it is larger than %d bytes", maxRecording)
		case n > maxLines:
			return nil, fmt.Errorf("it has more than %d lines", maxLines)
		case errors.Is(err, io.EOF):
			if n == 1 {
				return nil, errors.New("it is empty, or not a recording")
			}
			d.r.Cut = len(text) > 0
			return &d.r, nil
		case err != nil:
			return nil, err
		}
		if err := d.line(text, n == 1); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
}

type decoder struct {
	r     Recording
	open  map[jsonrpc.ID]*exchange // requests of this connection without a response
	notes []*jsonrpc.Request       // notifications since the last response
}

func parseHeader(text []byte) (h transcript.Header, err error) {
	if err := json.Unmarshal(text, &h); err != nil || h.Cassette == 0 {
		return h, errors.New("it is not a recording")
	}
	if h.Cassette != transcript.Version {
		return h, fmt.Errorf("it is a recording of version %d, this program supports %d", h.Cassette, transcript.Version)
	}
	return h, nil
}

func (d *decoder) line(text []byte, first bool) error {
	if first || bytes.HasPrefix(text, []byte(`{"cassette":`)) {
		h, err := parseHeader(text)
		if err != nil {
			return err
		}
		if !first && h.Server != d.r.Server {
			return fmt.Errorf("it belongs to server %q, the recording to %q", h.Server, d.r.Server)
		}
		d.r.Server = h.Server
		clear(d.open)
		return nil
	}
	var l transcript.Line
	if err := json.Unmarshal(text, &l); err != nil {
		return fmt.Errorf("it is damaged: %w", err)
	}
	switch l.Direction {
	case stream.Sent, stream.Received:
	case stream.Noise:
		return nil
	default:
		return fmt.Errorf("unknown direction %q", l.Direction)
	}
	if l.Message == nil {
		return nil
	}
	var batch []json.RawMessage
	if json.Unmarshal(l.Message, &batch) != nil {
		batch = []json.RawMessage{l.Message}
	}
	for _, one := range batch {
		m, err := jsonrpc.DecodeMessage(one)
		if err != nil {
			return fmt.Errorf("invalid message: %w", err)
		}
		if err := d.message(l.Direction, m); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) message(from stream.Direction, m jsonrpc.Message) error {
	switch m := m.(type) {
	case *jsonrpc.Request:
		switch {
		case from == stream.Sent && m.IsCall():
			x, err := newExchange(m)
			if err != nil {
				return err
			}
			d.open[m.ID] = x
			d.r.exchanges = append(d.r.exchanges, x)
		case from == stream.Received && !m.IsCall():
			d.notes = append(d.notes, m)
		}
	case *jsonrpc.Response:
		// An unknown id is a mistake of the server, or belongs to one of its own
		// requests.
		if x := d.open[m.ID]; x != nil && from == stream.Received {
			x.response, x.notes = m, d.notes
			d.notes = nil
			delete(d.open, m.ID)
		}
	}
	return nil
}

func newExchange(m *jsonrpc.Request) (*exchange, error) {
	x := &exchange{method: m.Method}
	if len(m.Params) == 0 {
		return x, nil
	}
	dec := json.NewDecoder(bytes.NewReader(m.Params))
	dec.UseNumber()
	if err := dec.Decode(&x.params); err != nil {
		return nil, fmt.Errorf("params of %s: %w", m.Method, err)
	}
	object, ok := x.params.(map[string]any)
	if !ok {
		return x, nil
	}
	if meta, ok := object["_meta"].(map[string]any); ok {
		x.token = meta["progressToken"]
	}
	delete(object, "_meta") // not part of what is requested
	switch {
	case len(object) == 0:
		x.params = nil
	case m.Method == "initialize":
		x.params = nil // it describes the client
	}
	return x, nil
}
