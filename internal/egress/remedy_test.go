package egress

import (
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/egress/egresstest"
	"github.com/glovebox-dev/glovebox/internal/egress/policy"
)

// TestRefusal_RemedyHelps: what a refusal tells the operator to add makes the connection
// allowed, or it names no setting.
func TestRefusal_RemedyHelps(t *testing.T) {
	for _, tt := range []struct {
		allow []string
		host  string
		port  uint16
		entry string // "": none
		want  string
	}{
		{[]string{"npm"}, "pypi.org", 443, "pypi", "(allowed: npm)"},
		{[]string{"pypi"}, "github.com", 443, "github", "(allowed: pypi)"}, // pip install git+https://github.com/...
		{[]string{"pypi"}, "pypi.org", 22, "pypi.org:22", "no rule allows port 22 of this host (allowed: 443)"},
		{[]string{"pypi"}, "pypi.org", 80, "pypi.org", "no rule allows http for this host, only https (allowed: 443): use https://pypi.org. For http, the operator can"},
		{[]string{"npm"}, "pypi.org", 8443, "pypi.org:8443", "(for other protocols than TLS and HTTP: tcp://pypi.org:8443)"},
		{[]string{"https://a.example.org"}, "a.example.org", 80, "a.example.org", "(allowed: 443)"},
		{[]string{"npm"}, "db.example.org", 5432, "db.example.org:5432", "tcp://db.example.org:5432"},
		{[]string{"npm"}, "203.0.113.7", 443, "203.0.113.7", "no rule allows it"},
		{[]string{"npm"}, "2a00:1450::1", 8443, "[2a00:1450::1]:8443", "tcp://[2a00:1450::1]:8443"},
		{nil, "pypi.org", 443, "pypi", "this box has no network"},
		{nil, "pypi.org", 22, "pypi.org:22", "this box has no network"},
		{[]string{"npm"}, "10.0.0.1", 443, "", "it is a private address, which boxes never reach. Do not retry; for a server of its own, the operator can pin a name to it: --egress-pin NAME=10.0.0.1"},
		{[]string{"npm"}, "[fd12::1]", 443, "", "--egress-pin NAME=fd12::1"},
		{[]string{"npm"}, "127.0.0.1", 443, "", "--egress-pin NAME=127.0.0.1"},
		{[]string{"npm"}, "169.254.169.254", 80, "", "it is the metadata service of a cloud, which boxes never reach. Do not retry or work around it; no setting allows it."},
		{nil, "10.0.0.1", 443, "", "it is a private address"},
	} {
		w := newWorld(t, Options{}, tt.allow)
		r := w.n.refuseVerdict("http", tt.host, tt.port, w.n.policies().Decide(tt.host, tt.port))
		if !strings.Contains(r.text, tt.want) {
			t.Errorf("%v, %s:%d: got %q, want %q", tt.allow, tt.host, tt.port, r.text, tt.want)
		}
		_, entry, _ := strings.Cut(r.text, "--network")
		entry = strings.TrimLeft(entry, ": ")
		entry, _, _ = strings.Cut(entry, " ")
		if entry != tt.entry {
			t.Errorf("%v, %s:%d: the remedy is %q, want %q", tt.allow, tt.host, tt.port, entry, tt.entry)
		}
		if entry == "" {
			if r.reason != Floor {
				t.Errorf("%s: reason %q, want %q", tt.host, r.reason, Floor)
			}
			continue
		}
		p, err := policy.Parse(append(tt.allow, entry), nil)
		if err != nil || !(policy.Set{Owner: p}).Decide(tt.host, tt.port).OK {
			t.Errorf("with the remedy %q, %s:%d is still refused (%v)", entry, tt.host, tt.port, err)
		}
	}
}

// TestRefusal_NamesTheFile: where a file has the policy of an owner, the setting --network would
// change nothing, or take the place of the policy.
func TestRefusal_NamesTheFile(t *testing.T) {
	const where = "the section of this owner in --network-file"
	options := Options{Where: func(owner string) string {
		if owner == "token alice" {
			return where
		}
		return setting
	}}
	for _, allow := range [][]string{{"npm"}, nil} {
		w := newWorld(t, options, allow)
		n := w.g.Open(Box{Owner: "token alice", ID: "b"})
		r := n.refuseVerdict("http", "pypi.org", 443, n.policies().Decide("pypi.org", 443))
		if want := "the operator can add it to " + where + ": pypi"; !strings.HasSuffix(r.text, want) {
			t.Errorf("with %v: got %q, want %q at the end", allow, r.text, want)
		}
		if notice := n.Settings().Notice; allow == nil && !strings.HasSuffix(notice, "can allow hosts with "+where) {
			t.Errorf("the notice of a box without a network: %q", notice)
		}
	}
}

// TestRefusal_NarrowerLayer: the remedy for what only a template or a box refuses is no
// setting of the operator.
func TestRefusal_NarrowerLayer(t *testing.T) {
	w := newWorld(t, Options{}, []string{"pypi", "npm"})
	p, err := policy.Parse([]string{"npm"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.set = w.set.Narrow(policy.Layer{Name: LayerTemplate, Policy: p})
	r := w.n.refuseVerdict("http", "pypi.org", 443, w.n.policies().Decide("pypi.org", 443))
	if strings.Contains(r.text, "--network") || !strings.Contains(r.text, "the network of this template is narrower") {
		t.Errorf("got %q", r.text)
	}
}

// TestRefusal_NameOfPrivateServer: a name that leads to a private address can be pinned.
func TestRefusal_NameOfPrivateServer(t *testing.T) {
	dns := egresstest.NewDNS(t)
	dns.Set("git.example.org", "10.0.0.1")
	dns.Set("meta.example.org", "169.254.169.254")
	w := newWorld(t, Options{Resolver: dns.Resolver()}, []string{"*.example.org", "10.0.0.0/8"})
	for host, want := range map[string]string{
		"git.example.org":  "it leads to a private address, which boxes never reach. Do not retry; for a server of its own, the operator can pin the address: --egress-pin git.example.org=ADDRESS",
		"meta.example.org": "it leads to the metadata service of a cloud, which boxes never reach. Do not retry or work around it; no setting allows it.",
		"10.0.0.1":         "it is a private address, which boxes never reach. Do not retry; for a server of its own, the operator can pin a name to it: --egress-pin NAME=10.0.0.1",
	} {
		got := say(t, w.httpDoor(), "GET http://"+host+"/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		if !strings.Contains(got, " 403 ") || !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", host, got, want)
		}
	}
}
