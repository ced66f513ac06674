package egress

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/glovebox-dev/glovebox/internal/egress/floor"
	"github.com/glovebox-dev/glovebox/internal/egress/policy"
	"github.com/glovebox-dev/glovebox/internal/egress/resolve"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// ErrClosed means that the network of the box was closed.
var ErrClosed = errors.New("the network of this box is closed")

// A Network is the network of one box. Its methods may be called concurrently.
type Network struct {
	gate     *Gate
	box      Box
	limits   []policy.Layer
	owner    *owner
	resolver *resolve.Resolver
	changed  chan struct{}

	fresh   *rate.Limiter // new connections
	lookups *rate.Limiter
	bytes   *rate.Limiter // nil: no limit
	moved   atomic.Int64  // when the last bytes were, in nanoseconds since 1970
	records recordLimits  // of refusals and failed lookups

	ctx    context.Context // of all connections; ends in Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // calls of Serve

	open int // guarded by gate.mu: connections from the guest

	listed atomic.Pointer[listed] // the last list of what the policy allows

	mu       sync.Mutex
	closed   bool                 // guarded by mu
	flows    map[*flow]struct{}   // guarded by mu: the open ones
	watches  map[*func()]struct{} // guarded by mu: called when the policy has changed
	refusals map[Refusal]*noted   // guarded by mu: since the last Take; keys have no Text and Count
}

func newNetwork(g *Gate, b Box, limits []policy.Layer) *Network {
	n := &Network{
		gate: g, box: b, limits: limits,
		changed: make(chan struct{}, 1),
		fresh:   perMinute(boxPerMinute),
		lookups: rate.NewLimiter(lookupsPerSecond, lookupBurst),
		bytes:   byteLimiter(g.opts.MaxBytesPerMinute),
		records: newRecordLimits(refusalBurst),
		flows:   make(map[*flow]struct{}), watches: make(map[*func()]struct{}), refusals: make(map[Refusal]*noted),
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.resolver = resolve.New(resolve.Options{
		Lookup: g.opts.Resolver, Pins: g.opts.Pins,
		Refuses: func(a netip.Addr) string { return string(g.floor.Refuses(a)) },
	})
	return n
}

// policies returns what applies to the box now.
func (n *Network) policies() policy.Set {
	return n.gate.opts.Policies(n.box.Owner).Narrow(n.limits...)
}

// Allowed lists what the programs of the box can reach, as [policy.Set.Allowed] does.
func (n *Network) Allowed() []string { return n.policies().Allowed() }

// Settings returns the settings for the agent of the box.
func (n *Network) Settings() protocol.Network {
	set := n.policies()
	if !set.On() {
		notice := "Glovebox: this box has no network; its operator can allow hosts with " + n.Where()
		if v := set.Decide("", 0); n.narrowed(v) {
			notice = "Glovebox: " + offText(v)
		}
		return protocol.Network{Notice: notice}
	}
	s := protocol.Network{On: true}
	if i := n.gate.opts.Intercept; i != nil {
		s.Env, s.CA = i.Settings(n.box)
	}
	s.CA += n.gate.opts.Authorities
	return s
}

// Changed returns a channel that receives a value when Settings may have changed.
func (n *Network) Changed() <-chan struct{} { return n.changed }

// activeFor is how long after its last byte a network counts as active.
const activeFor = 10 * time.Second

// Active reports whether bytes moved in the last 10 s.
func (n *Network) Active() bool { return time.Since(time.Unix(0, n.moved.Load())) < activeFor }

// Connected reports whether a connection is open.
func (n *Network) Connected() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.flows) > 0
}

func (n *Network) reevaluate() {
	n.mu.Lock()
	flows := make([]*flow, 0, len(n.flows))
	for f := range n.flows {
		flows = append(flows, f)
	}
	watches := slices.Collect(maps.Keys(n.watches))
	n.mu.Unlock()
	for _, f := range flows {
		f.checkPolicy()
	}
	for _, changed := range watches {
		(*changed)()
	}
	select {
	case n.changed <- struct{}{}:
	default: // one value is enough
	}
}

// watch calls changed now, and whenever the policy has changed until stop is called.
func (n *Network) watch(changed func()) (stop func()) {
	n.mu.Lock()
	n.watches[&changed] = struct{}{}
	n.mu.Unlock()
	changed()
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.watches, &changed)
	}
}

// Close ends all connections and waits for them, and makes a record of the refusals that have
// none. Then the network refuses everything. It may be called more than once. The error is
// nil.
func (n *Network) Close() error {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.cancel()
	n.wg.Wait()
	n.resolver.Close()
	n.recordOmitted()
	n.gate.forget(n)
	return nil
}

var lookupStatuses = []string{protocol.LookupOK, protocol.LookupNXDomain, protocol.LookupRefused, protocol.LookupFailed}

// lookupTTL is how long the guest may use the answer to a lookup, in seconds. Each
// connection is decided on again.
const lookupTTL = 30

// Lookup reports whether programs may connect to a name, and at which ports. It resolves
// the name, so that the connection that follows is quick, but returns no addresses.
func (n *Network) Lookup(ctx context.Context, name string) protocol.LookupResult {
	res := n.lookup(ctx, name)
	n.gate.count.lookedUp(res.Status)
	return res
}

