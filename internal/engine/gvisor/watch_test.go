//go:build linux && (amd64 || arm64)

package gvisor

import (
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// fixedMeter always returns the same, once it is released.
type fixedMeter struct {
	total   int64
	began   func()        // called at the first measurement, if set
	release chan struct{} // nil: at once
}

func (m *fixedMeter) used(int64) (total, kernel int64) {
	if m.release != nil {
		m.began()
		<-m.release
	}
	return m.total, 0
}

func (m *fixedMeter) close() {}

// sleeper is a guest whose sentry only sleeps.
func sleeper(t *testing.T) *guest {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return &guest{sentry: cmd, limits: engine.Limits{MemoryMB: 1}}
}

func (g *guest) killedFor() engine.ExitReason {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.reason
}

// TestWatcher_StuckGuestDelaysNoOther: while the memory of one guest cannot be read, the
// limits of others are enforced. It does not go on without a limit.
func TestWatcher_StuckGuestDelaysNoOther(t *testing.T) {
	w := newWatcher()
	began, release := make(chan struct{}), make(chan struct{})
	stuck, greedy, modest := sleeper(t), sleeper(t), sleeper(t)
	w.addMeter(stuck, &fixedMeter{began: sync.OnceFunc(func() { close(began) }), release: release})
	<-began
	w.addMeter(modest, &fixedMeter{})
	w.addMeter(greedy, &fixedMeter{total: 1 << 40})
	polltest.Until(t, 10*time.Second, "the guest over its limit is ended", func() bool { return greedy.killedFor() == engine.ExitOOM })
	if got := stuck.killedFor(); got != "" {
		t.Errorf("the guest that cannot be measured is ended at once: %s", got)
	}
	if got := modest.killedFor(); got != "" {
		t.Errorf("the guest below its limit ended with %q", got)
	}
	w.remove(greedy)
	w.remove(modest)
	for range maxUnmeasured {
		w.look()
	}
	if got := stuck.killedFor(); got != engine.ExitCrashed {
		t.Errorf("a guest that could not be measured for long ended with %q, want %q", got, engine.ExitCrashed)
	}
	close(release)
	w.remove(stuck)
	w.close()
}
