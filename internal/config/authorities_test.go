package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// certificate returns a certificate in PEM that parent signs; itself if parent is nil. size
// lengthens it.
func certificate(t *testing.T, name string, size int, parent *x509.Certificate, key *ecdsa.PrivateKey) (string, *x509.Certificate) {
	t.Helper()
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name, Organization: []string{strings.Repeat("o", size)}},
		NotAfter: time.Now().Add(time.Hour), IsCA: parent == nil, BasicConstraintsValid: true,
	}
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), parsed
}

func TestReadAuthorities(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	private := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}))
	one, authority := certificate(t, "one", 1, nil, key)
	two, _ := certificate(t, "two", 1, nil, key)
	server, _ := certificate(t, "server", 1, authority, key)
	long, _ := certificate(t, "long", 8<<10, nil, key)
	block := func(kind, content string) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: []byte(content)}))
	}
	path := filepath.Join(t.TempDir(), "ca.pem")
	read := func(content string) (Authorities, error) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return (&Config{EgressCA: path}).ReadAuthorities()
	}
	got, err := read("# our authorities\n" + one + "# the other\n" + two)
	if err != nil || got.PEM != one+two || len(got.Certificates) != 2 || got.Certificates[1].Subject.CommonName != "two" {
		t.Errorf("two certificates with comments: got %d, %v, %q", len(got.Certificates), err, got.PEM)
	}
	for name, test := range map[string]struct{ content, want string }{
		"empty":            {"", "has no certificate in PEM (-----BEGIN CERTIFICATE-----); convert one in DER with: openssl x509 -inform der"},
		"DER":              {string(authority.Raw), "has no certificate in PEM"},
		"a key":            {one + private, "has a private key, which boxes must not get"},
		"a key of OpenSSL": {block("EC PRIVATE KEY", "x"), "has a private key"},
		"trusted":          {block("TRUSTED CERTIFICATE", "x"), `a block "TRUSTED CERTIFICATE", want only blocks CERTIFICATE`},
		"no certificate":   {one + block("CERTIFICATE", "x"), "certificate 2: x509: "},
		"a server's":       {server, `certificate 1 is one of a server, signed by "CN=one,O=o"; list the certificate of that authority`},
		"too many":         {long + long, "the certificates have more than 16384 bytes; boxes trust public authorities anyway"},
		"a large file":     {one + strings.Repeat("# public\n", 1<<17), "larger than 1048576 bytes"},
	} {
		var bad *Error
		if got, err := read(test.content); !errors.As(err, &bad) || !strings.Contains(err.Error(), "egress-ca: "+path) || !strings.Contains(err.Error(), test.want) || got.PEM != "" {
			t.Errorf("%s: got %v, want an *Error with %q", name, err, test.want)
		}
	}
	if _, err := read(one); err != nil {
		t.Errorf("one certificate: %v", err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := (&Config{EgressCA: path}).ReadAuthorities(); err == nil || !strings.Contains(err.Error(), "other users could change whom boxes trust") || !strings.Contains(err.Error(), "chmod") {
		t.Errorf("a file that everybody can write: %v", err)
	}
	if _, err := (&Config{EgressCA: path + "x"}).ReadAuthorities(); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a missing file: %v", err)
	}
	if got, err := (&Config{}).ReadAuthorities(); err != nil || got.PEM != "" {
		t.Errorf("without the setting: %q, %v", got.PEM, err)
	}
}