func (n *Network) lookup(ctx context.Context, name string) protocol.LookupResult {
	if !n.lookups.Allow() {
		return protocol.LookupResult{Status: protocol.LookupFailed}
	}
	set := n.policies()
	host, err := policy.ParseName(name)
	if err != nil {
		n.refuseVerdict(doorDNS, name, 0, policy.Verdict{Version: set.Version(), Reason: policy.Name})
		return protocol.LookupResult{Status: protocol.LookupRefused}
	}
	ports := set.Ports(host)
	if len(ports) == 0 {
		v := set.Decide(host, 443) // says why
		if v.OK {
			v = policy.Verdict{Version: v.Version, Reason: policy.NoRule}
		}
		n.refuseVerdict(doorDNS, host, 0, v)
		return protocol.LookupResult{Status: protocol.LookupRefused}
	}
	// A pin can be for one port: the name exists if it leads anywhere at an allowed one.
	var addrs []netip.AddrPort
	var pinned bool
	port := ports[0]
	for _, port = range ports {
		if addrs, pinned, err = n.resolver.Resolve(ctx, host, port); err == nil {
			break
		}
	}
	var refused *resolve.Refused
	switch {
	case errors.As(err, &refused):
		n.refuseFloor(doorDNS, host, 0, refused, set.Decide(host, port))
		return protocol.LookupResult{Status: protocol.LookupRefused}
	case err != nil && (ctx.Err() != nil || errors.Is(err, resolve.ErrClosed)): // the program or the box left
		return protocol.LookupResult{Status: protocol.LookupFailed}
	case err != nil:
		n.unresolved(host, err, set.Decide(host, port))
	}
	switch {
	case errors.Is(err, resolve.ErrNotFound):
		return protocol.LookupResult{Status: protocol.LookupNXDomain, TTL: 1}
	case err != nil:
		return protocol.LookupResult{Status: protocol.LookupFailed}
	}
	if denied := n.deniedAddr(addrs, pinned); !denied.OK && len(ports) == 1 {
		n.refuseVerdict(doorDNS, host, 0, denied) // with more ports, each connection is decided on
		return protocol.LookupResult{Status: protocol.LookupRefused}
	}
	res := protocol.LookupResult{Status: protocol.LookupOK, TTL: lookupTTL}
	for _, p := range ports {
		res.Ports = append(res.Ports, int(p))
	}
	return res
}

// doorDNS is the Door of records of lookups. The agent protocol has no such door: a lookup
// opens no connection.
const doorDNS = "dns"

// refuseFloor refuses a name with an address that boxes never reach.
func (n *Network) refuseFloor(door, host string, port uint16, r *resolve.Refused, v policy.Verdict) *refusal {
	leads, remedy := "leads to", pinRemedy(host)
	if reason := floor.RefusesPinned(r.Addr); reason != "" {
		remedy = noRemedy
	}
	if _, err := netip.ParseAddr(host); err == nil {
		leads = "is"
	}
	return n.refuse(refusal{door: door, host: host, port: port, reason: Floor, status: statusRefused,
		text: fmt.Sprintf("Glovebox refused %s: it %s %s, which boxes never reach. %s", shown(host, port), leads, r.Reason, remedy)}, v)
}

// Serve serves a connection that a program in the guest opened. It owns conn, closes it, and
// returns when all goroutines of the connection have ended. ctx ends it early. A
// connection that is refused, or that a peer ended, is no error; an invalid d and a closed
// Network are.
func (n *Network) Serve(ctx context.Context, d protocol.Dial, conn net.Conn) error {
	defer conn.Close()
	if err := d.Check(); err != nil {
		return err
	}
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return ErrClosed
	}
	n.wg.Add(1)
	n.mu.Unlock()
	defer n.wg.Done()
	ctx, cancel := context.WithCancel(context.WithValue(ctx, dialledKey{}, new(dialled)))
	defer cancel()
	defer context.AfterFunc(n.ctx, cancel)()
	defer context.AfterFunc(ctx, func() { conn.Close() })()

	c := &guestConn{Conn: conn}
	last, text := n.admit()
	if last {
		n.noteLast(d)
	}
	if text != "" {
		r := n.limited(d.Door, d.Name, uint16(d.Port), text)
		if d.Door == protocol.DoorHTTP {
			r.writeRaw(c, "")
		}
		return nil
	}
	defer n.leave()
	defer func() {
		if p := recover(); p != nil {
			n.gate.opts.Log.Error("panic in a connection of a box", logkey.Box, n.box.ID, logkey.Panic, p, logkey.Stack, string(debug.Stack()))
		}
	}()
	switch d.Door {
	case protocol.DoorHTTP:
		n.serveHTTP(ctx, d.Door, c, nil, nil)
	case protocol.DoorSOCKS:
		n.serveSOCKS(ctx, c)
	case protocol.DoorTCP:
		n.serveTCP(ctx, target{d.Door, d.Name, uint16(d.Port)}, c)
	}
	return nil
}

// A guestConn is a connection to a program in the guest. A program that reads nothing for
// ten minutes is disconnected.
type guestConn struct{ net.Conn }

func (c *guestConn) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(idleTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

func (c *guestConn) CloseWrite() error { return closeWrite(c.Conn) }

// closeWrite ends the stream to the peer if c can do so; otherwise it closes c.
func closeWrite(c net.Conn) error {
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return c.Close()
}
