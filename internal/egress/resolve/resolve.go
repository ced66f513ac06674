// Package resolve turns host names into addresses that were checked.
//
// A name is looked up by the host, and never by a box. If any address of an answer is
// refused, the whole answer is: an attacker who controls a name mixes public and private
// addresses and hopes that one of the latter is dialled. An answer is kept for a short
// time, in which all connections use the same addresses.
package resolve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// A Lookuper looks names up. A [*net.Resolver] is one.
type Lookuper interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// ErrNotFound means that a name has no addresses.
var ErrNotFound = errors.New("no such host")

// ErrClosed means that the Resolver was closed.
var ErrClosed = errors.New("the resolver is closed")

// A Refused error means that an answer contains an address that must not be dialled. Its
// text omits the address, which is none of the box's business.
type Refused struct {
	Host   string
	Addr   netip.Addr
	Reason string
}

func (r *Refused) Error() string {
	return fmt.Sprintf("%s resolves to %s, which boxes never reach", r.Host, r.Reason)
}

// Options configure a Resolver.
type Options struct {
	// Lookup looks names up. Required.
	Lookup Lookuper
	// Refuses returns why an address must not be dialled, or an empty string. Required.
	Refuses func(netip.Addr) string
	// Pins are addresses that the operator chose for names. They are not looked up, and
	// Refuses is not asked.
	Pins []Pin
}

const (
	keep         = 30 * time.Second // of an answer
	keepFailure  = 5 * time.Second
	timeout      = 5 * time.Second
	maxAddresses = 32
	maxEntries   = 256
)

// A Resolver resolves names for one box. It may be used concurrently.
type Resolver struct {
	opts   Options
	ctx    context.Context // ends lookups in Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	closed  bool              // guarded by mu
	entries map[string]*entry // guarded by mu
}

// An entry is a lookup under way, or its result.
type entry struct {
	done  chan struct{} // closed when the fields below are set
	addrs []netip.Addr
	err   error
	until time.Time
}

// New returns a Resolver. The caller closes it.
func New(o Options) *Resolver {
	ctx, cancel := context.WithCancel(context.Background())
	return &Resolver{opts: o, ctx: ctx, cancel: cancel, entries: make(map[string]*entry)}
}

// Resolve returns the addresses to dial for a host in the canonical form of the policy: 1
// to 32 addresses, none of them refused, unless they are pinned. pinned reports that the
// operator chose the address. A literal address is checked like an answer.
//
// Errors are a *[Refused], [ErrNotFound], [ErrClosed], the end of ctx, or the failure of
// the lookup, which takes at most 5 s.
func (r *Resolver) Resolve(ctx context.Context, host string, port uint16) (addrs []netip.AddrPort, pinned bool, err error) {
	if p, ok := r.pin(host, port); ok {
		to := p.ToPort
		if to == 0 {
			to = port
		}
		return []netip.AddrPort{netip.AddrPortFrom(p.Addr, to)}, true, nil
	}
	ips, err := r.lookup(ctx, host)
	if err != nil {
		return nil, false, err
	}
	for _, ip := range ips {
		addrs = append(addrs, netip.AddrPortFrom(ip, port))
	}
	return addrs, false, nil
}

// Pinned reports whether the operator chose the address of a host at a port.
func (r *Resolver) Pinned(host string, port uint16) bool {
	_, ok := r.pin(host, port)
	return ok
}

// pin returns the pin for a host at a port: one for that port alone before one for all ports,
// and of two alike the first.
func (r *Resolver) pin(host string, port uint16) (found Pin, ok bool) {
	for _, p := range r.opts.Pins {
		switch {
		case p.Host != host:
		case p.Port == port:
			return p, true
		case p.Port == 0 && !ok:
			found, ok = p, true
		}
	}
	return found, ok
}

func (r *Resolver) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return r.check(host, []netip.Addr{ip})
	}
	e, err := r.entry(host)
	if err != nil {
		return nil, err
	}
	select {
	case <-e.done:
		return e.addrs, e.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// entry returns the entry of a name; it starts a lookup unless one is under way or its
// result is still valid.
func (r *Resolver) entry(host string) (*entry, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, ErrClosed
	}
	if e := r.entries[host]; e != nil && !e.expired() {
		return e, nil
	}
	if len(r.entries) >= maxEntries {
		r.evictLocked()
	}
	e := &entry{done: make(chan struct{})}
	r.entries[host] = e
	r.wg.Go(func() {
		defer close(e.done)
		ctx, cancel := context.WithTimeout(r.ctx, timeout)
		defer cancel()
		e.addrs, e.err = r.ask(ctx, host)
		e.until = time.Now().Add(keep)
		if e.err != nil {
			e.until = time.Now().Add(keepFailure)
		}
	})
	return e, nil
}

// expired reports whether the result must not be used any more.
func (e *entry) expired() bool {
	select {
	case <-e.done:
		return time.Now().After(e.until)
	default:
		return false
	}
}

// evictLocked makes room: it removes expired entries, or else any entry. Its waiters
// still get its result.
func (r *Resolver) evictLocked() {
	for host, e := range r.entries {
		if e.expired() {
			delete(r.entries, host)
		}
	}
	for host := range r.entries {
		if len(r.entries) < maxEntries {
			return
		}
		delete(r.entries, host)
	}
}

func (r *Resolver) ask(ctx context.Context, host string) ([]netip.Addr, error) {
	// The dot at the end keeps the resolver from trying the machine's search domains.
	ips, err := r.opts.Lookup.LookupNetIP(ctx, "ip", host+".")
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns) && dns.IsNotFound, err == nil && len(ips) == 0:
		return nil, fmt.Errorf("look up %s: %w", host, ErrNotFound)
	case context.Cause(ctx) != nil:
		return nil, fmt.Errorf("look up %s: no answer within %v", host, timeout)
	case errors.As(err, &dns):
		return nil, fmt.Errorf("look up %s: %s", host, dns.Err) // without the address of the server
	case err != nil:
		return nil, fmt.Errorf("look up %s: %w", host, err)
	}
	return r.check(host, ips)
}

func (r *Resolver) check(host string, ips []netip.Addr) ([]netip.Addr, error) {
	for i, ip := range ips {
		if reason := r.opts.Refuses(ip); reason != "" {
			return nil, &Refused{Host: host, Addr: ip, Reason: reason}
		}
		ips[i] = ip.WithZone("").Unmap()
	}
	return ips[:min(len(ips), maxAddresses)], nil
}

// Close ends all lookups and waits for them.
func (r *Resolver) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cancel()
	r.wg.Wait()
}
