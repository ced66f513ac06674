package fleet

import (
	"net/netip"
	"testing"
)

func TestTag_DiffersByBoundaries(t *testing.T) {
	if a, b := Tag("ab", "c"), Tag("a", "bc"); a == b || !ValidTag(a) || !ValidTag(b) {
		t.Errorf("the tags are %q and %q", a, b)
	}
}

func TestServerOf_OnlyNamesOfServers(t *testing.T) {
	for id, want := range map[string]string{
		ID("0123456789abcdef", "ABC"): "0123456789abcdef",
		"0123456789abcdef-":           "0123456789abcdef",
		"0123456789abcdef":            "",
		"0123456789ABCDEF-x":          "",
		"../0123456789abcdef-x":       "",
		"10.0.0.1:80-x":               "",
		"0123456789abcdef0-x":         "",
		"":                            "",
	} {
		if got := ServerOf(id); got != want {
			t.Errorf("%q is of server %q, want %q", id, got, want)
		}
	}
}

func TestParseAddress_OnlyAddressesOfServers(t *testing.T) {
	for text, ok := range map[string]bool{
		"10.1.2.3:8775": true, "[fd00::1]:8775": true, "127.0.0.1:1": true, "203.0.113.7:443": true,
		"": false, "10.1.2.3": false, "10.1.2.3:0": false, "10.1.2.3:08": false, "localhost:80": false, "example.org:80": false,
		"0.0.0.0:80": false, "[::]:80": false, "224.0.0.1:80": false, "169.254.169.254:80": false, "[fe80::1]:80": false, "[fe80::1%eth0]:80": false,
		"[::ffff:10.1.2.3]:80": false, "[fd00:ec2::254]:80": false, "255.255.255.255:80": false, "10.1.2.3:80/path": false, "user@10.1.2.3:80": false,
	} {
		if a, err := ParseAddress(text); (err == nil) != ok || (err == nil) != a.IsValid() {
			t.Errorf("%q parses as %v, %v", text, a, err)
		}
	}
}

func TestReachable_LoopbackOnlyFromLoopback(t *testing.T) {
	near, far, other := netip.MustParseAddrPort("127.0.0.1:1"), netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("10.0.0.2:1")
	for _, c := range []struct {
		own, other netip.AddrPort
		want       bool
	}{
		{far, other, true}, {far, near, false}, {near, far, false}, {near, netip.MustParseAddrPort("127.0.0.1:2"), true},
		{far, far, false}, {far, netip.AddrPort{}, false}, {netip.AddrPort{}, far, false},
	} {
		if got := Reachable(c.own, c.other); got != c.want {
			t.Errorf("from %v to %v: %t, want %t", c.own, c.other, got, c.want)
		}
	}
}
