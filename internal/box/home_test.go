package box

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

type dialer struct{ net.Conn }

func (d dialer) Dial(context.Context) (io.ReadWriteCloser, error) { return d.Conn, nil }

// lyingAgent answers hello correctly, and everything else with result.
func lyingAgent(t *testing.T, result protocol.BackupResult) *client.Conn {
	t.Helper()
	here, there := net.Pipe()
	t.Cleanup(func() { there.Close() })
	send := func(kind protocol.Type, op uint32, p []byte) {
		h := protocol.Header{Type: kind, Op: op, Length: uint32(len(p))}
		there.Write(append(h.Append(nil), p...))
	}
	go func() {
		r := protocol.NewReader(there)
		for {
			h, p, err := r.Next()
			if err != nil {
				return
			}
			var req protocol.Request
			if h.Type != protocol.Open || json.Unmarshal(p, &req) != nil {
				continue
			}
			var answer any = result
			if req.Op == protocol.OpHello {
				var hello protocol.Hello
				json.Unmarshal(req.Args, &hello)
				answer = protocol.HelloResult{Version: protocol.Version, Nonce: hello.Nonce}
			}
			raw, _ := json.Marshal(answer)
			end, _ := json.Marshal(protocol.Response{Result: raw})
			send(protocol.End, h.Op, end)
		}
	}()
	l, err := client.Open(t.Context(), dialer{here}, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// TestHome_LyingAgent: an agent that confirms an archive which it was not asked about
// affects its own box only.
func TestHome_LyingAgent(t *testing.T) {
	m := New(DefaultConfig(), Parts{})
	box := m.life.newBox(spec{flavor: FlavorSmall})
	box.machine = &machine.Machine{Agent: lyingAgent(t, protocol.BackupResult{Unchanged: true, Mark: "m"})}
	dir := t.TempDir()
	m.records.saveHome(t.Context(), box, "", dir)
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v; want nothing stored", left, err)
	}
}
