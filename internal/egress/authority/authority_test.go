package authority

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/x509"
	"fmt"
	"strings"
	"testing"
	"time"
)

var master = bytes.Repeat([]byte{7}, 32)

func newAuthority(t *testing.T, box string, names ...string) *Authority {
	t.Helper()
	a, err := New(master, box, names)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func pool(t *testing.T, a *Authority) *x509.CertPool {
	t.Helper()
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM([]byte(a.PEM())) {
		t.Fatalf("the certificate cannot be parsed: %q", a.PEM())
	}
	return p
}

func TestAuthority_SignsItsNamesOnly(t *testing.T) {
	a := newAuthority(t, "box1", "api.example.com", "git.example.org")
	l, err := a.Leaf("API.example.com")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Leaf.Verify(x509.VerifyOptions{Roots: pool(t, a), DNSName: "api.example.com"}); err != nil {
		t.Errorf("verify the certificate of a name: %v", err)
	}
	if _, err := l.Leaf.Verify(x509.VerifyOptions{Roots: pool(t, a), DNSName: "git.example.org"}); err == nil {
		t.Error("the certificate is valid for another name")
	}
	for _, name := range []string{"other.example.com", "example.com", "sub.api.example.com", "", "*.example.com"} {
		if _, err := a.Leaf(name); err == nil {
			t.Errorf("Leaf(%q): no error", name)
		}
	}
}

// The constraints are in the certificate: programs in a box must refuse other names even
// if the key were known.
func TestAuthority_IsConstrainedToItsNames(t *testing.T) {
	a := newAuthority(t, "box1", "api.example.com")
	a.names = append(a.names, "bank.example", "127.0.0.1") // as a thief of the key would
	l, err := a.Leaf("bank.example")
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.Leaf.Verify(x509.VerifyOptions{Roots: pool(t, a), DNSName: "bank.example"})
	if err == nil || !strings.Contains(err.Error(), "not permitted") {
		t.Errorf("verify a certificate for a name outside the constraints: %v, want that it is not permitted", err)
	}
	if !a.cert.MaxPathLenZero || !a.cert.PermittedDNSDomainsCritical || len(a.cert.ExcludedIPRanges) != 2 {
		t.Errorf("the certificate permits intermediates, addresses, or ignoring the constraints: %+v", a.cert)
	}
}

func TestAuthority_IsOfOneBox(t *testing.T) {
	a, b := newAuthority(t, "box1", "api.example.com"), newAuthority(t, "box2", "api.example.com")
	l, err := b.Leaf("api.example.com")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Leaf.Verify(x509.VerifyOptions{Roots: pool(t, a), DNSName: "api.example.com"}); err == nil {
		t.Error("a box trusts the authority of another box")
	}
}

// Programs of a box that another server resumes still have the old certificate.
func TestAuthority_KeySurvives(t *testing.T) {
	before := newAuthority(t, "box1", "api.example.com")
	after := newAuthority(t, "box1", "api.example.com", "new.example.com")
	l, err := after.Leaf("api.example.com")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Leaf.Verify(x509.VerifyOptions{Roots: pool(t, before), DNSName: "api.example.com"}); err != nil {
		t.Errorf("verify with the certificate from before: %v", err)
	}
	if other, err := New(bytes.Repeat([]byte{8}, 32), "box1", []string{"api.example.com"}); err != nil || other.key.Equal(before.key) {
		t.Errorf("another master key gives the same key (error %v)", err)
	}
}

func TestLeaf_IsCachedAndRenewed(t *testing.T) {
	now := time.Now()
	names := []string{"api.example.com"}
	for i := range maxLeaves + 5 {
		names = append(names, fmt.Sprintf("h%d.example.com", i))
	}
	a, err := newAt(master, "box1", names, func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	first, _ := a.Leaf("api.example.com")
	if again, _ := a.Leaf("api.example.com"); again != first {
		t.Error("a second call made another certificate")
	}
	now = now.Add(leafLifetime - leafMargin)
	renewed, err := a.Leaf("api.example.com")
	if err != nil || renewed == first || !renewed.Leaf.NotAfter.After(now.Add(2*leafMargin)) {
		t.Errorf("an ending certificate was not renewed (error %v)", err)
	}
	if renewed.PrivateKey.(*ecdsa.PrivateKey) != first.PrivateKey.(*ecdsa.PrivateKey) {
		t.Error("certificates of hosts have different keys")
	}
	for _, n := range names {
		if _, err := a.Leaf(n); err != nil {
			t.Fatal(err)
		}
	}
	if len(a.leaves) != maxLeaves || a.recent.Len() != maxLeaves {
		t.Errorf("%d certificates are kept, want %d", len(a.leaves), maxLeaves)
	}
}

func TestNew_RefusesBadInput(t *testing.T) {
	for name, f := range map[string]func() (*Authority, error){
		"short key": func() (*Authority, error) { return New(master[:31], "box", []string{"a.example"}) },
		"no box":    func() (*Authority, error) { return New(master, "", []string{"a.example"}) },
		"no names":  func() (*Authority, error) { return New(master, "box", nil) },
		"too many":  func() (*Authority, error) { return New(master, "box", make([]string, MaxNames+1)) },
	} {
		if _, err := f(); err == nil {
			t.Errorf("New with %s: no error", name)
		}
	}
}
