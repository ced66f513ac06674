package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box"
)

// openLimit is how long a call waits for a server that is still starting. A first
// start on a slow machine takes seconds; clients give up on a call after a minute.
const openLimit = 50 * time.Second

// An opening is the start of a host while its clients are served already: they get
// the protocol and the catalogue at once, and their calls wait.
type opening struct {
	limit   time.Duration
	done    chan struct{} // closed by finish
	manager *box.Manager  // set before done is closed; nil with err
	err     error         // set before done is closed
}

func newOpening() *opening { return &opening{limit: openLimit, done: make(chan struct{})} }

// finish lets calls go on with the manager, or fail with the reason why there is
// none. It is called once.
func (o *opening) finish(m *box.Manager, err error) {
	o.manager, o.err = m, err
	close(o.done)
}

// await returns the manager of boxes once there is one. It waits until ctx ends,
// and for no longer than the limit.
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
			Msg:  fmt.Sprintf("The server is still starting after %v: it looks for this machine's interpreters", o.limit),
			Hint: "Call again in a moment.",
		}
	}
	if o.err != nil {
		return nil, &box.Error{
			Code: box.CodeNotReady, Op: "wait for the server", Msg: "The server could not start: " + o.err.Error(),
			Hint: "It ends now; glovebox doctor tells what this machine lacks.",
		}
	}
	return o.manager, nil
}

// flush has the manager write its boxes to disk; without one there are none.
func (o *opening) flush() {
	select {
	case <-o.done:
		if o.manager != nil {
			o.manager.Flush()
		}
	default:
	}
}
