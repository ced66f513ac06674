//go:build linux && (amd64 || arm64)

package gvisor

import (
	"context"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/posture"
)

var _ posture.Inspector = (*Engine)(nil)

// Processes returns the processes of a guest. See posture.Inspector.
func (e *Engine) Processes(_ context.Context, id string) (list []posture.Process, err error) {
	err = e.call("inspect", id, func(g *guest) error {
		g.mu.Lock()
		dead := g.dead
		g.mu.Unlock()
		if dead {
			return engine.ErrGone
		}
		for _, gofer := range g.gofers {
			list = append(list, posture.Process{PID: gofer.Process.Pid, Role: posture.Gofer})
		}
		sentry := g.sentry.Process.Pid
		for _, pid := range descendants(sentry) {
			role := posture.Stub
			if pid == sentry {
				role = posture.Sentry
			}
			list = append(list, posture.Process{PID: pid, Role: role})
		}
		return nil
	})
	return list, err
}
