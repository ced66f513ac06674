package outbound

import (
	"errors"
	"net/netip"
	"net/url"
	"testing"
)

func TestCheck(t *testing.T) {
	strict := &Policy{}
	for _, tt := range []struct {
		name   string
		policy *Policy
		url    string
		want   Reason
	}{
		{"public name", strict, "https://mcp.example.com/mcp", ""},
		{"public address", strict, "https://1.1.1.1/mcp", ""},
		{"public address, IPv6", strict, "https://[2606:4700:4700::1111]/mcp", ""},
		{"no http", strict, "ftp://example.com/", NotHTTP},
		{"a file", strict, "file:///etc/passwd", NotHTTP},
		{"no host", strict, "https:///mcp", NotHTTP},
		{"credentials", strict, "https://user:pass@example.com/", Credentials},
		{"a user", strict, "https://user@example.com/", Credentials},
		{"plain http", strict, "http://example.com/", Unencrypted},
		{"localhost", strict, "https://localhost/", Localhost},
		{"localhost in capitals with a dot", strict, "https://LOCALHOST./", Localhost},
		{"below localhost", strict, "https://a.localhost/", Localhost},
		{"local network", strict, "https://printer.local/", Localhost},
		{"local domain", strict, "https://x.localdomain/", Localhost},
		{"single label", strict, "https://intranet/", Localhost},
		{"loopback", strict, "https://127.0.0.1/", Localhost},
		{"loopback, another", strict, "https://127.8.9.1/", Localhost},
		{"loopback, IPv6", strict, "https://[::1]/", Localhost},
		{"loopback, mapped", strict, "https://[::ffff:127.0.0.1]/", Localhost},
		{"loopback, translated", strict, "https://[64:ff9b::7f00:1]/", Localhost},
		{"loopback, 6to4", strict, "https://[2002:7f00:1::]/", Localhost},
		{"private", strict, "https://10.0.0.1/", Private},
		{"private, 172", strict, "https://172.31.255.255/", Private},
		{"metadata of a cloud", strict, "https://169.254.169.254/latest", Metadata},
		{"metadata, mapped", strict, "https://[::ffff:169.254.169.254]/", Metadata},
		{"metadata, compatible", strict, "https://[::169.254.169.254]/", Metadata},
		{"metadata, NAT64", strict, "https://[64:ff9b::169.254.169.254]/", Metadata},
		{"metadata, local NAT64", strict, "https://[64:ff9b:1::169.254.169.254]/", Metadata},
		{"metadata, 6to4", strict, "https://[2002:a9fe:a9fe::1]/", Metadata},
		{"metadata, Teredo", strict, "https://[2001:0:1:1:0:0:5601:5601]/", Metadata},
		{"metadata, SIIT", strict, "https://[::ffff:0:169.254.169.254]/", Metadata},
		{"metadata, ISATAP", strict, "https://[2a00:1450::5efe:a9fe:a9fe]/", Metadata},
		{"metadata, ISATAP with the global bit", strict, "https://[2a00:1450::200:5efe:a9fe:a9fe]/", Metadata},
		{"metadata, AWS containers", strict, "https://169.254.170.2/", Metadata},
		{"metadata, AWS over IPv6", strict, "https://[fd00:ec2::254]/", Metadata},
		{"metadata, Google over IPv6", strict, "https://[fd20:ce::254]/", Metadata},
		{"metadata, OpenStack over IPv6", strict, "https://[fe80::a9fe:a9fe%25eth0]/", Metadata},
		{"metadata, Azure's host", strict, "https://168.63.129.16/", Metadata},
		{"metadata, Alibaba", strict, "https://100.100.100.200/", Metadata},
		{"metadata, Oracle", strict, "https://192.0.0.192/", Metadata},
		{"metadata, Scaleway over IPv6", strict, "https://[fd00:42::42]/", Metadata},
		{"metadata in decimal", strict, "https://2852039166/", Localhost},
		{"metadata in hexadecimal", strict, "https://0xa9fea9fe/", Localhost},
		{"services of a cloud", strict, "https://161.26.0.6/", Private},
		{"6to4", strict, "https://[2002:0101:0101::1]/", Private},
		{"Teredo", strict, "https://[2001:0:1:1:0:0:fefe:fefe]/", Private},
		{"NAT64 of a public address", strict, "https://[64:ff9b::1.1.1.1]/", ""},
		{"ORCHID", strict, "https://[2001:10::1]/", Private},
		{"AS112", strict, "https://[2620:4f:8000::1]/", Private},
		{"discard only", strict, "https://[100::1]/", Private},
		{"dummy prefix", strict, "https://[100:0:0:1::1]/", Private},
		{"site-local", strict, "https://[fec0::1]/", Private},
		{"segment routing", strict, "https://[5f00::1]/", Private},
		{"not unicast", strict, "https://[4000::1]/", Private},
		{"carrier", strict, "https://100.64.0.1/", Private},
		{"unspecified", strict, "https://0.0.0.0/", Private},
		{"unspecified, IPv6", strict, "https://[::]/", Private},
		{"broadcast", strict, "https://255.255.255.255/", Private},
		{"multicast", strict, "https://224.0.0.1/", Private},
		{"unique local", strict, "https://[fd00::1]/", Private},
		{"link-local with a zone", strict, "https://[fe80::1%25eth0]/", Private},
		{"documentation", strict, "https://[2001:db8::1]/", Private},

		{"http allowed", &Policy{AllowHTTP: true}, "http://example.com/", ""},
		{"localhost allowed", &Policy{AllowLocalhost: true}, "https://localhost/", ""},
		{"localhost allowed, loopback", &Policy{AllowLocalhost: true}, "https://[::1]/", ""},
		{"localhost allowed, private is not", &Policy{AllowLocalhost: true}, "https://10.0.0.1/", Private},
		{"private allowed", &Policy{AllowPrivate: true}, "https://10.0.0.1/", ""},
		{"private allowed, localhost is not", &Policy{AllowPrivate: true}, "https://127.0.0.1/", Localhost},
		{"private allowed, metadata is not", &Policy{AllowPrivate: true, AllowLocalhost: true}, "https://169.254.169.254/", Metadata},
		{"private allowed, the carrier's", &Policy{AllowPrivate: true}, "https://100.64.0.1/", ""},
		{"private allowed, unique local", &Policy{AllowPrivate: true}, "https://[fd00::1]/", ""},
		{"private allowed, multicast is not", &Policy{AllowPrivate: true}, "https://[ff02::1]/", Private},
		{"private allowed, unspecified is not", &Policy{AllowPrivate: true, AllowLocalhost: true}, "https://0.0.0.0/", Private},
		{"listed", &Policy{AllowedHosts: []string{"Example.com"}}, "https://example.com/", ""},
		{"below a listed one", &Policy{AllowedHosts: []string{"example.com."}}, "https://mcp.example.com/", ""},
		{"ends like a listed one", &Policy{AllowedHosts: []string{"example.com"}}, "https://badexample.com/", NotListed},
		{"not listed", &Policy{AllowedHosts: []string{"example.com"}}, "https://example.org/", NotListed},
		{"an empty entry lists nothing", &Policy{AllowedHosts: []string{""}}, "https://example.org/", NotListed},
		{"listed localhost", &Policy{AllowedHosts: []string{"localhost"}}, "https://localhost/", Localhost},

		{"trusted", nil, "http://user@127.0.0.1/", ""},
		{"trusted, no http", nil, "gopher://127.0.0.1/", NotHTTP},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u, err := url.Parse(tt.url)
			if err != nil {
				t.Fatal(err)
			}
			err = tt.policy.Check("srv", u)
			var r *Refusal
			if got := errors.As(err, &r); got != (tt.want != "") || got && r.Reason != tt.want {
				t.Fatalf("Check(%s) = %v, want reason %q", tt.url, err, tt.want)
			}
			if err != nil && !errors.Is(err, ErrRefused) {
				t.Errorf("%v is not ErrRefused", err)
			}
		})
	}
}

