package outbound

import (
	"net/netip"
	"slices"
)

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// special are the ranges in IANA's registries that contain no public services, and the
// networks of cloud providers that only their machines reach. IPv6 addresses outside of
// unicast are no public services either.
var special = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24",
	"192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
	"224.0.0.0/4", "240.0.0.0/4",
	"161.26.0.0/16", "166.8.0.0/14", // services of IBM Cloud
	"2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20",
)

// unicast contains all IPv6 addresses of the public Internet.
var unicast = netip.MustParsePrefix("2000::/3")

// metadata are the addresses at which clouds give credentials and secrets of a machine
// to every program on it, and Azure's host, which is not in a special range.
var metadata = prefixes(
	"169.254.169.254/32",                                        // AWS, Azure, Google, Oracle, OpenStack and others
	"169.254.170.2/32", "169.254.170.23/32", "fd00:ec2::23/128", // AWS: containers
	"fd00:ec2::254/128", "fd20:ce::254/128", "fe80::a9fe:a9fe/128", // AWS, Google, OpenStack over IPv6
	"168.63.129.16/32",                    // Azure: the host
	"100.100.100.200/32",                  // Alibaba
	"192.0.0.192/32",                      // Oracle
	"169.254.0.23/32",                     // Tencent
	"169.254.42.42/32", "fd00:42::42/128", // Scaleway
)

func prefixes(texts ...string) []netip.Prefix {
	all := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		all[i] = netip.MustParsePrefix(text)
	}
	return all
}

func within(addr netip.Addr, ranges []netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// global reports whether an address is on the public Internet.
func global(addr netip.Addr) bool {
	return !within(addr, special) && (addr.Is4() || unicast.Contains(addr))
}

var (
	nat64      = netip.MustParsePrefix("64:ff9b::/96")
	localNAT64 = netip.MustParsePrefix("64:ff9b:1::/48")
	sixToFour  = netip.MustParsePrefix("2002::/16")
	teredo     = netip.MustParsePrefix("2001::/32")
	v4Compat   = netip.MustParsePrefix("::/96")
	siit       = netip.MustParsePrefix("::ffff:0:0:0/96") // translated by a router (RFC 2765)
)

// inner returns the IPv4 address that an IPv6 address stands for, and otherwise the
// address itself, without a zone. It cannot know the prefixes with which a network
// translates addresses of its own (RFC 6052).
func inner(addr netip.Addr) netip.Addr {
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
