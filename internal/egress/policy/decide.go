package policy

import (
	"net/netip"
	"slices"

	"github.com/glovebox-dev/glovebox/mcpkit/outbound/address"
)

// A Reason says why a connection was refused. It is one of a closed set, for metrics.
type Reason string

const (
	Off    Reason = "off"     // there is no policy, or one that allows nothing
	NoRule Reason = "no_rule" // no rule matches
	Denied Reason = "denied"  // a deny rule matches
	Name   Reason = "name"    // the host is neither a name nor an address
	Method Reason = "method"  // only rules with other methods or paths match
)

// A Verdict is a decision.
type Verdict struct {
	OK bool
	// Rule is the text of the rule that decided: the one that allowed the connection in
	// the last layer, or that denied it. Empty if no rule matched.
	Rule string
	// Name is the Name of that rule, one of a closed set.
	Name string
	// Layer is the layer that refused: "owner", or the name of a limit. If the network is
	// off, it is the first layer that allows nothing, and empty if there is none.
	Layer string
	// Version is that of the Set.
	Version string
	// Reason is empty if OK.
	Reason Reason
	// Kind is the widest kind of connection that all layers allow.
	Kind Kind
	// RequestsOnly means that only requests can be decided (see [Set.DecideRequest]), and no
	// connection whose content cannot be read.
	RequestsOnly bool
}

// Decide decides on a connection. host may be in any form that [ParseHost] reads.
func (s Set) Decide(host string, port uint16) Verdict {
	return s.decide(host, port, func(Rule) bool { return true })
}

// DecideRequest decides on a request of HTTP. urlPath is escaped, as in the request line.
func (s Set) DecideRequest(host string, port uint16, method, urlPath string) Verdict {
	return s.decide(host, port, func(r Rule) bool { return !r.RequestsOnly() || r.allowsRequest(method, urlPath) })
}

func (s Set) decide(host string, port uint16, covers func(Rule) bool) Verdict {
	v := Verdict{Version: s.Version()}
	if !s.On() {
		v.Reason, v.Layer = Off, s.off()
		return v
	}
	host, err := ParseHost(host)
	if err != nil {
		v.Reason = Name
		return v
	}
	names, policies := s.layers()
	for i, p := range policies {
		for _, r := range p.Deny {
			if r.denies(host, port) {
				return Verdict{Version: v.Version, Layer: names[i], Rule: r.String(), Name: r.Name, Reason: Denied}
			}
		}
	}
	v.Kind = Raw
	for i, p := range policies {
		kind, requestsOnly, found := Web, true, false
		reason := NoRule
		for _, r := range p.Allow {
			if !r.matches(host, port) {
				continue
			}
			if !covers(r) {
				reason = Method
				continue
			}
			if !found || r.Kind == Raw {
				v.Rule, v.Name = r.String(), r.Name
			}
			found = true
			if r.Kind == Raw {
				kind = Raw
			}
			requestsOnly = requestsOnly && r.RequestsOnly()
		}
		if !found {
			return Verdict{Version: v.Version, Layer: names[i], Reason: reason}
		}
		if kind == Web {
			v.Kind = Web
		}
		v.RequestsOnly = v.RequestsOnly || requestsOnly
	}
	v.OK = true
	return v
}

// DecideAddr decides on an address that an allowed name resolved to: networks and
// addresses that any layer denies are refused, also where an IPv6 address stands for a denied IPv4
// address, such as that of NAT64.
func (s Set) DecideAddr(addr netip.Addr, port uint16) Verdict {
	hosts := []string{addr.WithZone("").Unmap().String()}
	if inner := address.Inner(addr).String(); inner != hosts[0] {
		hosts = append(hosts, inner)
	}
	names, policies := s.layers()
	for i, p := range policies {
		for _, r := range p.Deny {
			if slices.ContainsFunc(hosts, func(host string) bool { return r.denies(host, port) }) {
				return Verdict{Version: s.Version(), Layer: names[i], Rule: r.String(), Name: r.Name, Reason: Denied}
			}
		}
	}
	return Verdict{OK: true, Version: s.Version()}
}