// Each reason has its own text, which names the server and no secrets.
func TestRefusalTexts(t *testing.T) {
	seen := make(map[string]Reason)
	for _, reason := range []Reason{NotHTTP, Credentials, Unencrypted, NotListed, Localhost, Private, Metadata, Unresolved, Redirected} {
		text := (&Refusal{Server: "srv", Reason: reason, Target: "https://h"}).Error()
		if texts[reason] == [2]string{} || seen[text] != "" {
			t.Errorf("%s has no text: %q", reason, text)
		}
		seen[text] = reason
	}
	if len(texts) != len(seen) {
		t.Errorf("%d texts for %d reasons", len(texts), len(seen))
	}
	u, err := url.Parse("https://user:hunter2@example.com/secret?token=hunter2")
	if err != nil {
		t.Fatal(err)
	}
	got := (&Policy{}).Check("srv", u).Error()
	const want = `refusing to connect mcp server "srv" to https://example.com, a url with credentials in it (send them in a header, and trust the server)`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func FuzzCheck(f *testing.F) {
	f.Add("https://[::ffff:127.0.0.1]:8080/x")
	f.Add("https://127.0.0.1.:80")
	f.Add("https://[fe80::1%25lo]/")
	f.Fuzz(func(t *testing.T, text string) {
		u, err := url.Parse(text)
		if err != nil {
			return
		}
		if (&Policy{}).Check("srv", u) != nil {
			return
		}
		if u.Scheme != "https" || u.User != nil {
			t.Errorf("%q is allowed", text)
		}
		if addr, err := netip.ParseAddr(u.Hostname()); err == nil && (addr.IsLoopback() || addr.IsPrivate() || addr.Unmap().IsLoopback()) {
			t.Errorf("%q is allowed", text)
		}
	})
}
