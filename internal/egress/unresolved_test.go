package egress

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/loglimit"
)

// An allowed host whose name has no address, or that refuses connections, is not told as a
// refusal by a rule: through each door, in the notes to the model, and in the records.
func TestGate_UnresolvedIsNotRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // so that connections to its address are refused
	w := newWorld(t, Options{Resolver: noNames{}}, []string{"gone.example.org", "closed.example.org"}, "closed.example.org="+l.Addr().String())
	w.n.records = newRecordLimits(2 * refusalBurst) // each event below has a record
	proxy, socks := w.httpDoor(), w.door(protocol.Dial{Door: protocol.DoorSOCKS})
	const unresolved = "Glovebox could not resolve gone.example.org: no such host. The policy allows it; check the name."
	for _, tt := range []struct{ name, door, say, want string }{
		{"http", proxy, "GET http://gone.example.org/ HTTP/1.1\r\nHost: gone.example.org\r\n\r\n", "HTTP/1.1 502 Bad Gateway\r\n"},
		{"http, the text", proxy, "GET http://gone.example.org/ HTTP/1.1\r\nHost: gone.example.org\r\n\r\n", unresolved},
		{"CONNECT", proxy, "CONNECT gone.example.org:443 HTTP/1.1\r\n\r\n", "HTTP/1.1 502 " + unresolved},
		{"plain HTTP", w.tcpDoor("gone.example.org", 80), "GET / HTTP/1.1\r\nHost: gone.example.org\r\nConnection: close\r\n\r\n", unresolved},
		{"http, refused by a rule", proxy, "CONNECT evil.example.org:443 HTTP/1.1\r\n\r\n", "HTTP/1.1 403 Glovebox refused evil.example.org:443"},
		{"http, closed", proxy, "CONNECT closed.example.org:443 HTTP/1.1\r\n\r\n", "HTTP/1.1 502 Glovebox could not connect to closed.example.org:443: connection refused."},
		{"SOCKS", socks, socksRequest("gone.example.org", 443), "\x05\x00\x05\x04"},
		{"SOCKS, refused by a rule", socks, socksRequest("evil.example.org", 443), "\x05\x00\x05\x02"},
		{"SOCKS, closed", socks, socksRequest("closed.example.org", 443), "\x05\x00\x05\x05"},
	} {
		if got := say(t, tt.door, tt.say); !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
	if res := w.n.Lookup(t.Context(), "gone.example.org"); res.Status != protocol.LookupNXDomain {
		t.Errorf("lookup: got %+v", res)
	}
	notes := map[string]string{}
	for _, r := range w.n.Take() {
		notes[fmt.Sprintf("%s:%d %s", r.Host, r.Port, r.Reason)] = r.Text
	}
	for key, text := range map[string]string{
		"closed.example.org:443 unreachable": "Glovebox could not connect to closed.example.org:443: connection refused. The policy allows it; the host is down, or nothing listens at this port.",
		"gone.example.org:0 unresolved":      unresolved, "gone.example.org:80 unresolved": unresolved, "gone.example.org:443 unresolved": unresolved,
	} {
		if notes[key] != text {
			t.Errorf("note %s: got %q, want %q", key, notes[key], text)
		}
	}
	if len(notes) != 5 {
		t.Errorf("got the notes %q, want those of gone.example.org and one each of closed.example.org and evil.example.org", notes)
	}
	doors := map[string]int{}
	for _, r := range w.recorded() {
		if r.Host == "gone.example.org" && r.Outcome == Failed && r.Reason == Unresolved && r.Rule == "gone.example.org" {
			doors[r.Door]++
		} else if r.Reason == Unresolved {
			t.Errorf("record %+v", r)
		}
	}
	if doors[protocol.DoorHTTP] != 3 || doors[protocol.DoorTCP] != 1 || doors[protocol.DoorSOCKS] != 1 || doors[doorDNS] != 1 {
		t.Errorf("records of the unresolved name by door: %v", doors)
	}
	if s := w.g.Stats(); s.Connections[Refused] != 2 || s.Connections[Failed] != 7 {
		t.Errorf("got %v, want 2 refused and 7 failed connections", s.Connections)
	}
}

// Lookups in vain, which a program can cause by the thousand, have few records.
func TestLookup_UnresolvedRecordsAreBounded(t *testing.T) {
	w := newWorld(t, Options{Resolver: noNames{}}, []string{"*.example.org"})
	for i := range 12 {
		w.n.Lookup(t.Context(), fmt.Sprintf("n%d.example.org", i))
	}
	if got := len(w.recorded()); got == 0 || got > refusalBurst+1 {
		t.Errorf("12 lookups in vain have %d records, want at most %d", got, refusalBurst+1)
	}
}

// Connections to names without an address are bounded with lookups of them: no more records for
// one than for the other.
func TestDial_UnresolvedRecordsAreBounded(t *testing.T) {
	w := newWorld(t, Options{Resolver: noNames{}}, []string{"*.example.org"})
	proxy := w.httpDoor()
	for i := range 3 * refusalBurst {
		if got := say(t, proxy, fmt.Sprintf("CONNECT n%d.example.org:443 HTTP/1.1\r\n\r\n", i)); !strings.Contains(got, "502 Glovebox could not resolve") {
			t.Fatalf("got %q", got)
		}
	}
	if got := len(w.recorded()); got < refusalBurst || got > refusalBurst+1 {
		t.Errorf("%d connections to names without an address have %d records, want %d", 3*refusalBurst, got, refusalBurst)
	}
	w.n.records[Unresolved] = loglimit.New(1)
	w.n.records[Unresolved].Omit(2 * refusalBurst)
	say(t, proxy, "CONNECT last.example.org:443 HTTP/1.1\r\n\r\n")
	all := w.recorded()
	if last := all[len(all)-1]; last.Omitted != 2*refusalBurst || last.Host != "last.example.org" {
		t.Errorf("the next record is %+v, want one that counts %d", last, 2*refusalBurst)
	}
	if s := w.g.Stats(); s.Connections[Failed] != 3*refusalBurst+1 {
		t.Errorf("got %v, want each connection counted", s.Connections)
	}
}

func socksRequest(host string, port uint16) string {
	return "\x05\x01\x00" + "\x05\x01\x00\x03" + string([]byte{byte(len(host))}) + host + string([]byte{byte(port >> 8), byte(port)})
}
