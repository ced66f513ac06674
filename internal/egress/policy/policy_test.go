package policy

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func mustParse(t testing.TB, allow ...string) *Policy {
	t.Helper()
	p, err := Parse(allow, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestName_OddFormsAreRefused(t *testing.T) {
	long := strings.Repeat("a.", 126) + "aa" // 254 bytes
	for _, s := range []string{
		"", ".", "localhost", "example.org..", ".example.org", "a..b", "example.org\x00", "example.org\x00.evil.com", "example.org%00",
		"user@example.org", "example.org:80", "example.org/x", "exa mple.org", "exämple.org", "example。org", "[example.org]",
		"127.1", "0x7f.1", "127.0.0.0x1", "0177.0.0.1", "2130706433", "1.2.3.4.5", "1.2.3.256", "example.123", "example.0x", "a.0X1f",
		"-a.org", "a-.org", strings.Repeat("a", 64) + ".org", long, "fe80::1%eth0", "[fe80::1", "fe80::1]", "[127.0.0.1]", "*.example.org", "a.b\n",
	} {
		if got, err := ParseHost(s); err == nil {
			t.Errorf("ParseHost(%q) = %q, want an error", s, got)
		}
	}
	for s, want := range map[string]string{
		"Example.ORG": "example.org", "example.org.": "example.org", "xn--exmple-cua.org": "xn--exmple-cua.org", "_dmarc.a-b.org": "_dmarc.a-b.org",
		"a.1b": "a.1b", "127.0.0.1": "127.0.0.1", "[::1]": "::1", "::FFFF:10.0.0.1": "10.0.0.1", "0:0::1": "::1", long[2:]: long[2:],
	} {
		if got, err := ParseHost(s); err != nil || got != want {
			t.Errorf("ParseHost(%q) = %q, %v, want %q", s, got, err, want)
		}
	}
}

func TestPattern_Matches(t *testing.T) {
	for _, tt := range []struct {
		pattern, host string
		want          bool
	}{
		{"example.org", "example.org", true}, {"Example.org.", "example.org", true}, {"example.org", "www.example.org", false},
		{"example.org", "example.org.evil.com", false}, {"example.org", "badexample.org", false},
		{"*.example.org", "www.example.org", true}, {"*.example.org", "a.b.example.org", true}, {"*.example.org", "example.org", false},
		{"*.example.org", "badexample.org", false}, {"*.example.org", ".example.org", false},
		{"203.0.113.0/24", "203.0.113.9", true}, {"203.0.113.0/24", "203.0.114.9", false}, {"203.0.113.0/24", "example.org", false},
		{"203.0.113.7", "203.0.113.7", true}, {"2001:db8::/32", "2001:db8::1", true},
	} {
		p, err := ParsePattern(tt.pattern)
		if err != nil {
			t.Errorf("ParsePattern(%q): %v", tt.pattern, err)
		} else if got := p.Matches(tt.host); got != tt.want {
			t.Errorf("%q matches %q: %v, want %v", tt.pattern, tt.host, got, tt.want)
		}
	}
	for _, s := range []string{"*", "*.org", "*.*.org", "a*.example.org", "www.*.org", "", "10.0.0.1/8", "::ffff:10.0.0.0/104", "exa mple.org"} {
		if p, err := ParsePattern(s); err == nil {
			t.Errorf("ParsePattern(%q) = %v, want an error", s, p)
		}
	}
}

func TestParseRule(t *testing.T) {
	for _, tt := range []struct {
		entry, text string
		ports       []uint16
		kind        Kind
	}{
		{"example.org", "example.org", []uint16{80, 443}, Web},
		{"*.example.org:8443", "*.example.org:8443", []uint16{8443}, Web},
		{"https://example.org", "https://example.org", []uint16{443}, Web},
		{"http://example.org", "http://example.org", []uint16{80}, Web},
		{"tcp://db.example.org:5432", "tcp://db.example.org:5432", []uint16{5432}, Raw},
		{"203.0.113.0/24", "203.0.113.0/24", []uint16{80, 443}, Web},
		{"tcp://[2001:db8::1]:22", "tcp://[2001:db8::1]:22", []uint16{22}, Raw},
		{"pypi", "pypi", []uint16{443}, Web},
	} {
		r, err := ParseRule(tt.entry)
		if err != nil || !slices.Equal(r.Ports, tt.ports) || r.Kind != tt.kind || r.String() != tt.text {
			t.Errorf("ParseRule(%q) = %v %v %v, %v", tt.entry, r, r.Ports, r.Kind, err)
		}
	}
	for entry, want := range map[string]string{
		"pipy": "preset (debian", "tcp://example.org": "needs a port", "ftp://example.org": "scheme", "example.org:0": "port", "example.org:+80": "port",
		"example.org:65536": "port", "example.org/path": "not a host name", "": "preset", "https://user@example.org": "not a host name", "example.org:": "port",
	} {
		if r, err := ParseRule(entry); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseRule(%q) = %v, %v, want an error with %q", entry, r, err, want)
		}
	}
}

func TestSet_EveryLayerMustAllow(t *testing.T) {
	wide, narrow := mustParse(t, "pypi", "npm", "*.example.org", "tcp://db.example.org:5432"), mustParse(t, "pypi", "db.example.org", "db.example.org:5432")
	denies, err := Parse([]string{"*.example.org", "pypi"}, []string{"bad.example.org"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		set  Set
		host string
		port uint16
		want Verdict // without Version
	}{
		{"no layer", Set{}, "pypi.org", 443, Verdict{Reason: Off}},
		{"empty layer", Set{Owner: mustParse(t)}.Narrow(Layer{"box", wide}), "pypi.org", 443, Verdict{Layer: "owner", Reason: Off}},
		{"one layer", Set{Owner: wide}, "registry.npmjs.org", 443, Verdict{OK: true, Rule: "npm", Name: "npm"}},
		{"other port", Set{Owner: wide}, "registry.npmjs.org", 80, Verdict{Layer: "owner", Reason: NoRule}},
		{"both", Set{Owner: wide}.Narrow(Layer{"box", narrow}), "PyPI.org.", 443, Verdict{OK: true, Rule: "pypi", Name: "pypi"}},
		{"box narrows", Set{Owner: wide}.Narrow(Layer{"box", narrow}), "registry.npmjs.org", 443, Verdict{Layer: "box", Reason: NoRule}},
		{"owner narrows", Set{Owner: narrow}.Narrow(Layer{"box", wide}), "registry.npmjs.org", 443, Verdict{Layer: "owner", Reason: NoRule}},
		{"raw", Set{Owner: wide}, "db.example.org", 5432, Verdict{OK: true, Rule: "tcp://db.example.org:5432", Name: Custom, Kind: Raw}},
		{"raw in one layer only", Set{Owner: wide}.Narrow(Layer{"box", narrow}), "db.example.org", 5432, Verdict{OK: true, Rule: "db.example.org:5432", Name: Custom}},
		{"denied", Set{Owner: denies}.Narrow(Layer{"box", wide}), "bad.example.org", 443, Verdict{Layer: "owner", Rule: "bad.example.org", Name: Custom, Reason: Denied}},
		{"denied at every port", Set{Owner: denies}.Narrow(Layer{"box", wide}), "bad.example.org", 5432, Verdict{Layer: "owner", Rule: "bad.example.org", Name: Custom, Reason: Denied}},
		{"no name", Set{Owner: wide}, "exa mple.org", 443, Verdict{Reason: Name}},
		{"address", Set{Owner: wide}, "203.0.113.1", 443, Verdict{Layer: "owner", Reason: NoRule}},
	} {
		got := tt.set.Decide(tt.host, tt.port)
		got.Version = ""
		if got != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// entries are for random policies.
var entries = []string{
	"pypi", "npm", "github", "example.org", "*.example.org", "www.example.org", "https://example.org", "http://www.example.org", "example.org:8080",
	"tcp://example.org:443", "tcp://www.example.org:22", "203.0.113.0/24", "203.0.113.7:22", "files.pythonhosted.org",
}

func randomPolicy(r *rand.Rand) *Policy {
	var allow, deny []Rule
	for range 2 + r.IntN(8) {
		rule, err := ParseRule(entries[r.IntN(len(entries))])
		if err != nil {
			panic(err)
		}
		if r.IntN(4) == 0 {
			deny = append(deny, rule)
			continue
		}
		if r.IntN(4) == 0 && rule.Kind == Web {
			rule.Methods = []string{"GET"}
		}
		allow = append(allow, rule)
	}
	p, err := New(allow, deny)
	if err != nil {
		panic(err)
	}
	return p
}

// allows reports whether a allows at least as much as b.
func allows(a, b Verdict) bool {
	return !b.OK || a.OK && a.Kind >= b.Kind && (b.RequestsOnly || !a.RequestsOnly)
}

// TestSet_AddingALayerNeverAllowsMore is a property of random policies.
func TestSet_AddingALayerNeverAllowsMore(t *testing.T) {
	hosts := []string{"pypi.org", "registry.npmjs.org", "example.org", "www.example.org", "a.b.example.org", "203.0.113.7", "files.pythonhosted.org"}
	r := rand.New(rand.NewPCG(1, 2))
	allowed := 0
	for range 500 {
		one := Set{Owner: randomPolicy(r)}
		two := one.Narrow(Layer{"template", randomPolicy(r)})
		three := two.Narrow(Layer{"box", randomPolicy(r)})
		for _, host := range hosts {
			for _, port := range []uint16{22, 80, 443, 8080} {
				for _, method := range []string{"", "GET", "POST"} {
					decide := func(s Set) Verdict {
						if method == "" {
							return s.Decide(host, port)
						}
						return s.DecideRequest(host, port, method, "/")
					}
					a, b, c := decide(one), decide(two), decide(three)
					if !allows(a, b) || !allows(b, c) {
						t.Fatalf("%s:%d %s: %+v, with a layer %+v, with two %+v\n%v", host, port, method, a, b, c, three)
					}
					if c.OK {
						allowed++
					}
				}
			}
		}
	}
	if allowed < 300 {
		t.Errorf("three layers allowed %d connections, too few for this test to say anything", allowed)
	}
}

func TestPreset_HasNoWildcard(t *testing.T) {
	for _, name := range PresetNames() {
		r, ok := Preset(name)
		if !ok || r.check() != nil || r.Kind != Web || r.Name != name {
			t.Errorf("preset %s: %+v", name, r)
		}
		for _, h := range r.Hosts {
			again, err := ParsePattern(h.String())
			if err != nil || again != h || h.below || h.prefix.IsValid() {
				t.Errorf("preset %s: pattern %q is not one name: %v", name, h, err)
			}
			if got := PresetFor(strings.ToUpper(h.String())); got != name {
				t.Errorf("PresetFor(%q) = %q, want %q", h, got, name)
			}
		}
	}
}

func TestRule_MethodNeedsHTTP(t *testing.T) {
	r, err := NewRule([]string{"api.example.com"}, []string{"GET", "HEAD"}, []string{"/v1/public/", "/v1/*/status"})
	if err != nil || !slices.Equal(r.Ports, []uint16{80}) {
		t.Fatalf("%+v, %v", r, err)
	}
	p, err := New([]Rule{r}, nil)
	if err != nil {
		t.Fatal(err)
	}
	set := Set{Owner: p}
	if v := set.Decide("api.example.com", 80); !v.OK || !v.RequestsOnly {
		t.Errorf("a connection: %+v, want it limited", v)
	}
	for request, want := range map[string]bool{
		"GET /v1/public/x": true, "HEAD /v1/public/": true, "GET /v1/public": false, "POST /v1/public/x": false, "GET /v1/publicx": false,
		"GET /v1/a/status": true, "GET /v1/a/b/status": false, "GET /v1/public/../private": false, "GET /v1/public/%2e%2e/private": false,
		"GET /v1/public/%2fx": false, "GET /v1/public/%5c..": false, "GET /v1/public/%252e%252e/x": false, "GET /v1/public//x": false,
		"GET /v1/public/./x": false, "GET /v1/public/;a=b": false, "GET /v1/publi%63/x": true, "GET /v1/public/%": false, "GET /v1/public/%00": false,
	} {
		method, path, _ := strings.Cut(request, " ")
		if v := set.DecideRequest("api.example.com", 80, method, path); v.OK != want || !want && v.Reason != Method {
			t.Errorf("%s: %+v, want %v", request, v, want)
		}
	}
	for _, tt := range []struct {
		hosts, methods, paths []string
		want                  string
	}{
		{nil, nil, nil, "no hosts"},
		{[]string{"https://api.example.com"}, []string{"GET"}, nil, "plain HTTP"},
		{[]string{"tcp://api.example.com:1"}, []string{"GET"}, nil, "plain HTTP"},
		{[]string{"api.example.com"}, []string{"get"}, nil, "upper case"},
		{[]string{"api.example.com"}, []string{"CONNECT"}, nil, "method"},
		{[]string{"api.example.com"}, nil, []string{"v1"}, "path"},
		{[]string{"api.example.com"}, nil, []string{"/v1/../x"}, "path"},
		{[]string{"api.example.com"}, nil, []string{"/%2e"}, "path"},
		{[]string{"api.example.com"}, nil, []string{"/[a"}, "path"},
		{[]string{"pypi"}, []string{"GET"}, nil, "preset"},
		{[]string{"a.example.com", "b.example.com:1"}, nil, nil, "two rules"},
	} {
		if r, err := NewRule(tt.hosts, tt.methods, tt.paths); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("NewRule(%q, %q, %q) = %+v, %v, want an error with %q", tt.hosts, tt.methods, tt.paths, r, err, tt.want)
		}
	}
	if _, err := New(nil, []Rule{r}); err == nil {
		t.Error("a policy denies by method, want an error")
	}
}

func TestPolicy_VersionIsOfTheContent(t *testing.T) {
	a, b, c := mustParse(t, "pypi", "example.org"), mustParse(t, "pypi", "example.org"), mustParse(t, "pypi", "tcp://example.org:443")
	if a.Version != b.Version || a.Version == c.Version || len(a.Version) != 12 {
		t.Errorf("versions %q, %q, %q", a.Version, b.Version, c.Version)
	}
	if got := (Set{Owner: a}).Version(); got != a.Version {
		t.Errorf("a set of one policy has the version %q, want %q", got, a.Version)
	}
	if (Set{Owner: a}).Version() == (Set{Owner: a}).Narrow(Layer{"box", a}).Version() {
		t.Error("a second layer does not change the version")
	}
}

func TestSet_PortsAndAllowed(t *testing.T) {
	wide, err := Parse([]string{"pypi", "github", "example.org", "example.org:8080", "tcp://db.example.org:5432"}, []string{"gist.githubusercontent.com"})
	if err != nil {
		t.Fatal(err)
	}
	s := Set{Owner: wide}
	for host, want := range map[string][]uint16{"example.org": {80, 443, 8080}, "pypi.org": {443}, "db.example.org": {5432}, "gist.githubusercontent.com": nil, "evil.com": nil} {
		if got := s.Ports(host); !slices.Equal(got, want) {
			t.Errorf("Ports(%q) = %v, want %v", host, got, want)
		}
	}
	got := s.Allowed()
	if !slices.Contains(got, "pypi") || slices.Contains(got, "github") || !slices.Contains(got, "https://api.github.com") || slices.Contains(got, "https://gist.githubusercontent.com") {
		t.Errorf("Allowed() = %q", got)
	}
	s = s.Narrow(Layer{"box", mustParse(t, "files.pythonhosted.org", "example.org")})
	if got, want := s.Allowed(), []string{"example.org", "https://files.pythonhosted.org"}; !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		t.Errorf("Allowed() = %q, want %q", got, want)
	}
}

// A limit narrows, and never takes the place of a policy.
func TestSet_Narrow(t *testing.T) {
	pypi, none := mustParse(t, "pypi"), mustParse(t)
	host := mustParse(t, "api.example.org")
	for name, tt := range map[string]struct {
		set     Set
		host    string
		want    bool
		layer   string
		allowed []string
	}{
		"no policy":         {Set{}.Narrow(Layer{"box", pypi}), "pypi.org", false, "", nil},
		"policy off":        {Set{Owner: none}.Narrow(Layer{"box", pypi}), "pypi.org", false, "owner", nil},
		"nothing":           {Set{Owner: pypi}.Narrow(Layer{"box", none}), "pypi.org", false, "box", nil},
		"same":              {Set{Owner: pypi}.Narrow(Layer{"box", pypi}), "pypi.org", true, "", []string{"pypi"}},
		"other":             {Set{Owner: pypi}.Narrow(Layer{"template", host}), "pypi.org", false, "template", nil},
		"two":               {Set{Owner: mustParse(t, "pypi", "npm")}.Narrow(Layer{"template", pypi}).Narrow(Layer{"box", mustParse(t, "npm")}), "pypi.org", false, "box", nil},
		"below a wildcard":  {Set{Owner: mustParse(t, "*.example.org")}.Narrow(Layer{"box", host}), "api.example.org", true, "", []string{"api.example.org"}},
		"wider than policy": {Set{Owner: host}.Narrow(Layer{"box", mustParse(t, "*.example.org")}), "b.example.org", false, "owner", []string{"api.example.org"}},
	} {
		v := tt.set.Decide(tt.host, 443)
		if v.OK != tt.want || v.Layer != tt.layer {
			t.Errorf("%s: got %+v, want %t by layer %q", name, v, tt.want, tt.layer)
		}
		if got := tt.set.Allowed(); !slices.Equal(got, tt.allowed) {
			t.Errorf("%s: Allowed() = %q, want %q", name, got, tt.allowed)
		}
	}
	base := Set{Owner: mustParse(t, "pypi", "npm")}.Narrow(Layer{"template", mustParse(t, "pypi", "npm")})
	a, b := base.Narrow(Layer{"box", pypi}), base.Narrow(Layer{"box", none})
	if !a.Decide("pypi.org", 443).OK || b.Decide("pypi.org", 443).OK || !base.Decide("registry.npmjs.org", 443).OK {
		t.Error("sets that come from one share their limits")
	}
}

func FuzzParseHost(f *testing.F) {
	for _, s := range []string{"example.org", "EXAMPLE.org.", "127.0.0.1", "[::1]", "0x7f.1", "a..b", "xn--a.org", "a\x00.org"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		host, err := ParseHost(s)
		if err != nil {
			return
		}
		if again, err := ParseHost(host); err != nil || again != host {
			t.Errorf("ParseHost(%q) = %q, whose form is %q, %v", s, host, again, err)
		}
		if strings.Trim(host, "abcdefghijklmnopqrstuvwxyz0123456789-_.:") != "" {
			t.Errorf("ParseHost(%q) = %q", s, host)
		}
	})
}

func FuzzParseRule(f *testing.F) {
	for _, s := range append(slices.Clone(entries), "*.example.org:1", "tcp://[::1]:1", "10.0.0.0/8") {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRule(s)
		if err != nil {
			return
		}
		again, err := ParseRule(r.String())
		if err != nil || again.String() != r.String() || again.Kind != r.Kind || !slices.Equal(again.Ports, r.Ports) || !slices.Equal(again.Hosts, r.Hosts) {
			t.Errorf("ParseRule(%q) = %v, which parses as %v, %v", s, r, again, err)
		}
		for _, h := range r.Hosts {
			if !h.Matches(h.sample()) {
				t.Errorf("%q does not match %q", h, h.sample())
			}
		}
	})
}

// TestDecideAddr_InnerAddress: a network that a policy denies is refused under the IPv6 addresses
// that stand for its addresses, too.
func TestDecideAddr_InnerAddress(t *testing.T) {
	p, err := Parse([]string{"*.example.com"}, []string{"203.0.113.0/24"})
	if err != nil {
		t.Fatal(err)
	}
	s := Set{Owner: p}
	for addr, want := range map[string]bool{
		"203.0.113.7": false, "::ffff:203.0.113.7": false, "64:ff9b::cb00:7107": false, "2002:cb00:7107::1": false,
		"198.51.100.7": true, "64:ff9b::c633:6407": true, "2001:4860::1": true,
	} {
		if v := s.DecideAddr(netip.MustParseAddr(addr), 443); v.OK != want {
			t.Errorf("%s: allowed is %v, want %v", addr, v.OK, want)
		}
	}
}
