package box

import (
	"sync"
	"time"
)

// A deadline calls a function at a time that can be postponed.
type deadline struct {
	do func() // called with mu

	mu    sync.Mutex
	timer *time.Timer   // guarded by mu
	at    time.Time     // guarded by mu: when do is called; while held, the latest time
	left  time.Duration // guarded by mu: while held, the time that was left
	held  bool          // guarded by mu
	done  bool          // guarded by mu: do was called or never will be
}

func newDeadline(d time.Duration, do func()) *deadline {
	t := &deadline{do: do, at: time.Now().Add(d)}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = time.AfterFunc(d, t.fire)
	return t
}

func (t *deadline) fire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.done && !time.Now().Before(t.at) {
		t.done = true
		t.do()
	}
}

// suspend stops the clock until resume, at most for a time.
func (t *deadline) suspend(most time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.done && !t.held {
		t.held, t.left = true, time.Until(t.at)
		t.setLocked(t.left + most)
	}
}

// resume starts the clock again.
func (t *deadline) resume() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held {
		t.held = false
		t.setLocked(t.left)
	}
}

// set makes d the time that is left, and ends hold.
func (t *deadline) set(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held = false
	t.setLocked(d)
}

func (t *deadline) setLocked(d time.Duration) {
	if !t.done {
		t.at = time.Now().Add(d)
		t.timer.Reset(d)
	}
}

// stop ends the deadline: do is not called after stop returns.
func (t *deadline) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done = true
	t.timer.Stop()
}
