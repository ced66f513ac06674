package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/glovebox-dev/glovebox/internal/egress/floor"
	"github.com/glovebox-dev/glovebox/internal/egress/policy"
	"github.com/glovebox-dev/glovebox/internal/egress/resolve"
)

// A target is the destination of a connection, and the door through which it comes. The
// host is in canonical form if the policy allows it.
type target struct {
	door string
	host string
	port uint16
}

func (t target) String() string { return shown(t.host, t.port) }

// A flow is a connection to a server, counted and limited. It is a net.Conn; closing it
// makes its record.
type flow struct {
	net.Conn
	n       *Network
	t       target
	addr    netip.Addr
	verdict policy.Verdict
	start   time.Time
	ctx     context.Context // ends when the flow is closed
	cancel  context.CancelFunc

	raw     atomic.Bool             // any bytes pass through
	opaque  atomic.Bool             // requests in it cannot be read
	request atomic.Pointer[request] // the last one of plain HTTP; nil: none

	sent, received atomic.Int64
	last           atomic.Int64 // when the last bytes moved, in nanoseconds since 1970
	waited         atomic.Int64 // for the limits of bytes, in nanoseconds; see noteSlow
	idle           *time.Timer

	mu      sync.Mutex
	outcome Outcome     // guarded by mu: empty while it is open
	unwatch func() bool // guarded by mu: stops the wait for the end of Serve's context
}

// A request is what the policy decides on, beside the target of its flow.
type request struct {
	method, path string
	upgrade      bool // what follows is no request
}

// dial resolves and dials a target that v allows. The flow ends with served,
// the context of a call of Serve.
func (n *Network) dial(served context.Context, t target, v policy.Verdict) (*flow, *refusal) {
	if text := n.dialAgain(served); text != "" {
		return nil, n.limited(t.door, t.host, t.port, text)
	}
	ctx, cancel := context.WithTimeout(served, dialTimeout)
	defer cancel()
	start := time.Now()
	addrs, pinned, err := n.resolver.Resolve(ctx, t.host, t.port)
	var refused *resolve.Refused
	switch {
	case errors.As(err, &refused):
		return nil, n.refuseFloor(t.door, t.host, t.port, refused, v)
	case err != nil:
		if served.Err() != nil || errors.Is(err, resolve.ErrClosed) { // the program or the box left
			return nil, n.failed(t, v, start, "Glovebox ended the lookup.", "")
		}
		r := n.failed(t, v, start, unresolvedText(t.host, err), Unresolved)
		n.note(&refusal{host: t.host, port: t.port, reason: Unresolved, text: r.text})
		return nil, r
	}
	if denied := n.deniedAddr(addrs, pinned); !denied.OK {
		return nil, n.refuseVerdict(t.door, t.host, t.port, denied)
	}
	one := dialOne
	if len(addrs) == 1 {
		one = dialTimeout
	}
	var last error
	for _, addr := range addrs {
		c, err := n.dialAddr(ctx, addr, pinned, one)
		if err == nil {
			return n.newFlow(served, c, t, v, addr.Addr(), start)
		}
		if errors.As(err, &refused) {
			return nil, n.refuseFloor(t.door, t.host, t.port, refused, v)
		}
		if last = err; ctx.Err() != nil {
			break
		}
	}
	r := n.failed(t, v, start, fmt.Sprintf("Glovebox could not connect to %s: %s.", t, dialCause(last)), "")
	r.closed = errors.Is(last, syscall.ECONNREFUSED)
	if served.Err() == nil { // the program waits; many show a status or an alert of TLS only
		n.note(&refusal{host: t.host, port: t.port, reason: Unreachable, text: r.text + " The policy allows it; the host is down, or nothing listens at this port."})
	}
	return nil, r
}

// deniedAddr decides on the addresses of an allowed name. As with the floor, one that is
// denied refuses all. Pinned addresses are the operator's choice.
func (n *Network) deniedAddr(addrs []netip.AddrPort, pinned bool) policy.Verdict {
	set := n.policies()
	if !pinned {
		for _, a := range addrs {
			if v := set.DecideAddr(a.Addr(), a.Port()); !v.OK {
				return v
			}
		}
	}
	return policy.Verdict{OK: true}
}

// dialAddr dials an address that was resolved. The socket's address is checked again just
// before the connect, so that no mistake above leads past the floor.
func (n *Network) dialAddr(ctx context.Context, addr netip.AddrPort, pinned bool, timeout time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: timeout, ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
		actual, err := netip.ParseAddrPort(address)
		if err != nil || actual.Addr().Unmap() != addr.Addr() || actual.Port() != addr.Port() {
			return fmt.Errorf("dial %s: the socket would connect to %s", addr, address)
		}
		reason := floor.RefusesPinned(actual.Addr())
		if !pinned {
			reason = n.gate.floor.Refuses(actual.Addr())
		}
		if reason != "" {
			return &resolve.Refused{Host: address, Addr: actual.Addr(), Reason: string(reason)}
		}
		return nil
	}}
	return d.DialContext(ctx, "tcp", addr.String())
}

