package egress

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/glovebox-dev/glovebox/internal/egress/policy"
)

const (
	defaultConnections = 1024
	maxBoxConnections  = 64 // as many as a guest can open

	// New connections. A burst is that of half a minute: an installer opens many at once.
	boxPerMinute   = 600
	ownerPerMinute = 4 * boxPerMinute

	// Lookups of a box: a program looks a name up once or twice for each connection.
	lookupsPerSecond = 20
	lookupBurst      = 100

	ownerBytes = 4                // times the bytes of a box
	maxPause   = 30 * time.Second // for which a connection waits at most for its share of the bytes
	chunk      = 64 << 10         // read or written at once

	idleTimeout   = 10 * time.Minute // without a byte in either direction
	headerTimeout = 10 * time.Second // for SOCKS
	keepAlive     = 60 * time.Second // of a connection to a server, between two requests
	peekTimeout   = 5 * time.Second  // for the first bytes of a program
	dialTimeout   = 10 * time.Second // for all addresses of a name
	dialOne       = 4 * time.Second  // for one address if there are more

	// maxResting bounds the owners without boxes whose limits are remembered.
	maxResting = 1024
)

// An owner has the limits that its boxes share.
type owner struct {
	networks int           // guarded by Gate.mu
	since    time.Time     // guarded by Gate.mu: without networks
	open     int           // guarded by Gate.mu: connections from guests
	fresh    *rate.Limiter // new connections
	bytes    *rate.Limiter // nil: no limit
	records  recordLimits  // of refusals and failed lookups
}

func newOwner(bytesPerMinute int64) *owner {
	return &owner{
		fresh:   perMinute(ownerPerMinute),
		bytes:   byteLimiter(ownerBytes * bytesPerMinute),
		records: newRecordLimits(ownerRefusalBurst),
	}
}

// rested reports whether the owner has used nothing of its limits lately, so that they can
// be forgotten.
func (o *owner) rested() bool {
	full := func(l *rate.Limiter) bool { return l == nil || l.Tokens() >= float64(l.Burst()) }
	return full(o.fresh) && full(o.bytes) && o.records.full()
}

// leaveLocked remembers the limits of an owner whose last network was closed: with a new
// box, they would begin anew. Beyond maxResting it forgets the owners that have rested, and
// then those that left first.
func (g *Gate) leaveLocked(o *owner) {
	o.since = time.Now()
	g.resting++
	if g.resting <= maxResting {
		return
	}
	var first string
	for name, o := range g.owners {
		switch {
		case o.networks > 0:
		case o.rested():
			delete(g.owners, name)
			g.resting--
		case g.owners[first] == nil || o.since.Before(g.owners[first].since):
			first = name
		}
	}
	if g.resting > maxResting {
		delete(g.owners, first)
		g.resting--
	}
}

// ownerLocked returns the limits of an owner that gets a network.
func (g *Gate) ownerLocked(name string) *owner {
	o := g.owners[name]
	switch {
	case o == nil:
		o = newOwner(g.opts.MaxBytesPerMinute)
		g.owners[name] = o
	case o.networks == 0:
		g.resting--
	}
	o.networks++
	return o
}

func perMinute(n int) *rate.Limiter { return rate.NewLimiter(rate.Limit(n)/60, n/2) }

// byteLimiter returns a limiter of bytes a minute, or nil for no limit. A pause saves up
// at most six seconds' worth.
func byteLimiter(perMinute int64) *rate.Limiter {
	if perMinute <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(perMinute)/60, int(max(perMinute/10, chunk)))
}

// admit counts a new connection of a guest, and reports whether it is the last one that the
// box may have now. If a limit is reached, it returns its text. The caller calls leave after
// a connection that was admitted.
func (n *Network) admit() (last bool, text string) {
	g := n.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case n.open >= g.maxBox:
		return false, fmt.Sprintf("this box already has %d connections; close some", n.open)
	case n.owner.open >= g.maxOwner:
		return false, fmt.Sprintf("the boxes of this owner already have %d connections; close some", n.owner.open)
	case g.open >= g.maxServer:
		return false, "the server has too many connections; try again later"
	case n.owner.open > 0 && n.owner.open >= g.maxServer-g.open-1: // A few owners cannot take all connections.
		return false, fmt.Sprintf("the server has few connections left, and the boxes of this owner have %d; close some", n.owner.open)
	}
	if text := n.begin(); text != "" {
		return false, text
	}
	n.open++
	n.owner.open++
	g.open++
	return n.open == g.maxBox, ""
}

// begin counts a new connection in the limits for a minute. If one is reached, it returns
// its text.
func (n *Network) begin() (text string) {
	switch {
	case !n.fresh.Allow():
		return tooFast("this box opened", boxPerMinute)
	case !n.owner.fresh.Allow():
		return tooFast("the boxes of this owner opened", ownerPerMinute)
	}
	return ""
}

// tooFast says that a limit of perMinute is reached.
func tooFast(who string, limit int) string {
	return fmt.Sprintf("%s connections too fast; at most %d at once, and then %d a minute; open fewer", who, limit/2, limit)
}

// dialled is a value of the context of a call of Serve: whether the connection of the guest
// has led to one to a server.
type dialled struct{ atomic.Bool }

type dialledKey struct{}

// dialAgain counts a connection to a server. The first one belongs to the guest's, which was
// counted already. One to a proxy can lead to any number of further ones.
func (n *Network) dialAgain(served context.Context) (text string) {
	if d, ok := served.Value(dialledKey{}).(*dialled); ok && !d.Swap(true) {
		return ""
	}
	return n.begin()
}

func (n *Network) leave() {
	g := n.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	n.open--
	n.owner.open--
	g.open--
}

// pace waits until the box and its owner may move some more bytes, at most chunk. It
// fails as soon as that would take more than 30 s, and when ctx ends.
func (n *Network) pace(ctx context.Context, bytes int) error {
	if n.bytes == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, maxPause)
	defer cancel()
	for _, l := range []*rate.Limiter{n.bytes, n.owner.bytes} {
		if err := l.WaitN(ctx, bytes); err != nil {
			return err
		}
	}
	return nil
}

// limited refuses a connection because of a limit.
func (n *Network) limited(door, host string, port uint16, text string) *refusal {
	return n.refuse(refusal{door: door, host: host, port: port, reason: Limit, status: statusLimit,
		text: "Glovebox refused the connection: " + text + "."}, policy.Verdict{})
}
