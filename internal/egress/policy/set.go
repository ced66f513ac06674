package policy

import (
	"crypto/sha256"
	"fmt"
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
