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
type notifications struct {
	running sync.WaitGroup // the goroutine that calls the hooks, while some wait

	mu         sync.Mutex
	received   int                     // guarded by mu: have been read
	delivered  int                     // guarded by mu: of these the hooks have heard
	progressed chan struct{}           // guarded by mu: closed at the next that is heard; nil if nobody waits
	waiting    []pendingNotification   // guarded by mu: for the hooks
	busy       bool                    // guarded by mu: the goroutine is there
	closed     bool                    // guarded by mu
	ctx        context.Context         // guarded by mu: of the hooks; nil before the first
	cancel     context.CancelCauseFunc // guarded by mu
}

// A notice is a notification that waits.
type pendingNotification struct {
	method  string
	deliver func(context.Context)
}

// put has a notification heard, after those before it. It returns false if it is
// dropped, because limit wait. That a list has changed is not dropped: it is the same
// as the one that waits.
func (n *notifications) put(method string, limit int, hear func(context.Context)) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := strings.HasSuffix(method, "/list_changed")
	known := list && slices.ContainsFunc(n.waiting, func(w pendingNotification) bool { return w.method == method })
	if n.closed || known || !list && len(n.waiting) >= limit {
		n.deliveredLocked(method)
		return known || n.closed
	}
	if n.ctx == nil {
		n.ctx, n.cancel = context.WithCancelCause(context.Background())
	}
	n.waiting = append(n.waiting, pendingNotification{method, hear})
	if !n.busy {
		n.busy = true
		n.running.Go(n.run)
	}
	return true
}

// hear calls the hooks until nothing waits.
func (n *notifications) run() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(n.waiting) > 0 {
		next, life := n.waiting[0], n.ctx
		n.waiting = slices.Delete(n.waiting, 0, 1)
		n.mu.Unlock()
		next.deliver(life)
		n.mu.Lock()
		n.deliveredLocked(next.method)
	}
	n.busy = false
}

// close drops what waits, and returns when no hook is called any more.
func (n *notifications) close() {
	n.mu.Lock()
	n.closed, n.waiting = true, nil
	if n.cancel != nil {
		n.cancel(ErrClosed)
	}
	n.mu.Unlock()
	n.running.Wait()
}

// tells are the notifications that hooks hear.
var observed = map[string]bool{
	"notifications/message": true, "notifications/progress": true, "notifications/resources/updated": true,
	"notifications/tools/list_changed": true, "notifications/prompts/list_changed": true, "notifications/resources/list_changed": true,
	"notifications/elicitation/complete": true,
}

func (n *notifications) read(method string) {
	if observed[method] {
		n.mu.Lock()
		n.received++
		n.mu.Unlock()
	}
}

func (n *notifications) deliveredLocked(method string) {
	if !observed[method] {
		return
	}
	n.delivered++
	if n.progressed != nil {
		close(n.progressed)
		n.progressed = nil
	}
}

// settle waits until the hooks have heard all that has been read.
func (n *notifications) settle() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.delivered >= n.received {
		return
	}
	came := n.received
	timer := time.NewTimer(settleWait)
	defer timer.Stop()
	for n.delivered < came {
		if n.progressed == nil {
			n.progressed = make(chan struct{})
		}
		moved := n.progressed
		n.mu.Unlock()
		select {
		case <-moved:
		case <-timer.C:
			n.mu.Lock()
			n.delivered = max(n.delivered, came) // the SDK may have found no sense in one
			return
		}
		n.mu.Lock()
	}
}
