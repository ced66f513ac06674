package box

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
)

// whyAddress is the Why of connections to addresses past the doors of the box. They fail in
// the guest, which has no route, so that the network of the box does not see them.
const whyAddress = "address"

// unreachableText matches what programs print of such a connection, some with its destination:
// Node.js "connect ENETUNREACH 203.0.113.7:443", Go "dial tcp 203.0.113.7:443: connect:
// network is unreachable".
var unreachableText = lazyregexp.New(`\bENETUNREACH(?: ([0-9a-f.:]{3,45}):(\d{1,5})\b)?|(?:\bdial (?:tcp|udp) \[?([0-9a-f.:]{3,45}?)\]?:(\d{1,5}): connect: n|N)etwork is unreachable\b`)

// unreachable returns the connection to an address that the outcome shows to have failed, and
// whether there is one. The guest wrote the outcome.
func (o hintInput) unreachable() (Refusal, bool) {
	text := o.stderr
	if o.failed {
		text += "\n" + o.stdout
	}
	found := unreachableText().FindStringSubmatch(text)
	if found == nil {
		return Refusal{}, false
	}
	r := Refusal{Why: whyAddress, Count: 1}
	addr, err := netip.ParseAddr(strings.Trim(found[1]+found[3], "[]"))
	port, portErr := strconv.ParseUint(found[2]+found[4], 10, 16)
	if err == nil && portErr == nil {
		r.Host, r.Port = addr.String(), int(port)
	}
	return r, true
}

// seen returns the refused connections, and the one of the outcome that the network cannot
// see.
func (n networkState) seen(o hintInput) []Refusal {
	if r, ok := o.unreachable(); ok && len(n.allowed) > 0 && len(n.refused) < maxRefusals {
		return append(n.refused[:len(n.refused):len(n.refused)], r)
	}
	return n.refused
}
