package egress

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"

	"github.com/glovebox-dev/glovebox/internal/egress/floor"
	"github.com/glovebox-dev/glovebox/internal/egress/policy"
	"github.com/glovebox-dev/glovebox/internal/egress/resolve"
	"github.com/glovebox-dev/glovebox/internal/egress/webserve"
)

// A Box is the box that connects, for records and limits.
type Box struct {
	Owner, ID, Template string
}

// Options configure a Gate.
type Options struct {
	// Policies returns the current policies of an owner, without the limits of a box. It is
	// called for each decision, concurrently, and must return quickly. Required.
	Policies func(owner string) policy.Set
	// Where says where the operator allows hosts to an owner, in a few visible ASCII
	// characters, such as "--network", which nil stands for.
	Where func(owner string) string
	// Pins are the addresses that the operator chose for names.
	Pins []resolve.Pin
	// Resolver looks names up; nil: Go's own resolver with this machine's settings.
	Resolver resolve.Lookuper
	// MaxConnections limits the connections of all boxes together; 0 means 1,024. An
	// owner may have a quarter of them, and a box 64.
	MaxConnections int
	// MaxBytesPerMinute limits the bytes of a box in both directions together; an owner
	// may have four times as many. 0: no limit.
	MaxBytesPerMinute int64
	// Record receives a record of each connection at its end, and of refusals. It is
	// called concurrently and must not block. nil: none.
	Record func(Record)
	// Authorities are certificates in PEM that programs in all boxes have to trust, beside
	// those of their image and of Intercept. At most 16 KiB: see protocol.MaxCA.
	Authorities string
	// Intercept serves the hosts for which there are secrets. nil: none.
	Intercept Interceptor
	// Log receives faults of Glovebox. nil: none.
	Log *slog.Logger
}

// An Interceptor terminates TLS for the hosts that it wants. Its methods may be called
// concurrently.
type Interceptor interface {
	// Wants reports whether connections of b to host are served by Serve instead of
	// being passed through. host is in canonical form.
	Wants(b Box, host string) bool
	// Serve terminates TLS on c and forwards requests. The server name in the
	// ClientHello was compared with host. dial opens a connection to an address of host
	// that was checked; the Interceptor closes it. Serve returns when c is done and all of
	// its goroutines have ended; it may leave closing c to the caller. ctx ends with the
	// box's network. note is for what the user of the box should know about a request.
	Serve(ctx context.Context, b Box, host string, port uint16, c net.Conn, dial func(context.Context) (net.Conn, error), note func(why policy.Reason, text string)) error
	// Plain gets each request of plain HTTP to host, which the network passes on as it is. It
	// returns the names of secrets that the request needs TLS for; none as a rule.
	Plain(b Box, host string, r *http.Request) (secrets []string)
	// Settings returns variables for programs in the box, and a certificate in PEM that
	// they have to trust.
	Settings(b Box) (env map[string]string, caPEM string)
}

// A Gate serves the connections of boxes. Its methods may be called concurrently.
type Gate struct {
	opts  Options
	floor floor.Floor
	count counters

	bounds webserve.Bounds // of requests

	maxServer, maxOwner, maxBox int

	mu       sync.Mutex
	closed   bool                  // guarded by mu
	networks map[*Network]struct{} // guarded by mu: the open ones
	owners   map[string]*owner     // guarded by mu: those with open networks, and resting ones
	resting  int                   // guarded by mu: owners without open networks
	open     int                   // guarded by mu: connections from guests
}

// New returns a Gate. The caller closes it.
func New(o Options) *Gate {
	if o.Resolver == nil {
		o.Resolver = &net.Resolver{PreferGo: true}
	}
	if o.MaxConnections <= 0 {
		o.MaxConnections = defaultConnections
	}
	if o.Record == nil {
		o.Record = func(Record) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	g := &Gate{opts: o, bounds: webserve.Default, networks: make(map[*Network]struct{}), owners: make(map[string]*owner)}
	g.maxServer = o.MaxConnections
	g.maxOwner = max(1, o.MaxConnections/4)
	g.maxBox = min(maxBoxConnections, g.maxOwner)
	g.count.init()
	return g
}

// Open returns the network of a box. limits narrow it further than the policies of the
// Gate do. The caller closes the Network. The Network of a closed Gate refuses everything.
func (g *Gate) Open(b Box, limits ...policy.Layer) *Network {
	n := newNetwork(g, b, limits)
	g.mu.Lock()
	defer g.mu.Unlock()
	n.owner = g.ownerLocked(b.Owner)
	g.networks[n] = struct{}{}
	if g.closed {
		n.cancel()
		n.closed = true
	}
	return n
}

// forget removes a closed network.
func (g *Gate) forget(n *Network) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.networks[n]; !ok {
		return
	}
	delete(g.networks, n)
	if n.owner.networks--; n.owner.networks == 0 {
		g.leaveLocked(n.owner)
	}
}

// Reevaluate decides on all open connections again and ends those that are no longer
// allowed. Each Network announces that its settings may have changed.
func (g *Gate) Reevaluate() {
	for _, n := range g.all() {
		n.reevaluate()
	}
}

// all returns the open networks.
func (g *Gate) all() []*Network {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]*Network, 0, len(g.networks))
	for n := range g.networks {
		all = append(all, n)
	}
	return all
}

// Close closes all networks and waits for their connections to end. The error is nil.
func (g *Gate) Close() error {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	var wg sync.WaitGroup
	for _, n := range g.all() {
		wg.Go(func() { _ = n.Close() }) // it returns no error
	}
	wg.Wait()
	return nil
}
