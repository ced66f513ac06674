package server

import (
	"container/list"
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// newPlaces is how many connections the server accepts above its limit, for
	// connections that have not authenticated yet.
	newPlaces = 32
	// restBeforeReclaim is how long a connection must be idle before another one may
	// replace it: its client may be about to use it.
	restBeforeReclaim = time.Second
	// warnInterval is how often the log repeats a warning about one limit.
	warnInterval = time.Minute
)

// connections bounds HTTP connections.
//
// A connection is new until it carries a request that authenticates, or that is accepted
// without authentication. Then it is established. The limit is that of the established
// ones; new ones may take the places that those leave, and newPlaces more. When all places
// are taken, an arriving connection replaces a new one: the oldest of the address that has
// the most. So an address gets a fair share of the places, and clients that send nothing
// keep no other client out. A TLS handshake is part of a new connection.
type connections struct {
	limit int // of established connections
	each  int // of established connections of one owner; 0: none
	log   *slog.Logger
	warn  rate.Sometimes

	mu          sync.Mutex
	now         func() time.Time         // guarded by mu: the clock of idle connections
	open        map[net.Conn]*connection // guarded by mu
	fresh       map[string]*list.List    // guarded by mu: new connections by network, oldest first
	arrived     uint64                   // guarded by mu: numbers connections
	established int                      // guarded by mu
	accounts    map[account]int          // guarded by mu: established connections
	dropped     int                      // guarded by mu: new connections that were replaced
}

type connection struct {
	conn    net.Conn
	network string
	number  uint64
	place   *list.Element // guarded by connections.mu: in fresh; nil if established
	account account       // guarded by connections.mu: of an established one
	idle    time.Time     // guarded by connections.mu: since when; zero: in use

	authenticated atomic.Bool // set when it is established
}

type connectionKey struct{}

// init prepares connections for use.
func (cs *connections) init() {
	cs.now = time.Now
	cs.open = make(map[net.Conn]*connection)
	cs.fresh = make(map[string]*list.List)
	cs.accounts = make(map[account]int)
	cs.warn.Interval = warnInterval
}

// opened is for [http.Server.ConnContext].
func (cs *connections) opened(ctx context.Context, conn net.Conn) context.Context {
	c := &connection{conn: conn, network: addressPrefix(addressOf(conn.RemoteAddr().String()))}
	cs.mu.Lock()
	var victim *connection
	cs.arrived++
	c.number = cs.arrived
	if cs.fresh[c.network] == nil {
		cs.fresh[c.network] = list.New()
	}
	c.place = cs.fresh[c.network].PushBack(c)
	cs.open[conn] = c
	if len(cs.open) > cs.limit+newPlaces {
		victim = cs.heaviestLocked()
		cs.removeLocked(victim)
		cs.dropped++
	}
	dropped := cs.dropped
	cs.mu.Unlock()
	if victim != nil {
		forceClose(victim.conn)
		cs.warn.Do(func() {
			cs.log.Warn("new connections are closed to make room: an address opens many and sends no valid request", logkey.Remote, victim.network, logkey.Count, dropped)
		})
	}
	return context.WithValue(ctx, connectionKey{}, c)
}

// heaviestLocked returns the oldest new connection of the network that has the most of
// them. There are always some: fewer connections are established than there are places.
func (cs *connections) heaviestLocked() *connection {
	var victim *connection
	most := 0
	for _, l := range cs.fresh {
		oldest := l.Front().Value.(*connection)
		if n := l.Len(); n > most || n == most && oldest.number < victim.number {
			victim, most = oldest, n
		}
	}
	return victim
}

// establish counts the connection of a request as one of the account's, or says which limit
// is reached. At a limit, it makes room by closing an idle connection: of the owner (of its
// readers, at theirs) or, at the limit of all, of the owner with the most connections.
func (cs *connections) establish(r *http.Request, p account) excess {
	c, _ := r.Context().Value(connectionKey{}).(*connection)
	if c == nil || c.authenticated.Load() {
		return withinLimits
	}
	cs.mu.Lock()
	if c.place == nil || cs.open[c.conn] != c { // another request was faster, or it is closed
		cs.mu.Unlock()
		return withinLimits
	}
	var victim *connection
	exceeded := withinLimits
	switch {
	case cs.each > 0 && p.reader && cs.accounts[p] >= int(half(int64(cs.each))):
		if victim = cs.idleLocked(func(c *connection) bool { return c.account == p }); victim == nil {
			exceeded = ownerExcess
		}
	case cs.each > 0 && cs.ownerLocked(p.owner) >= cs.each:
		if victim = cs.idleLocked(func(c *connection) bool { return c.account.owner == p.owner }); victim == nil {
			exceeded = ownerExcess
		}
	case cs.established >= cs.limit:
		if victim = cs.idleLocked(func(*connection) bool { return true }); victim == nil {
			exceeded = totalExcess
		}
	}
	if victim != nil {
		cs.removeLocked(victim)
	}
	if exceeded == withinLimits {
		cs.unlistLocked(c)
		c.account = p
		cs.established++
		cs.accounts[p]++
		c.authenticated.Store(true)
	}
	cs.mu.Unlock()
	if victim != nil {
		forceClose(victim.conn)
	}
	return exceeded
}

// ownerLocked returns the number of established connections of an owner.
func (cs *connections) ownerLocked(owner string) int {
	return cs.accounts[account{owner, false}] + cs.accounts[account{owner, true}]
}

// idleLocked returns, of the idle connections that match, the one that has been idle longest
// of the owner with the most connections; nil if there is none.
func (cs *connections) idleLocked(match func(*connection) bool) *connection {
	var longest *connection
	now := cs.now()
	for _, c := range cs.open {
		switch {
		case c.place != nil || c.idle.IsZero() || now.Sub(c.idle) < restBeforeReclaim:
		case !match(c):
		case longest == nil, cs.ownerLocked(c.account.owner) > cs.ownerLocked(longest.account.owner),
			cs.ownerLocked(c.account.owner) == cs.ownerLocked(longest.account.owner) && c.idle.Before(longest.idle):
			longest = c
		}
	}
	return longest
}

// changed is for [http.Server.ConnState].
func (cs *connections) changed(conn net.Conn, state http.ConnState) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.open[conn]
	if c == nil {
		return // it was replaced
	}
	switch state {
	case http.StateIdle:
		c.idle = cs.now()
	case http.StateActive:
		c.idle = time.Time{}
	case http.StateClosed, http.StateHijacked:
		cs.removeLocked(c)
	}
}

func (cs *connections) removeLocked(c *connection) {
	delete(cs.open, c.conn)
	if c.place != nil {
		cs.unlistLocked(c)
		return
	}
	cs.established--
	if cs.accounts[c.account]--; cs.accounts[c.account] == 0 {
		delete(cs.accounts, c.account)
	}
}

// unlistLocked removes a connection from the new ones.
func (cs *connections) unlistLocked(c *connection) {
	l := cs.fresh[c.network]
	l.Remove(c.place)
	c.place = nil
	if l.Len() == 0 {
		delete(cs.fresh, c.network)
	}
}

// counts returns how many connections are open, and how many were ever replaced.
func (cs *connections) counts() (open, dropped int) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return len(cs.open), cs.dropped
}

// forceClose closes a connection without a message of TLS, which would wait for a write that
// is stuck.
func forceClose(c net.Conn) {
	if secure, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = secure.NetConn()
	}
	_ = c.Close()
}

// An ackListener limits the time for which a dead client keeps its connection.
type ackListener struct{ net.Listener }

func (l ackListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		setAckTimeout(c)
	}
	return c, err
}