// lookupCause returns the reason of a failed lookup, without addresses.
func lookupCause(err error) string {
	switch {
	case errors.Is(err, resolve.ErrNotFound):
		return "no such host"
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	}
	return "the lookup failed"
}

// dialCause returns the reason of a failed connection attempt, without addresses.
func dialCause(err error) string {
	var errno syscall.Errno
	var timeout interface{ Timeout() bool }
	switch {
	case errors.As(err, &errno) && !errno.Timeout():
		return errno.Error()
	case errors.As(err, &timeout) && timeout.Timeout():
		return "no answer in time"
	}
	return "the connection failed"
}

// unresolvedText says that an allowed name has no address, and what to do. Programs show the
// same as for a name that no rule allows, so it also says that a rule does.
func unresolvedText(host string, err error) string {
	remedy := "check the name."
	if !errors.Is(err, resolve.ErrNotFound) {
		remedy = "try again later."
	}
	return fmt.Sprintf("Glovebox could not resolve %s: %s. The policy allows it; %s", shown(host, 0), lookupCause(err), remedy)
}

// unresolved notes and records a lookup of an allowed name that gave no address. A program can
// cause them by the thousand, so their records are bounded as those of refusals are.
func (n *Network) unresolved(host string, err error, v policy.Verdict) {
	n.note(&refusal{host: host, reason: Unresolved, text: unresolvedText(host, err)})
	if omitted, ok := n.recordable(Unresolved); ok {
		n.gate.opts.Record(Record{
			Box: n.box, Door: doorDNS, Host: host, Rule: v.Rule, Policy: v.Version, Outcome: Failed, Reason: Unresolved, Omitted: omitted,
		})
	}
}

// failed records a connection that was allowed but not established. reason is empty, or Unresolved:
// then the records are bounded as those of lookups are, which a program can make as well.
func (n *Network) failed(t target, v policy.Verdict, start time.Time, text string, reason policy.Reason) *refusal {
	n.gate.count.ended(Failed)
	omitted, ok := int64(0), true
	if reason == Unresolved {
		omitted, ok = n.recordable(Unresolved)
	}
	if ok {
		n.gate.opts.Record(Record{
			Box: n.box, Door: t.door, Host: t.host, Port: t.port, Rule: v.Rule, Policy: v.Version,
			Duration: time.Since(start), Outcome: Failed, Reason: reason, Omitted: omitted,
		})
	}
	return &refusal{door: t.door, host: t.host, port: t.port, policy: v.Version, text: text, status: statusFailed}
}

// newFlow registers a connection. The end of served, the context of a call of Serve, ends
// it: a server that neither reads nor closes must not delay that call. A policy that
// changed since the decision ends it, too.
func (n *Network) newFlow(served context.Context, c net.Conn, t target, v policy.Verdict, addr netip.Addr, start time.Time) (*flow, *refusal) {
	f := &flow{Conn: c, n: n, t: t, addr: addr, verdict: v, start: start}
	f.ctx, f.cancel = context.WithCancel(served)
	f.touch()
	n.wg.Add(1) // Network.Close waits for the record
	f.mu.Lock()
	f.idle = time.AfterFunc(idleTimeout, f.checkIdle)
	f.unwatch = context.AfterFunc(served, func() {
		defer n.wg.Done()
		f.end(OK)
	})
	f.mu.Unlock()
	n.mu.Lock()
	closed := n.closed
	if !closed {
		n.flows[f] = struct{}{}
	}
	n.mu.Unlock()
	if closed {
		f.Close()
		return nil, &refusal{host: t.host, port: t.port, text: "Glovebox ended the network of this box.", status: statusFailed}
	}
	f.checkPolicy()
	return f, nil
}

// carry notes the request that the flow has from now on, also after an upgrade. It ends the
// flow if the policy has changed since the decision on the request.
func (f *flow) carry(r *request) {
	f.request.Store(r)
	f.checkPolicy()
}

// carryOpaque notes that requests in the flow cannot be read from now on. It ends the flow if
// the policy has changed since the decision on the flow.
func (f *flow) carryOpaque() {
	f.opaque.Store(true)
	f.checkPolicy()
}

// carryRaw is carryOpaque for a flow in which any bytes pass, not only TLS and HTTP.
func (f *flow) carryRaw() {
	f.raw.Store(true)
	f.carryOpaque()
}

