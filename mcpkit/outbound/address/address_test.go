package address

import (
	"net/netip"
	"testing"
)

func TestInner(t *testing.T) {
	for s, want := range map[string]string{
		"8.8.8.8": "8.8.8.8", "::ffff:10.0.0.1": "10.0.0.1", "::10.0.0.1": "10.0.0.1", "64:ff9b::10.0.0.1": "10.0.0.1", "64:ff9b:1::10.0.0.1": "10.0.0.1",
		"2002:a00:1::1": "10.0.0.1", "2001:0:1:1:0:0:f5ff:fffe": "10.0.0.1", "::ffff:0:10.0.0.1": "10.0.0.1", "2a00:1450::5efe:a00:1": "10.0.0.1",
		"::1": "::1", "::": "::", "2a00:1450::1": "2a00:1450::1", "fe80::1%eth0": "fe80::1",
	} {
		if got := Inner(netip.MustParseAddr(s)); got != netip.MustParseAddr(want) {
			t.Errorf("Inner(%s) = %s, want %s", s, got, want)
		}
	}
	if got := Inner(netip.Addr{}); got.IsValid() {
		t.Errorf("Inner of the zero address = %s", got)
	}
}

func TestIsMetadata(t *testing.T) {
	for s, want := range map[string]bool{
		"169.254.169.254": true, "::ffff:169.254.169.254": true, "64:ff9b::a9fe:a9fe": true, "fe80::a9fe:a9fe%eth0": true, "fd00:ec2::254": true,
		"169.254.169.253": false, "8.8.8.8": false, "fe80::1": false,
	} {
		if got := IsMetadata(netip.MustParseAddr(s)); got != want {
			t.Errorf("IsMetadata(%s) = %v", s, got)
		}
	}
}
