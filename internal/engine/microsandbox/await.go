//go:build linux

package microsandbox

import (
	"context"
	"fmt"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/remote"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/truncate"
	"github.com/glovebox-dev/glovebox/internal/visible"
)

// await returns why the guest has ended by itself. ok is false if ctx ended first.
//
// A command of msb waits in the guest for the end of its helper. If that fails, the status
// of the sandbox tells whether the virtual machine lives, before another one is tried: it
// would boot a machine that has stopped.
func (g *guest) await(ctx context.Context) (exit engine.Exit, ok bool) {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, maxBackoff) {
		began := time.Now()
		out, err := g.e.msb.run(ctx, nil, g.exec("wait")...)
		if err == nil {
			return exitOf(out), true
		}
		g.e.log.Debug("the wait for the end of a guest has failed", logkey.Guest, g.id, logkey.Error, err)
		if time.Since(began) > maxBackoff {
			wait = 100 * time.Millisecond
		}
		for {
			s, serr := g.status(ctx)
			switch {
			case ctx.Err() != nil:
				return engine.Exit{}, false
			case says(serr, notFound):
				return engine.Exit{Reason: engine.ExitCrashed, Detail: "the virtual machine was removed"}, true
			case serr == nil && !s.lives():
				return engine.Exit{Reason: engine.ExitCrashed, Detail: "the virtual machine has ended: its status is " + truncate.Bytes(visible.Line(s.Status), 40)}, true
			}
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return engine.Exit{}, false
			}
			if serr == nil && s.Status == running {
				break
			}
			wait = min(2*wait, maxBackoff) // paused, or msb does not answer
		}
	}
}

// exitOf returns what the helper says about the end of the agent. A guest's root can forge
// it, which changes only what the engine reports about the guest.
func exitOf(out []byte) engine.Exit {
	if len(out) == 0 {
		return engine.Exit{Reason: engine.ExitCrashed, Detail: "the helper in the virtual machine was killed"}
	}
	t, err := remote.ParseTermination(out)
	if err != nil {
		return engine.Exit{Reason: engine.ExitCrashed, Detail: "the helper in the virtual machine has ended and does not tell why"}
	}
	switch {
	case t.Exited != nil:
		return engine.Exit{Reason: engine.ExitExited, Code: *t.Exited}
	case t.Stopped:
		return engine.Exit{Reason: engine.ExitCrashed, Detail: "the helper in the virtual machine was told to end"}
	}
	return engine.Exit{Reason: engine.ExitCrashed, Detail: fmt.Sprintf("the helper in the virtual machine has failed: %s", truncate.Bytes(visible.Line(t.Error), maxDetail))}
}
