package mcpkit

import (
	"sync"
	"time"
)

// settleWait bounds what a request waits for the hooks to hear what its server told
// before it answered. They are quick, or do not hear all before the answer.
const settleWait = 250 * time.Millisecond

// news counts the notifications of a connection, so that an answer does not overtake
// what was told before it: the SDK hands answers out at once, and notifications when
// it is their turn. The zero value has heard of none.
type news struct {
	mu    sync.Mutex
	came  int           // guarded by mu: have been read
	heard int           // guarded by mu: of these the hooks have heard
	moved chan struct{} // guarded by mu: closed at the next that is heard; nil if nobody waits
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

func (n *news) told(method string) {
	if !tells[method] {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
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
