package policy

import (
	"fmt"
	"net/netip"
	"strings"
)

// A Pattern matches hosts: one name, all names below a name, or addresses. The zero
// Pattern matches nothing.
type Pattern struct {
	name   string       // canonical
	below  bool         // the names below name, and not name itself
	prefix netip.Prefix // valid: literal addresses
}

// ParsePattern parses "example.org", "*.example.org", which matches names with one or
// more labels in place of the star but not example.org itself, "203.0.113.7" or
// "203.0.113.0/24".
func ParsePattern(s string) (Pattern, error) {
	if prefix, err := netip.ParsePrefix(s); err == nil {
		if prefix.Addr().Is4In6() {
			return Pattern{}, fmt.Errorf("network %q: write it as an IPv4 network", s)
		}
		if prefix != prefix.Masked() {
			return Pattern{}, fmt.Errorf("network %q: write %q", s, prefix.Masked())
		}
		return Pattern{prefix: prefix}, nil
	}
	if addr, ok := parseLiteral(s); ok {
		return Pattern{prefix: netip.PrefixFrom(addr, addr.BitLen())}, nil
	}
	base, below := strings.CutPrefix(s, "*.")
	if strings.Contains(base, "*") {
		return Pattern{}, fmt.Errorf("host pattern %q: a star may only replace the labels at the front, as in *.example.org", s)
	}
	name, err := ParseName(base)
	if err != nil {
		return Pattern{}, fmt.Errorf("host pattern: %w", err)
	}
	return Pattern{name: name, below: below}, nil
}

// Matches reports whether the pattern matches a host in its canonical form (see
// [ParseHost]).
func (p Pattern) Matches(host string) bool {
	switch {
	case p.prefix.IsValid():
		addr, err := netip.ParseAddr(host)
		return err == nil && p.prefix.Contains(addr)
	case p.name == "":
		return false
	case p.below:
		return len(host) > len(p.name)+1 && strings.HasSuffix(host, p.name) && host[len(host)-len(p.name)-1] == '.'
	}
	return host == p.name
}

// Prefix returns the addresses that the pattern matches; false if it is a name.
func (p Pattern) Prefix() (netip.Prefix, bool) { return p.prefix, p.prefix.IsValid() }

// String returns the pattern as [ParsePattern] reads it.
func (p Pattern) String() string {
	switch {
	case p.prefix.IsValid() && p.prefix.IsSingleIP():
		return p.prefix.Addr().String()
	case p.prefix.IsValid():
		return p.prefix.String()
	case p.below:
		return "*." + p.name
	}
	return p.name
}

// sample returns a host that the pattern matches.
func (p Pattern) sample() string {
	switch {
	case p.prefix.IsValid():
		return p.prefix.Addr().String()
	case p.below:
		return "sample." + p.name
	}
	return p.name
}
