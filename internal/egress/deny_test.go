package egress

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/egress/egresstest"
	"github.com/glovebox-dev/glovebox/internal/egress/policy"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

func (w *world) deny(entries ...string) {
	w.t.Helper()
	p, err := policy.Parse([]string{"*.example.org"}, entries)
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.set = policy.Set{Owner: p}
}

// TestGate_DeniedNetwork checks that no name leads into a network that the policy denies.
func TestGate_DeniedNetwork(t *testing.T) {
	dns := egresstest.NewDNS(t)
	dns.Set("a.example.org", "198.51.100.80")
	dns.Set("b.example.org", "::ffff:198.51.100.80")
	w := newWorld(t, Options{Resolver: dns.Resolver()}, nil)
	w.deny("198.51.100.0/24")
	for _, name := range []string{"a.example.org", "b.example.org", "198.51.100.80"} {
		got := say(t, w.httpDoor(), "GET http://"+name+"/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		if !strings.Contains(got, " 403 ") || !strings.Contains(got, "denies 198.51.100.0/24") {
			t.Errorf("%s: got %q", name, got)
		}
	}
	w.deny("198.51.100.80", "https://a.example.org")
	if res := w.n.Lookup(t.Context(), "a.example.org"); res.Status != protocol.LookupRefused {
		t.Errorf("lookup: %+v", res)
	}
}

// TestLookup_DeniedNetwork: a lookup of a name that leads only into a denied network is refused, and
// the refusal is recorded.
func TestLookup_DeniedNetwork(t *testing.T) {
	dns := egresstest.NewDNS(t)
	dns.Set("a.example.org", "198.51.100.80")
	w := newWorld(t, Options{Resolver: dns.Resolver()}, nil)
	w.deny("198.51.100.0/24", "https://a.example.org") // one port is left
	if res := w.n.Lookup(t.Context(), "a.example.org"); res.Status != protocol.LookupRefused {
		t.Errorf("got %+v", res)
	}
	if got := w.recorded(); len(got) != 1 || got[0].Site != "example.org" || got[0].Outcome != Refused {
		t.Errorf("records: %+v", got)
	}
}

// TestGate_DeniedNetworkLater checks that a network that is denied later ends connections
// into it, except those to pinned addresses.
func TestGate_DeniedNetworkLater(t *testing.T) {
	for _, tt := range []struct {
		host string
		want Outcome
	}{{"a.example.org", PolicyChanged}, {"pinned.example.org", ""}} {
		w := newWorld(t, Options{}, []string{"*.example.org"}, "pinned.example.org=127.0.0.1:7")
		near, far := net.Pipe()
		t.Cleanup(func() { near.Close() })
		f, r := w.n.newFlow(t.Context(), far, target{protocol.DoorTCP, tt.host, 80}, policy.Verdict{}, netip.MustParseAddr("198.51.100.80"), time.Now())
		if r != nil {
			t.Fatal(r)
		}
		w.deny("198.51.100.0/24")
		w.g.Reevaluate()
		f.mu.Lock()
		got := f.outcome
		f.mu.Unlock()
		if got != tt.want {
			t.Errorf("%s: outcome %q, want %q", tt.host, got, tt.want)
		}
		f.Close()
	}
}
