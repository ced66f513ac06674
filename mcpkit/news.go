package mcpkit

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"
)

// settleWait bounds what a request waits for the hooks to hear what its server told
// before it answered. They are quick, or do not hear all before the answer.
const settleWait = 250 * time.Millisecond

// news are the notifications of a connection. The SDK would keep any number for a
// hook that takes its time, so they wait here. They are counted, so that an answer
// does not overtake what was told before it: the SDK hands answers out at once, and
// notifications when it is their turn. The zero value has heard of none.
type news struct {
	hearing sync.WaitGroup // the goroutine that calls the hooks, while some wait

	mu      sync.Mutex
	came    int                     // guarded by mu: have been read
	heard   int                     // guarded by mu: of these the hooks have heard
	moved   chan struct{}           // guarded by mu: closed at the next that is heard; nil if nobody waits
	waiting []notice                // guarded by mu: for the hooks
	busy    bool                    // guarded by mu: the goroutine is there
	closed  bool                    // guarded by mu
	life    context.Context         // guarded by mu: of the hooks; nil before the first
	end     context.CancelCauseFunc // guarded by mu
}

// A notice is a notification that waits.
type notice struct {
	method string
	hear   func(context.Context)
}

// put has a notification heard, after those before it. It returns false if it is
// dropped, because limit wait. That a list has changed is not dropped: it is the same
// as the one that waits.
func (n *news) put(method string, limit int, hear func(context.Context)) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := strings.HasSuffix(method, "/list_changed")
	known := list && slices.ContainsFunc(n.waiting, func(w notice) bool { return w.method == method })
	if n.closed || known || !list && len(n.waiting) >= limit {
		n.toldLocked(method)
		return known || n.closed
	}
	if n.life == nil {
		n.life, n.end = context.WithCancelCause(context.Background())
	}
	n.waiting = append(n.waiting, notice{method, hear})
	if !n.busy {
		n.busy = true
		n.hearing.Go(n.hear)
	}
	return true
}

// hear calls the hooks until nothing waits.
func (n *news) hear() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(n.waiting) > 0 {
		next, life := n.waiting[0], n.life
		n.waiting = slices.Delete(n.waiting, 0, 1)
		n.mu.Unlock()
		next.hear(life)
		n.mu.Lock()
		n.toldLocked(next.method)
	}
	n.busy = false
}

// close drops what waits, and returns when no hook is called any more.
func (n *news) close() {
	n.mu.Lock()
	n.closed, n.waiting = true, nil
	if n.end != nil {
		n.end(ErrClosed)
	}
	n.mu.Unlock()
	n.hearing.Wait()
}

// tells are the notifications that hooks hear.
var tells = map[string]bool{
	"notifications/message": true, "notifications/progress": true, "notifications/resources/updated": true,
	"notifications/tools/list_changed": true, "notifications/prompts/list_changed": true, "notifications/resources/list_changed": true,
	"notifications/elicitation/complete": true,
}

func (n *news) read(method string) {
	if tells[method] {
		n.mu.Lock()
		n.came++
		n.mu.Unlock()
	}
}

func (n *news) toldLocked(method string) {
	if !tells[method] {
		return
	}
	n.heard++
	if n.moved != nil {
		close(n.moved)
		n.moved = nil
	}
}

// settle waits until the hooks have heard all that has been read.
func (n *news) settle() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.heard >= n.came {
		return
	}
	came := n.came
	timer := time.NewTimer(settleWait)
	defer timer.Stop()
	for n.heard < came {
		if n.moved == nil {
			n.moved = make(chan struct{})
		}
		moved := n.moved
		n.mu.Unlock()
		select {
		case <-moved:
		case <-timer.C:
			n.mu.Lock()
			n.heard = max(n.heard, came) // the SDK may have found no sense in one
			return
		}
		n.mu.Lock()
	}
}
