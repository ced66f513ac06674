package policy

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
)

// A Set combines policies: the owner's, unless it is nil, and limits (see [Set.Narrow]).
// Every layer must allow a connection, and a deny rule of any layer refuses it. A Set
// without layers allows nothing: the network is off. A Set may be copied and used
// concurrently.
type Set struct {
	Owner *Policy

	limits []Layer
}

// A Layer is a policy with the name by which verdicts call it.
type Layer struct {
	Name   string
	Policy *Policy // not nil
}

// Narrow returns s with further layers. A Set that allows nothing is returned as it is: a
// limit cannot take the place of a policy.
func (s Set) Narrow(limits ...Layer) Set {
	if s.On() {
		s.limits = append(slices.Clip(s.limits), limits...)
	}
	return s
}

// A Why says why a connection was refused. It is one of a closed set, for metrics.
type Why string

const (
	Off    Why = "off"     // there is no policy, or one that allows nothing
	NoRule Why = "no_rule" // no rule matches
	Denied Why = "denied"  // a deny rule matches
	Name   Why = "name"    // the host is neither a name nor an address
	Method Why = "method"  // only rules with other methods or paths match
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
	// Why is empty if OK.
	Why Why
	// Kind is the widest kind of connection that all layers allow.
	Kind Kind
	// Limited means that only requests can be decided (see [Set.DecideRequest]), and no
	// connection whose content cannot be read.
	Limited bool
}

// layers returns the layers that are set, widest first.
func (s Set) layers() (names []string, policies []*Policy) {
	if s.Owner != nil {
		names, policies = []string{"owner"}, []*Policy{s.Owner}
	}
	for _, l := range s.limits {
		names, policies = append(names, l.Name), append(policies, l.Policy)
	}
	return names, policies
}

// On reports whether the set may allow anything: it has a layer, and each layer allows
// something.
func (s Set) On() bool {
	_, policies := s.layers()
	return len(policies) > 0 && !slices.ContainsFunc(policies, func(p *Policy) bool { return len(p.Allow) == 0 })
}

// off returns the name of the first layer that allows nothing; "" if there is none.
func (s Set) off() string {
	names, policies := s.layers()
	if i := slices.IndexFunc(policies, func(p *Policy) bool { return len(p.Allow) == 0 }); i >= 0 {
		return names[i]
	}
	return ""
}

// Version identifies the content of all layers, with 12 hexadecimal digits.
func (s Set) Version() string {
	names, policies := s.layers()
	if len(policies) == 1 {
		return policies[0].Version
	}
	h := sha256.New()
	for i, p := range policies {
		fmt.Fprintf(h, "%s %s\n", names[i], p.Version)
	}
	return sum(h)
}

// Decide decides on a connection. host may be in any form that [ParseHost] reads.
func (s Set) Decide(host string, port uint16) Verdict {
	return s.decide(host, port, func(Rule) bool { return true })
}

// DecideRequest decides on a request of HTTP. urlPath is escaped, as in the request line.
func (s Set) DecideRequest(host string, port uint16, method, urlPath string) Verdict {
	return s.decide(host, port, func(r Rule) bool { return !r.Limited() || r.allowsRequest(method, urlPath) })
}

func (s Set) decide(host string, port uint16, covers func(Rule) bool) Verdict {
	v := Verdict{Version: s.Version()}
	if !s.On() {
		v.Why, v.Layer = Off, s.off()
		return v
	}
	host, err := ParseHost(host)
	if err != nil {
		v.Why = Name
		return v
	}
	names, policies := s.layers()
	for i, p := range policies {
		for _, r := range p.Deny {
			if r.denies(host, port) {
				return Verdict{Version: v.Version, Layer: names[i], Rule: r.String(), Name: r.Name, Why: Denied}
			}
		}
	}
	v.Kind = Raw
	for i, p := range policies {
		kind, limited, found := Web, true, false
		why := NoRule
		for _, r := range p.Allow {
			if !r.matches(host, port) {
				continue
			}
			if !covers(r) {
				why = Method
				continue
			}
			if !found || r.Kind == Raw {
				v.Rule, v.Name = r.String(), r.Name
			}
			found = true
			if r.Kind == Raw {
				kind = Raw
			}
			limited = limited && r.Limited()
		}
		if !found {
			return Verdict{Version: v.Version, Layer: names[i], Why: why}
		}
		if kind == Web {
			v.Kind = Web
		}
		v.Limited = v.Limited || limited
	}
	v.OK = true
	return v
}

// DecideAddr decides on an address that an allowed name resolved to: networks and
// addresses that any layer denies are refused.
func (s Set) DecideAddr(addr netip.Addr, port uint16) Verdict {
	host := addr.WithZone("").Unmap().String()
	names, policies := s.layers()
	for i, p := range policies {
		for _, r := range p.Deny {
			if r.denies(host, port) {
				return Verdict{Version: s.Version(), Layer: names[i], Rule: r.String(), Name: r.Name, Why: Denied}
			}
		}
	}
	return Verdict{OK: true, Version: s.Version()}
}

// maxPorts bounds the ports of one name.
const maxPorts = 8

// Ports returns the ports at which the set allows connections to a host, at most 8, in
// ascending order. host is in canonical form.
func (s Set) Ports(host string) []uint16 {
	var ports []uint16
	_, policies := s.layers()
	for _, p := range policies {
		for _, r := range p.Allow {
			if !r.hasHost(host) {
				continue
			}
			for _, port := range r.Ports {
				if !slices.Contains(ports, port) && s.Decide(host, port).OK {
					ports = append(ports, port)
				}
			}
		}
		break // the first layer's ports contain those of all layers together
	}
	slices.Sort(ports)
	return ports[:min(len(ports), maxPorts)]
}

// Allowed returns short texts of what the set allows, for people: names of presets, and
// entries as for [ParseRule]. Where layers overlap, it has the narrower entry.
func (s Set) Allowed() []string {
	if !s.On() {
		return nil
	}
	var texts []string
	_, policies := s.layers()
	for _, p := range policies {
		for _, r := range p.Allow {
			whole, parts := true, []string(nil)
			for _, h := range r.Hosts {
				part := s.allowedPart(r, h)
				whole = whole && part.Kind == r.Kind && len(part.Ports) == len(r.Ports)
				if len(part.Ports) > 0 {
					parts = append(parts, part.String())
				}
			}
			if whole {
				parts = []string{r.String()}
			}
			for _, text := range parts {
				if !slices.Contains(texts, text) {
					texts = append(texts, text)
				}
			}
		}
	}
	// A host that a preset in the list contains is not repeated.
	return slices.DeleteFunc(texts, func(text string) bool {
		return slices.ContainsFunc(texts, func(other string) bool {
			preset, ok := Preset(other)
			return ok && other != text && slices.ContainsFunc(preset.Hosts, func(h Pattern) bool { return h.name == trimScheme(text) })
		})
	})
}

// allowedPart returns the part of a rule that all layers allow for one of its patterns.
func (s Set) allowedPart(r Rule, h Pattern) Rule {
	part := Rule{Name: Custom, Kind: r.Kind, Hosts: []Pattern{h}}
	for _, port := range r.Ports {
		if v := s.Decide(h.sample(), port); v.OK {
			part.Ports = append(part.Ports, port)
			part.Kind = min(part.Kind, v.Kind)
		}
	}
	return part
}

func trimScheme(text string) string {
	for _, scheme := range []string{"https://", "http://"} {
		if len(text) > len(scheme) && text[:len(scheme)] == scheme {
			return text[len(scheme):]
		}
	}
	return text
}
