// Package floor knows the addresses that boxes never reach, whatever a policy allows: this
// machine, private networks, the metadata services of clouds, and everything else that is
// not a service on the Internet.
package floor

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/mcpkit/outbound/address"
)

// A Reason says why an address is refused; empty: it is not.
type Reason string

const (
	Metadata  Reason = "the metadata service of a cloud"
	LinkLocal Reason = "a link-local address"
	Loopback  Reason = "an address of this machine"
	Neighbour Reason = "an address in a network of this machine"
	Private   Reason = "a private address"
	Reserved  Reason = "an address without public services"
)

var (
	unicast = netip.MustParsePrefix("2000::/3") // all public IPv6 addresses

	private = address.MustParseRanges(
		"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10",
		"100.64.0.0/10",                 // shared by the customers of a provider
		"198.18.0.0/15",                 // used inside of networks for tests
		"161.26.0.0/16", "166.8.0.0/14", // services of IBM Cloud
	)
	// The ranges for documentation are missing on purpose: networks without a connection
	// to the Internet use them for mirrors of public services.
	reserved = address.MustParseRanges("0.0.0.0/8", "192.0.0.0/24", "224.0.0.0/4", "240.0.0.0/4", "2001::/23", "2002::/16")
)

// ownTTL is how long the list of this machine's addresses is used: networks come and go
// with containers and VPNs, and reading the list takes about as long as one connection.
const ownTTL = time.Second

// A network with a shorter prefix is not that of neighbours: some tunnels have the whole
// Internet behind an interface.
const (
	minPrefix4 = 8
	minPrefix6 = 32
)

// A Floor refuses addresses. The zero Floor is ready to use; it may be used concurrently.
type Floor struct {
	// Interfaces returns the addresses of this machine, as [*net.IPNet] with the networks
	// that are reached without a router; nil means [net.InterfaceAddrs].
	Interfaces func() ([]net.Addr, error)

	mu   sync.Mutex
	own  []netip.Prefix // guarded by mu; addresses with the length of their networks
	read time.Time      // guarded by mu
}

// Refuses returns why a box must not connect to addr, or an empty Reason. All addresses
// of this machine and of the networks of its interfaces are refused, including public ones.
// An IPv6 address that stands for an IPv4 address is refused if either is.
func (f *Floor) Refuses(addr netip.Addr) Reason {
	if reason := Never(addr); reason != "" {
		return reason
	}
	return f.refusesOwn(addr.WithZone("").Unmap(), address.Inner(addr))
}

// Never returns why addr is refused on every machine, or an empty Reason.
func Never(addr netip.Addr) Reason {
	if reason := RefusesPinned(addr); reason != "" {
		return reason
	}
	outer, inner := addr.WithZone("").Unmap(), address.Inner(addr)
	for _, a := range []netip.Addr{inner, outer} {
		switch {
		case a.IsLoopback():
			return Loopback
		case private.Contains(a):
			return Private
		}
	}
	public := inner.Is4() || unicast.Contains(inner)
	if outer.Is6() && !address.IsNAT64(outer) {
		public = public && unicast.Contains(outer) && !reserved.Contains(outer)
	}
	if !public || reserved.Contains(inner) {
		return Reserved
	}
	return ""
}

// NeverAny is [Never] for a network: it returns why none of its addresses is reached, or an
// empty Reason if some can be.
func NeverAny(network netip.Prefix) Reason {
	first := Never(network.Addr())
	if first == "" || network.IsSingleIP() {
		return first
	}
	for _, p := range whole {
		if p.Bits() <= network.Bits() && p.Contains(network.Addr()) {
			return first
		}
	}
	return ""
}

// whole are the ranges all addresses of which are refused.
var whole = slices.Concat(private, reserved, address.MustParseRanges("127.0.0.0/8", "169.254.0.0/16", "fe80::/10", "ff00::/8"))

// refusesOwn refuses the addresses of this machine and its networks.
func (f *Floor) refusesOwn(outer, inner netip.Addr) (reason Reason) {
	for _, own := range f.addresses() {
		short := minPrefix6
		if own.Addr().Is4() {
			short = minPrefix4
		}
		switch {
		case own.Addr() == outer || own.Addr() == inner:
			return Loopback
		case own.Bits() >= short && (own.Contains(outer) || own.Contains(inner)):
			reason = Neighbour
		}
	}
	return reason
}

// RefusesPinned returns why not even an address that the operator chose is dialled, or an
// empty Reason.
func RefusesPinned(addr netip.Addr) Reason {
	outer, inner := addr.WithZone("").Unmap(), address.Inner(addr)
	switch {
	case !addr.IsValid():
		return Reserved
	case address.IsMetadata(addr):
		return Metadata
	case inner.IsLinkLocalUnicast() || outer.IsLinkLocalUnicast():
		return LinkLocal
	}
	for _, a := range []netip.Addr{inner, outer} {
		if a.IsMulticast() || a.IsUnspecified() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
			return Reserved
		}
	}
	return ""
}

// addresses returns the addresses of this machine, at most a second old. If they cannot be
// read, the last ones remain in use.
func (f *Floor) addresses() []netip.Prefix {
	f.mu.Lock()
	own, fresh := f.own, time.Since(f.read) < ownTTL
	f.mu.Unlock()
	if fresh {
		return own
	}
	read := f.Interfaces
	if read == nil {
		read = net.InterfaceAddrs
	}
	addrs, err := read()
	if err != nil {
		return own
	}
	own = nil
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				ip = ip.Unmap()
				ones, bits := n.Mask.Size()
				if bits != ip.BitLen() { // no mask of this family: only the address itself
					ones = ip.BitLen()
				}
				own = append(own, netip.PrefixFrom(ip, ones))
			}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.own, f.read = own, time.Now()
	return own
}
