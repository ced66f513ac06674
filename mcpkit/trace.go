package mcpkit

import (
	"encoding/json"
	"io"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/mcpkit/stream"
)

// tracer writes a line of JSON for each message. A trace that cannot be written is
// not worth a connection.
func tracer(out io.Writer) func(stream.Direction, []byte) {
	var mu sync.Mutex
	return func(d stream.Direction, b []byte) {
		t := traced{At: time.Now().UTC(), Direction: d, Message: string(b)}
		if d != stream.Noise && json.Valid(b) {
			t.Message = json.RawMessage(b)
		}
		line, err := json.Marshal(t)
		if err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		_, _ = out.Write(append(line, '\n'))
	}
}
