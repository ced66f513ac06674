package floor

import (
	"errors"
	"net"
	"net/netip"
	"testing"
)

func TestFloor_Refuses(t *testing.T) {
	own := []net.Addr{&net.IPNet{IP: net.ParseIP("192.0.2.77"), Mask: net.CIDRMask(24, 32)}, &net.IPNet{IP: net.ParseIP("2a00:1450::77"), Mask: net.CIDRMask(64, 128)}}
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
		"8.8.8.8": "", "203.0.113.80": "", "192.0.2.78": "", "2a00:1450::78": "", "2001:db8::1": "", "64:ff9b::8.8.8.8": "", "::ffff:8.8.8.8": "",
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
