package egress

import (
	"fmt"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/egress/policy"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// TestAudit_ZonesCarryNoData checks that the zone of a literal address stays out of the
// audit log.
func TestAudit_ZonesCarryNoData(t *testing.T) {
	w := newWorld(t, Options{}, []string{"good.example.org"})
	data := strings.Repeat("secret", 1000)
	say(t, w.httpDoor(), fmt.Sprintf("CONNECT [fe80::1%%25%s]:443 HTTP/1.1\r\nHost: x\r\n\r\n", data))
	zone := "fe80::1%" + data[:247]
	say(t, w.door(protocol.Dial{Door: protocol.DoorSOCKS}), "\x05\x01\x00\x05\x01\x00\x03\xff"+zone+"\x01\xbb")
	w.n.Lookup(t.Context(), "fe80::1%"+data)
	records := w.recorded()
	if len(records) != 3 {
		t.Fatalf("%d records, want 3", len(records))
	}
	for _, r := range records {
		if r.Host != "" || strings.Contains(r.Site, "secret") || len(r.Site) > maxSite {
			t.Errorf("record %+v", r)
		}
	}
}

// TestAudit_RefusedBeforePolicyCarryNoData: names of connections that are refused at a limit, before the
// policy decides on them, and of hosts that a limit of the box leaves out, stay out of the audit log.
func TestAudit_RefusedBeforePolicyCarryNoData(t *testing.T) {
	w := newWorld(t, Options{}, []string{"*.example.org"})
	for n := w.g.maxBox; n > 0; n-- {
		if _, text := w.n.admit(); text != "" {
			t.Fatal(text)
		}
	}
	say(t, w.tcpDoor("secret.data.example.org", 443), "x")
	narrow := w.g.Open(Box{Owner: "alice", ID: "narrow"}, layer(t, LayerBox, "a.example.org"))
	narrow.Lookup(t.Context(), "secret.data.example.org")
	say(t, w.doorOf(narrow, protocol.Dial{Door: protocol.DoorHTTP}), "CONNECT secret.data.example.org:443 HTTP/1.1\r\n\r\n")
	w.wantOutcomes(t, "example.org refused", "example.org refused", "example.org refused")
	reasons := map[policy.Reason]int{}
	for _, r := range w.recorded() {
		reasons[r.Reason]++
		if r.Host != "" || len(r.Hash) != 8 {
			t.Errorf("record %+v", r)
		}
	}
	if reasons[Limit] != 1 || reasons[Narrowed] != 2 {
		t.Errorf("the records have the reasons %v", reasons)
	}
}

func FuzzRedacted(f *testing.F) {
	for _, host := range []string{
		"secret.evil.co.uk", "203.0.113.7", "fe80::1", "fe80::1%eth0", "fe80::1%secret\n\x1b[2J", "::ffff:203.0.113.7",
		"[::1]", "localhost", "a..b", strings.Repeat("a.", 120) + "com", strings.Repeat("a", 63) + "." + strings.Repeat("b", 63), "",
	} {
		f.Add(host)
	}
	f.Fuzz(func(t *testing.T, host string) {
		site, hash := redacted(host)
		if len(site) > maxSite || strings.Trim(site, "abcdefghijklmnopqrstuvwxyz0123456789.-_:") != "" {
			t.Errorf("redacted(%q): site %q", host, site)
		}
		if len(hash) != 8 {
			t.Errorf("redacted(%q): hash %q", host, hash)
		}
	})
}
