package outbound

import (
	"net/netip"

	"github.com/glovebox-dev/glovebox/mcpkit/outbound/address"
)

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// special are the ranges in IANA's registries that contain no public services, and the
// networks of cloud providers that only their machines reach. IPv6 addresses outside of
// unicast are no public services either.
var special = address.MustParseRanges(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24",
	"192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
	"224.0.0.0/4", "240.0.0.0/4",
	"161.26.0.0/16", "166.8.0.0/14", // services of IBM Cloud
	"2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20",
)

// unicast contains all IPv6 addresses of the public Internet.
var unicast = netip.MustParsePrefix("2000::/3")

// global reports whether an address is on the public Internet.
func global(addr netip.Addr) bool {
	return !special.Contains(addr) && (addr.Is4() || unicast.Contains(addr))
}
