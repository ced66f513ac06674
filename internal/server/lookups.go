package server

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/glovebox-dev/glovebox/internal/fleet"
)

const (
	// lookupRate and lookupBurst limit the lookups of servers that this one has never seen
	// alive, of one account. Honest clients name few: those that have ended lately.
	lookupRate  = 1
	lookupBurst = 20
	// goneFor is how long a server that is gone counts as gone without another lookup.
	goneFor = 5 * time.Second
	// maxNamed bounds the servers that are remembered of either kind. An account adds at most
	// lookupBurst and a few more names within goneFor, so that one alone displaces none.
	maxNamed = 1000
	// lookupFor bounds a lookup that several requests may wait for.
	lookupFor = 5 * time.Second
)

// lookups bounds the lookups of other servers that clients cause: they may name any server, in
// the id of a session or a task, and each lookup asks the cluster.
//
// Servers that were seen alive are looked up without a limit: a client cannot make up their
// names, and the fleet itself remembers for a moment that they live. A server that is gone is
// not looked up again for goneFor. The lookups of all others count for the account of their
// client, so that the names which one client makes up delay no other one.
type lookups struct {
	rate *rates

	mu      sync.Mutex
	lived   *simplelru.LRU[string, struct{}]  // guarded by mu
	gone    *simplelru.LRU[string, time.Time] // guarded by mu: when they were
	running map[string]chan struct{}          // guarded by mu: closed when the lookup has ended
}

func newLookups() *lookups {
	lived, err := simplelru.NewLRU[string, struct{}](maxNamed, nil)
	if err != nil { // only for a size that is not positive
		panic(err)
	}
	gone, err := simplelru.NewLRU[string, time.Time](maxNamed, nil)
	if err != nil {
		panic(err)
	}
	return &lookups{rate: newRates(lookupRate, lookupBurst), lived: lived, gone: gone, running: make(map[string]chan struct{})}
}

// look reports whether a server is gone, or how long the account has to wait before it may
// name another one. It leaves it to the caller to find a server that is not gone, and to
// report that the fleet does not answer.
func (l *lookups) look(ctx context.Context, f fleet.Fleet, account, server string) (gone bool, wait time.Duration) {
	known, others, wait := l.begin(account, server)
	switch {
	case known || wait > 0:
	case others != nil:
		select {
		case <-others:
		case <-ctx.Done():
		}
	default:
		l.ask(ctx, f, server)
	}
	return l.isGone(server), wait
}

// begin begins the lookup of a server, which ask then ends. It begins none if what is known of
// the server is enough, if others look already, or if the account has to wait.
func (l *lookups) begin(account, server string) (known bool, others <-chan struct{}, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known = l.lived.Get(server); known || l.isGoneLocked(server) {
		return true, nil, 0
	}
	if others, ok := l.running[server]; ok {
		return false, others, 0
	}
	if wait = l.rate.take(account, 1, time.Now()); wait == 0 {
		l.running[server] = make(chan struct{})
	}
	return false, nil, wait
}

// ask asks the fleet. Other requests may wait for the answer, so it does not depend on the
// deadline of this client.
func (l *lookups) ask(ctx context.Context, f fleet.Fleet, server string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookupFor)
	defer cancel()
	found, gone := false, false
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if found && gone {
			l.gone.Add(server, time.Now())
		} else if found {
			l.lived.Add(server, struct{}{})
		}
		close(l.running[server])
		delete(l.running, server)
	}()
	if other, err := f.Server(ctx, server); err == nil {
		found, gone = true, other.Gone
	}
}

// left records that a server which look did not call gone has turned out to be.
func (l *lookups) left(server string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone.Add(server, time.Now())
}

// isGone reports whether a server was gone a moment ago.
func (l *lookups) isGone(server string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.isGoneLocked(server)
}

func (l *lookups) isGoneLocked(server string) bool {
	at, ok := l.gone.Get(server)
	return ok && time.Since(at) < goneFor
}
