package resolve

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/egress/floor"
	"github.com/glovebox-dev/glovebox/internal/egress/policy"
)

// A Pin is the operator's choice of an address for a name. It leads to addresses that are
// refused otherwise, such as a server of the company's own network.
type Pin struct {
	// Host is a name in canonical form.
	Host string
	// Port is the only port that the pin is for; 0: all.
	Port uint16
	// Addr is the address to dial.
	Addr netip.Addr
	// ToPort is the port to dial; 0: the one that the program asked for.
	ToPort uint16
}

// ParsePin parses "NAME[:PORT]=ADDRESS[:PORT]". Link-local and multicast addresses and
// the metadata services of clouds cannot be pinned.
func ParsePin(s string) (Pin, error) {
	name, target, ok := strings.Cut(s, "=")
	if !ok {
		return Pin{}, fmt.Errorf("pin %q: want NAME[:PORT]=ADDRESS[:PORT]", s)
	}
	var p Pin
	var err error
	if host, port, ok := strings.Cut(name, ":"); ok {
		if p.Port, err = policy.ParsePort(port); err != nil {
			return Pin{}, fmt.Errorf("pin %q: %w", s, err)
		}
		name = host
	}
	if p.Host, err = policy.ParseName(name); err != nil {
		return Pin{}, fmt.Errorf("pin %q: %w", s, err)
	}
	if p.Addr, err = netip.ParseAddr(strings.Trim(target, "[]")); err != nil {
		to, err := netip.ParseAddrPort(target)
		if err != nil || to.Port() == 0 {
			return Pin{}, fmt.Errorf("pin %q: %q is not an address, with or without a port", s, target)
		}
		p.Addr, p.ToPort = to.Addr(), to.Port()
	}
	if reason := floor.RefusesPinned(p.Addr); reason != "" {
		return Pin{}, fmt.Errorf("pin %q: %s is %s, which boxes never reach", s, p.Addr, reason)
	}
	return p, nil
}
