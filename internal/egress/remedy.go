package egress

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/egress/floor"
	"github.com/glovebox-dev/glovebox/internal/egress/policy"
)

// noRule says that no rule allows a destination, and what is allowed instead: other ports of
// the same host, or other hosts.
func (n *Network) noRule(host string, port uint16) string {
	if ports := n.portsOf(host); port != 0 && len(ports) > 0 {
		if port == 80 && slices.Contains(ports, "443") {
			return fmt.Sprintf("no rule allows http for this host, only https (allowed: %s): use https://%s", strings.Join(ports, ", "), shown(host, 0))
		}
		return fmt.Sprintf("no rule allows port %d of this host (allowed: %s)", port, strings.Join(ports, ", "))
	}
	return fmt.Sprintf("no rule allows it (allowed: %s)", n.allowed())
}

func (n *Network) portsOf(host string) (ports []string) {
	canonical, err := policy.ParseHost(host)
	if err != nil {
		return nil
	}
	for _, p := range n.policies().Ports(canonical) {
		ports = append(ports, fmt.Sprint(p))
	}
	return ports
}

// remedy says how the operator can allow a destination that no rule of v.Layer allows.
func (n *Network) remedy(host string, port uint16, v policy.Verdict) string {
	if v.Layer == LayerTemplate || v.Layer == LayerBox {
		return fmt.Sprintf("Do not retry or work around it; the network of this %s is narrower than what the operator allows.", v.Layer)
	}
	avoid := "Do not retry or work around it; "
	if port == 80 && slices.Contains(n.portsOf(host), "443") {
		avoid = "For http, "
	}
	text := avoid + "the operator can add it to " + n.Where() + ": " + entryFor(host, port)
	if port != 0 && port != 80 && port != 443 {
		text += fmt.Sprintf(" (for other protocols than TLS and HTTP: tcp://%s)", shown(host, port))
	}
	return text + n.alsoNarrowed(host, port)
}

// alsoNarrowed says which limits of the box refuse a destination as well as the policy, so
// that a change of the policy alone does not suffice.
func (n *Network) alsoNarrowed(host string, port uint16) (text string) {
	for _, l := range n.limits {
		switch alone := (policy.Set{Owner: l.Policy}); {
		case alone.Decide(host, port).OK:
		case l.Name == LayerTemplate:
			text += "; the template of this box refuses it too: add it to network of the template"
		default:
			text += "; the argument network of this box refuses it too: make a new box with it"
		}
	}
	return text
}

// Where says where the operator allows hosts to the box.
func (n *Network) Where() string {
	if n.gate.opts.Where == nil {
		return setting
	}
	return n.gate.opts.Where(n.box.Owner)
}

// setting is the one that allows hosts to all owners.
const setting = "--network"

// allowOff says how the operator can allow a destination to a box without a network.
func (n *Network) allowOff(host string, port uint16) string {
	if where := n.Where(); where != setting {
		return fmt.Sprintf("the operator can add it to %s: %s", where, entryFor(host, port))
	}
	return fmt.Sprintf("the operator can allow it with: %s %s", setting, entryFor(host, port))
}

// entryFor returns the entry of --network that allows a destination.
func entryFor(host string, port uint16) string {
	return cmp.Or(policy.EntryFor(host, port), shown(host, 0))
}

// neverReached returns why no rule can allow a host, if it is an address. It reveals nothing
// about this machine, such as its addresses.
func neverReached(host string) floor.Reason {
	canonical, err := policy.ParseHost(host)
	if err != nil {
		return ""
	}
	addr, err := netip.ParseAddr(canonical)
	if err != nil {
		return ""
	}
	return floor.Never(addr)
}

// pinRemedy says what to do about a host that is, or leads to, an address that boxes never
// reach. Most clients show the first 200 bytes of a refusal only.
func pinRemedy(host string) string {
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	switch {
	case err != nil:
		return fmt.Sprintf("Do not retry; for a server of its own, the operator can pin the address: --egress-pin %s=ADDRESS", shown(host, 0))
	case floor.RefusesPinned(addr) != "":
		return noRemedy
	}
	return fmt.Sprintf("Do not retry; for a server of its own, the operator can pin a name to it: --egress-pin NAME=%s", shown(addr.String(), 0))
}

const noRemedy = "Do not retry or work around it; no setting allows it."