// checkPolicy ends the flow if the policy does not allow it any more.
func (f *flow) checkPolicy() {
	set := f.n.policies()
	v := set.Decide(f.t.host, f.t.port)
	if r := f.request.Load(); r != nil {
		v = set.DecideRequest(f.t.host, f.t.port, r.method, r.path)
		v.OK = v.OK && !(r.upgrade && v.RequestsOnly)
	}
	to := []netip.AddrPort{netip.AddrPortFrom(f.addr, f.t.port)}
	denied := f.n.deniedAddr(to, f.n.resolver.Pinned(f.t.host, f.t.port))
	if !v.OK || !denied.OK || f.raw.Load() && v.Kind != policy.Raw || f.opaque.Load() && v.RequestsOnly {
		if f.end(PolicyChanged) {
			f.noteCut()
		}
	}
}

func (f *flow) touch() {
	now := time.Now().UnixNano()
	f.last.Store(now)
	f.n.moved.Store(now)
}

// checkIdle ends the flow if no bytes moved, and otherwise looks again later.
func (f *flow) checkIdle() {
	rest := idleTimeout - time.Since(time.Unix(0, f.last.Load()))
	if rest <= 0 {
		f.end(Idle)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.outcome == "" {
		f.idle.Reset(rest)
	}
}

// Read reads at most chunk bytes from the server, and then waits for the limits.
func (f *flow) Read(p []byte) (int, error) {
	k, err := f.Conn.Read(p[:min(len(p), chunk)])
	if k > 0 {
		f.touch()
		if perr := f.pace(k); perr != nil {
			return 0, perr // the box gets none of it: with each new connection, it would get some more
		}
		f.received.Add(int64(k))
		f.n.gate.count.received.Add(uint64(k))
	}
	return k, err
}

// Write waits for the limits, and writes to the server.
func (f *flow) Write(p []byte) (written int, err error) {
	for len(p) > 0 && err == nil {
		part := p[:min(len(p), chunk)]
		if err := f.pace(len(part)); err != nil {
			return written, err
		}
		var k int
		k, err = f.Conn.Write(part)
		f.touch()
		f.sent.Add(int64(k))
		f.n.gate.count.sent.Add(uint64(k))
		written, p = written+k, p[k:]
	}
	return written, err
}

// pace waits for the limits of bytes. A flow that waits too long ends.
func (f *flow) pace(bytes int) error {
	begun := time.Now()
	err := f.n.pace(f.ctx, bytes)
	f.noteSlow(time.Since(begun))
	if err == nil {
		return nil
	}
	if f.ctx.Err() == nil && f.end(Limited) {
		f.noteLimited()
	}
	return fmt.Errorf("limit the connection: %w", err)
}

func (f *flow) CloseWrite() error { return closeWrite(f.Conn) }

func (f *flow) Close() error {
	f.end(OK)
	return nil
}

// end closes the flow and makes its record. It reports whether the flow was open.
func (f *flow) end(o Outcome) bool {
	f.mu.Lock()
	if f.outcome != "" {
		f.mu.Unlock()
		return false
	}
	f.outcome = o
	f.idle.Stop()
	if f.unwatch() {
		defer f.n.wg.Done()
	}
	f.mu.Unlock()
	f.cancel()
	_ = f.Conn.Close() // nothing depends on it
	f.n.mu.Lock()
	delete(f.n.flows, f)
	f.n.mu.Unlock()
	f.n.gate.count.ended(o)
	var reason policy.Reason
	if o == Limited {
		reason = Limit
	}
	f.n.gate.opts.Record(Record{
		Box: f.n.box, Door: f.t.door, Host: f.t.host, Port: f.t.port, Addr: f.addr, Rule: f.verdict.Rule, Policy: f.verdict.Version,
		Sent: f.sent.Load(), Received: f.received.Load(), Duration: time.Since(f.start), Outcome: o, Reason: reason,
	})
	return true
}

var buffers = sync.Pool{New: func() any { return new([chunk]byte) }}

// splice copies bytes in both directions until both have ended, passes on the end of
// each, and closes both connections.
func splice(guest net.Conn, f *flow) {
	var wg sync.WaitGroup
	wg.Go(func() { copyHalf(f, guest) })
	copyHalf(guest, f)
	wg.Wait()
	guest.Close()
	f.Close()
}

// copyHalf copies one direction. After a failure, it closes both connections.
func copyHalf(dst, src net.Conn) {
	buf := buffers.Get().(*[chunk]byte)
	defer buffers.Put(buf)
	for {
		k, err := src.Read(buf[:])
		if k > 0 {
			if _, werr := dst.Write(buf[:k]); werr != nil {
				break
			}
		}
		if err == io.EOF {
			if closeWrite(dst) == nil {
				return
			}
			break
		}
		if err != nil {
			break
		}
	}
	dst.Close()
	src.Close()
}
