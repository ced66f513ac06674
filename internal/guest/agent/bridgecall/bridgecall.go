// Package bridgecall is the protocol between user code in a guest and the agent's
// socket for calls, and the program glovebox-tool, which speaks it for the shell.
//
// A connection makes one call. The caller sends a line with a JSON header and the
// arguments; the agent answers with a line and the result. A caller that closes the
// connection cancels its call.
package bridgecall

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

const (
	// Program is the name of the program for the shell.
	Program = "glovebox-tool"
	// EnvSocket and EnvToken are the variables from which a process learns how to call.
	EnvSocket = "GLOVEBOX_TOOLS"
	EnvToken  = "GLOVEBOX_TOOLS_TOKEN"
	// MaxHeader bounds the first line of a call, in bytes.
	MaxHeader = 1 << 10
)

// Setup tells a process of a run how to call.
type Setup struct {
	Socket string `json:"socket"` // path
	Token  string `json:"token"`  // of the run
	Bin    string `json:"bin"`    // directory with Program
}

// Header precedes the arguments of a call.
type Header struct {
	Token  string `json:"token"`
	Method string `json:"method"`
	Length int    `json:"length"` // of the arguments
}

// Answer precedes the result of a call.
type Answer struct {
	Error  *protocol.Error `json:"error,omitempty"`
	Length int             `json:"length"` // of the result
}

// ReadHeader reads and checks the first line of a call. r must have a buffer of
// MaxHeader bytes.
func ReadHeader(r *bufio.Reader) (h Header, err error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		if errors.Is(err, bufio.ErrBufferFull) {
			return h, fmt.Errorf("the header has more than %d bytes", MaxHeader)
		}
		return h, err
	}
	if err := json.Unmarshal(line, &h); err != nil {
		return h, fmt.Errorf("parse header: %w", err)
	}
	switch {
	case h.Length < 0 || h.Length > protocol.MaxCallArgs:
		return h, fmt.Errorf("arguments of %d bytes; at most %d are possible: pass large data in parts, or a path", h.Length, protocol.MaxCallArgs)
	case len(h.Method) > protocol.MaxMethod:
		return h, fmt.Errorf("method of %d bytes, more than %d", len(h.Method), protocol.MaxMethod)
	}
	return h, nil
}

// WriteAnswer writes the answer. A caller that does not read it loses it.
func WriteAnswer(w io.Writer, result []byte, failure *protocol.Error) {
	a := Answer{Error: failure}
	if failure == nil {
		a.Length = len(result)
	}
	b, err := json.Marshal(a)
	if err != nil {
		panic(err) // of strings and numbers: cannot fail
	}
	w.Write(append(b, '\n'))
	if failure == nil {
		w.Write(result)
	}
}
