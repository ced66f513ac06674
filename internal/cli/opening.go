package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/server"
)

// openLimit bounds the wait of a call for a starting server. A first start on a slow
// machine takes seconds; clients time out after a minute.
const openLimit = 50 * time.Second

// An opening is the start of a host while clients are served already: they get the
// protocol and the catalogue at once, and their calls wait.
type opening struct {
	limit   time.Duration
	done    chan struct{} // closed by finish
	manager *box.Manager  // set before done is closed; nil with err
	err     error         // set before done is closed
}

func newOpening() *opening { return &opening{limit: openLimit, done: make(chan struct{})} }

// finish releases the waiting calls, with the manager or with the error of the start.
// It must be called once.
func (o *opening) finish(m *box.Manager, err error) {
	o.manager, o.err = m, err
	close(o.done)
}

// await waits for the manager until ctx ends or the limit is reached.
func (o *opening) await(ctx context.Context) (*box.Manager, error) {
	timer := time.NewTimer(o.limit)
	defer timer.Stop()
	select {
	case <-o.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timer.C:
		return nil, &box.Error{
			Code: box.CodeNotReady, Op: "wait for the server",
			Msg:  fmt.Sprintf("The server is still starting after %v: it is inspecting this machine's interpreters", o.limit),
			Hint: "Call again in a moment.",
		}
	}
	if o.err != nil {
		return nil, &box.Error{
			Code: box.CodeNotReady, Op: "wait for the server", Msg: "The server could not start: " + o.err.Error(),
			Hint: "It is stopping. Run glovebox doctor to find out what is missing on this machine.",
		}
	}
	return o.manager, nil
}

// others returns the servers that share boxes with the host, once it has started; nil if there
// are none.
func (o *opening) others(h *host) *server.Peers {
	select {
	case <-o.done:
	default:
		return nil
	}
	if o.err != nil || h.fleet == nil {
		return nil
	}
	return &server.Peers{Fleet: h.fleet, Boxes: o.manager}
}

// ending makes the manager write its boxes to disk, if there is one, and with leave announce that
// the server stops.
func (o *opening) ending(leave bool) {
	select {
	case <-o.done:
		if o.manager == nil {
			return
		}
		if leave {
			o.manager.Leave()
		}
		o.manager.Flush()
	default:
	}
}
