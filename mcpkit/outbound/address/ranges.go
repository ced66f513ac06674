package address

import (
	"net/netip"
	"slices"
)

// Ranges is a list of ranges of addresses.
type Ranges []netip.Prefix

// MustParseRanges returns the ranges of texts such as "10.0.0.0/8". It panics if one is none.
func MustParseRanges(texts ...string) Ranges {
	all := make(Ranges, len(texts))
	for i, text := range texts {
		all[i] = netip.MustParsePrefix(text)
	}
	return all
}

// Contains reports whether an address is in one of the ranges. An address with a zone is in
// none, and an IPv4 address inside of an IPv6 one is in no range of IPv4.
func (r Ranges) Contains(addr netip.Addr) bool {
	return slices.ContainsFunc(r, func(p netip.Prefix) bool { return p.Contains(addr) })
}
