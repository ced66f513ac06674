package mcpkit

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"
)

// settleTimeout bounds the time for which a request waits until hooks have received the
// notifications sent before its response. Slow hooks receive them later.
const settleTimeout = 250 * time.Millisecond

// notifications is the queue of notifications for the hooks of a connection. The SDK
// would queue any number of them, so this queue is bounded. It also counts them, so
// that a response does not overtake the notifications sent before it: the SDK delivers
// responses at once, and notifications in order. The zero value is an empty queue.
type notifications struct {
	running sync.WaitGroup // the goroutine that calls the hooks, while the queue is not empty

	mu         sync.Mutex
	received   int                     // guarded by mu: notifications read from the connection
	delivered  int                     // guarded by mu: those delivered to hooks or dropped
	progressed chan struct{}           // guarded by mu: closed at the next delivery; nil if nothing waits for it
	waiting    []pendingNotification   // guarded by mu
	busy       bool                    // guarded by mu: the goroutine is running
	closed     bool                    // guarded by mu
	ctx        context.Context         // guarded by mu: of the hooks; nil before the first notification
	cancel     context.CancelCauseFunc // guarded by mu
}

// A pendingNotification waits for the hooks.
type pendingNotification struct {
	method  string
	deliver func(context.Context)
}

// put queues a notification. It returns false if the queue already has limit entries,
// and drops it. A change of a list is never dropped: if one is queued already, that
// suffices.
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

// run calls the hooks until the queue is empty.
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

// close drops the queue and returns when no hook is running any more.
func (n *notifications) close() {
	n.mu.Lock()
	n.closed, n.waiting = true, nil
	if n.cancel != nil {
		n.cancel(ErrClosed)
	}
	n.mu.Unlock()
	n.running.Wait()
}

// observed are the notifications that hooks receive.
var observed = map[string]bool{
	"notifications/message": true, "notifications/progress": true, "notifications/resources/updated": true,
	"notifications/tools/list_changed": true, "notifications/prompts/list_changed": true, "notifications/resources/list_changed": true,
	"notifications/elicitation/complete": true,
}

func (n *notifications) countReceived(method string) {
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

// settle waits until the hooks have received all notifications read so far.
func (n *notifications) settle() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.delivered >= n.received {
		return
	}
	came := n.received
	timer := time.NewTimer(settleTimeout)
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
			n.delivered = max(n.delivered, came) // the SDK may have rejected one
			return
		}
		n.mu.Lock()
	}
}
