package policy

import "slices"

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
