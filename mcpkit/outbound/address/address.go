// Package address classifies IP addresses: the metadata services of clouds, and IPv6
// addresses that stand for an IPv4 address.
package address

import (
	"net/netip"
)

// metadata are the addresses at which clouds give credentials and secrets of a machine
// to every program on it, and Azure's host, which is not in a special range.
var metadata = MustParseRanges(
	"169.254.169.254/32",                                        // AWS, Azure, Google, Oracle, OpenStack and others
	"169.254.170.2/32", "169.254.170.23/32", "fd00:ec2::23/128", // AWS: containers
	"fd00:ec2::254/128", "fd20:ce::254/128", "fe80::a9fe:a9fe/128", // AWS, Google, OpenStack over IPv6
	"168.63.129.16/32",                    // Azure: the host
	"100.100.100.200/32",                  // Alibaba
	"192.0.0.192/32",                      // Oracle
	"169.254.0.23/32",                     // Tencent
	"169.254.42.42/32", "fd00:42::42/128", // Scaleway
)

// IsMetadata reports whether a cloud gives credentials and secrets of a machine to every
// program on it at this address, or whether the address stands for one that does.
func IsMetadata(addr netip.Addr) bool {
	outer, inner := addr.WithZone("").Unmap(), Inner(addr)
	return metadata.Contains(outer) || metadata.Contains(inner)
}

// IsNAT64 reports whether a router of the public NAT64 prefix translates the address to
// the IPv4 address that [Inner] returns.
func IsNAT64(addr netip.Addr) bool { return nat64.Contains(addr) }

var (
	nat64      = netip.MustParsePrefix("64:ff9b::/96")
	localNAT64 = netip.MustParsePrefix("64:ff9b:1::/48")
	sixToFour  = netip.MustParsePrefix("2002::/16")
	teredo     = netip.MustParsePrefix("2001::/32")
	v4Compat   = netip.MustParsePrefix("::/96")
	siit       = netip.MustParsePrefix("::ffff:0:0:0/96") // translated by a router (RFC 2765)
)

// Inner returns the IPv4 address that an IPv6 address stands for, and otherwise the
// address itself, without a zone. It cannot know the prefixes with which a network
// translates addresses of its own (RFC 6052).
func Inner(addr netip.Addr) netip.Addr {
	addr = addr.WithZone("").Unmap()
	if addr.Is4() {
		return addr
	}
	b := addr.As16()
	switch {
	case nat64.Contains(addr), localNAT64.Contains(addr), siit.Contains(addr):
		return netip.AddrFrom4([4]byte(b[12:]))
	case v4Compat.Contains(addr) && !addr.IsLoopback() && !addr.IsUnspecified():
		return netip.AddrFrom4([4]byte(b[12:]))
	case sixToFour.Contains(addr):
		return netip.AddrFrom4([4]byte(b[2:6]))
	case teredo.Contains(addr): // the client's address, inverted
		return netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]})
	case b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe: // ISATAP
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return addr
}
