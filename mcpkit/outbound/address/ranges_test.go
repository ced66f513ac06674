package address_test

import (
	"net/netip"
	"testing"

	"github.com/glovebox-dev/glovebox/mcpkit/outbound/address"
)

func TestRanges_Contains(t *testing.T) {
	list := address.MustParseRanges("10.0.0.0/8", "fc00::/7", "192.0.2.7/32")
	for addr, want := range map[string]bool{
		"10.255.0.1": true, "11.0.0.1": false, "192.0.2.7": true, "192.0.2.8": false,
		"fd00::1": true, "fd00::1%eth0": false, "2001:db8::1": false, "::ffff:10.0.0.1": false,
	} {
		if got := list.Contains(netip.MustParseAddr(addr)); got != want {
			t.Errorf("Contains(%s) = %t, want %t", addr, got, want)
		}
	}
	if address.Ranges(nil).Contains(netip.MustParseAddr("10.0.0.1")) {
		t.Error("an empty list contains an address")
	}
}
