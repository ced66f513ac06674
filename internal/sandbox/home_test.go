package sandbox

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"os"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/link"
	"github.com/glovebox-dev/glovebox/internal/machine"
	"github.com/glovebox-dev/glovebox/internal/wire"
)

type dialer struct{ net.Conn }

func (d dialer) Dial(context.Context) (io.ReadWriteCloser, error) { return d.Conn, nil }

// lyingAgent answers hello as it should, and everything else with result.
func lyingAgent(t *testing.T, result wire.BackupResult) *link.Link {
	t.Helper()
	here, there := net.Pipe()
	t.Cleanup(func() { there.Close() })
	send := func(kind wire.Type, op uint32, p []byte) {
		h := wire.Header{Type: kind, Op: op, Length: uint32(len(p))}
		there.Write(append(h.Append(nil), p...))
	}
	go func() {
		r := wire.NewReader(there)
		for {
			h, p, err := r.Next()
			if err != nil {
				return
			}
			var req wire.Request
			if h.Type != wire.Open || json.Unmarshal(p, &req) != nil {
				continue
			}
			var answer any = result
			if req.Op == wire.OpHello {
				var hello wire.Hello
				json.Unmarshal(req.Args, &hello)
				answer = wire.HelloResult{Version: wire.Version, Nonce: hello.Nonce}
			}
			raw, _ := json.Marshal(answer)
			end, _ := json.Marshal(wire.Response{Result: raw})
			send(wire.End, h.Op, end)
		}
	}()
	l, err := link.Open(t.Context(), dialer{here}, link.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// TestLyingAgent: an agent that claims that an archive is still right which it was
// never asked about harms nobody but its own box.
func TestLyingAgent(t *testing.T) {
	m := &Manager{log: slog.New(slog.DiscardHandler), parts: Parts{Machines: &machine.Maker{}}}
	box := &Sandbox{
		m: m, flavor: FlavorSmall, condemned: make(chan struct{}),
		machine: &machine.Machine{Link: lyingAgent(t, wire.BackupResult{Unchanged: true, Mark: "m"})},
	}
	dir := t.TempDir()
	m.saveHome(t.Context(), box, "", dir)
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v; want nothing stored", left, err)
	}
}
