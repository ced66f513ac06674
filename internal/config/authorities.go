package config

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/owned"
)

const (
	// maxAuthoritiesFile bounds the file of egress-ca, which may have texts between the
	// certificates.
	maxAuthoritiesFile = 1 << 20
	// maxAuthorities bounds the certificates in PEM, in bytes: boxes get them in one
	// message, together with the certificate of their own authority.
	maxAuthorities = 16 << 10
)

// Authorities are the certificates of egress-ca.
type Authorities struct {
	// PEM has the certificates and nothing else. Empty: none.
	PEM string
	// Certificates are those of PEM, in order.
	Certificates []*x509.Certificate
}

// ReadAuthorities reads the file of EgressCA. Only this user and root may be able to write
// or replace the file, since who writes it can read what boxes send. Without the setting
// there are no authorities. Errors are *Error.
func (c *Config) ReadAuthorities() (Authorities, error) {
	if c.EgressCA == "" {
		return Authorities{}, nil
	}
	switch err := owned.File(c.EgressCA); {
	case errors.Is(err, owned.ErrUnsafe):
		return Authorities{}, invalid("egress-ca: %s: other users could change whom boxes trust: %v", c.EgressCA, err)
	case err != nil:
		return Authorities{}, invalid("egress-ca: %v", err)
	}
	f, err := os.Open(c.EgressCA)
	if err != nil {
		return Authorities{}, invalid("egress-ca: %v", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxAuthoritiesFile+1))
	switch {
	case err != nil:
		return Authorities{}, invalid("egress-ca: read %s: %v", c.EgressCA, err)
	case len(data) > maxAuthoritiesFile:
		return Authorities{}, invalid("egress-ca: %s: larger than %d bytes; boxes trust public authorities anyway, so list your own only", c.EgressCA, maxAuthoritiesFile)
	}
	return parseAuthorities(c.EgressCA, data)
}

// parseAuthorities parses the content of the file at path.
func parseAuthorities(path string, data []byte) (a Authorities, err error) {
	var text strings.Builder
	for rest := data; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		switch {
		case strings.HasSuffix(block.Type, "PRIVATE KEY"):
			return Authorities{}, invalid("egress-ca: %s has a private key, which boxes must not get; list the certificates of authorities only", path)
		case block.Type != "CERTIFICATE":
			return Authorities{}, invalid("egress-ca: %s: a block %.40q, want only blocks CERTIFICATE; convert it with: openssl x509 -in FILE -out NEW", path, block.Type)
		}
		n := len(a.Certificates) + 1
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return Authorities{}, invalid("egress-ca: %s: certificate %d: %v", path, n, err)
		}
		// Every self-signed certificate can be trusted, also one of a single server.
		if !cert.IsCA && !bytes.Equal(cert.RawIssuer, cert.RawSubject) {
			return Authorities{}, invalid("egress-ca: %s: certificate %d is one of a server, signed by %q; list the certificate of that authority", path, n, cert.Issuer.String())
		}
		a.Certificates = append(a.Certificates, cert)
		text.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes}))
		if text.Len() > maxAuthorities {
			return Authorities{}, invalid("egress-ca: %s: the certificates have more than %d bytes; boxes trust public authorities anyway, so list your own only", path, maxAuthorities)
		}
	}
	if len(a.Certificates) == 0 {
		return Authorities{}, invalid("egress-ca: %s has no certificate in PEM (-----BEGIN CERTIFICATE-----); convert one in DER with: openssl x509 -inform der -in FILE -out NEW", path)
	}
	a.PEM = text.String()
	return a, nil
}
