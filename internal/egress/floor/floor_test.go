package floor

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"
)

func TestFloor_Refuses(t *testing.T) {
	own := []net.Addr{
		&net.IPNet{IP: net.ParseIP("192.0.2.77"), Mask: net.CIDRMask(24, 32)}, &net.IPNet{IP: net.ParseIP("2a00:1450::77"), Mask: net.CIDRMask(64, 128)},
		&net.IPNet{IP: net.ParseIP("9.9.9.9"), Mask: net.CIDRMask(32, 32)}, &net.IPNet{IP: net.ParseIP("9.9.9.10"), Mask: net.CIDRMask(0, 32)}, // a host of a provider, and a tunnel
	}
	f := &Floor{Interfaces: func() ([]net.Addr, error) { return own, nil }}
	for s, want := range map[string]Reason{
		"127.0.0.1": Loopback, "127.80.0.1": Loopback, "::1": Loopback, "192.0.2.77": Loopback, "2a00:1450::77": Loopback, "::ffff:192.0.2.77": Loopback,
		"64:ff9b::192.0.2.77": Loopback,
		"10.0.0.1":            Private, "172.31.255.255": Private, "192.168.1.1": Private, "100.64.0.1": Private, "fd12::1": Private, "fec0::1": Private,
		"198.18.0.1": Private, "::ffff:10.0.0.1": Private, "::10.0.0.1": Private, "64:ff9b::10.0.0.1": Private, "2002:a00:1::1": Private,
		"2a00:1450::5efe:a00:1": Private, "::ffff:0:10.0.0.1": Private, "2001:0:1:1:0:0:f5ff:fffe": Private,
		"169.254.1.1": LinkLocal, "fe80::1": LinkLocal, "fe80::1%eth0": LinkLocal, "::ffff:169.254.1.1": LinkLocal,
		"169.254.169.254": Metadata, "fd00:ec2::254": Metadata, "168.63.129.16": Metadata, "100.100.100.200": Metadata, "64:ff9b::a9fe:a9fe": Metadata,
		"0.0.0.0": Reserved, "::": Reserved, "0.1.2.3": Reserved, "224.0.0.1": Reserved, "255.255.255.255": Reserved, "240.0.0.1": Reserved, "ff02::1": Reserved,
		"2002:808:808::1": Reserved, "64:ff9b:1::8.8.8.8": Reserved, "4000::1": Reserved, "100::1": Reserved, "192.0.0.8": Reserved,
		"192.0.2.78": Neighbour, "192.0.2.255": Neighbour, "2a00:1450::78": Neighbour, "::ffff:192.0.2.78": Neighbour, "64:ff9b::192.0.2.78": Neighbour,
		"9.9.9.9": Loopback, "9.9.9.10": Loopback,
		"8.8.8.8": "", "203.0.113.80": "", "192.0.3.1": "", "9.9.9.8": "", "2a00:1450:0:1::78": "", "2001:db8::1": "", "64:ff9b::8.8.8.8": "", "::ffff:8.8.8.8": "",
	} {
		if got := f.Refuses(netip.MustParseAddr(s)); got != want {
			t.Errorf("Refuses(%s) = %q, want %q", s, got, want)
		}
	}
	if f.Refuses(netip.Addr{}) == "" {
		t.Error("the zero address is not refused")
	}
}

func TestFloor_PinsAreNotUnbounded(t *testing.T) {
	for s, want := range map[string]Reason{
		"127.0.0.1": "", "10.0.0.1": "", "::1": "", "8.8.8.8": "", "100.64.0.1": "",
		"169.254.169.254": Metadata, "::ffff:169.254.169.254": Metadata, "169.254.1.1": LinkLocal, "fe80::1": LinkLocal, "224.0.0.1": Reserved, "0.0.0.0": Reserved, "::": Reserved,
	} {
		if got := RefusesPinned(netip.MustParseAddr(s)); got != want {
			t.Errorf("RefusesPinned(%s) = %q, want %q", s, got, want)
		}
	}
}

// TestFloor_KeepsItsAddresses: if the addresses of the machine cannot be read any more,
// the last ones remain refused.
func TestFloor_KeepsItsAddresses(t *testing.T) {
	var fail error
	f := &Floor{Interfaces: func() ([]net.Addr, error) {
		return []net.Addr{&net.IPNet{IP: net.ParseIP("192.0.2.77"), Mask: net.CIDRMask(24, 32)}}, fail
	}}
	own := netip.MustParseAddr("192.0.2.77")
	if got := f.Refuses(own); got != Loopback {
		t.Fatalf("got %q", got)
	}
	fail = errors.New("no descriptors")
	f.read = f.read.Add(-2 * ownTTL)
	if got := f.Refuses(own); got != Loopback {
		t.Errorf("after a failure: got %q, want %q", got, Loopback)
	}
}

// TestFloor_FollowsChanges: a network that the machine joins is refused at once.
func TestFloor_FollowsChanges(t *testing.T) {
	var own []net.Addr
	reads := 0
	f := &Floor{Interfaces: func() ([]net.Addr, error) { reads++; return own, nil }}
	neighbour := netip.MustParseAddr("192.0.2.78")
	for range 100 {
		if got := f.Refuses(neighbour); got != "" {
			t.Fatalf("before: got %q", got)
		}
	}
	if reads > 50 {
		t.Errorf("the addresses were read %d times for 100 decisions", reads)
	}
	own = []net.Addr{&net.IPNet{IP: net.ParseIP("192.0.2.77"), Mask: net.CIDRMask(24, 32)}}
	f.read = f.read.Add(-time.Second)
	if got := f.Refuses(neighbour); got != Neighbour {
		t.Errorf("a second later: got %q, want %q", got, Neighbour)
	}
}

func TestNeverAny(t *testing.T) {
	for s, want := range map[string]Reason{
		"10.0.0.1/32": Private, "10.1.0.0/16": Private, "127.0.0.1/32": Loopback, "127.0.0.0/8": Loopback, "169.254.169.254/32": Metadata, "169.254.0.0/16": LinkLocal,
		"168.63.129.16/32": Metadata, "fd00::/8": Private, "fe80::/64": LinkLocal, "ff02::/16": Reserved, "240.0.0.0/8": Reserved,
		"0.0.0.0/0": "", "168.63.129.0/24": "", "10.0.0.0/7": "", "::/0": "", "203.0.113.0/24": "", "8.8.8.8/32": "",
	} {
		if got := NeverAny(netip.MustParsePrefix(s)); got != want {
			t.Errorf("NeverAny(%s) = %q, want %q", s, got, want)
		}
	}
}
