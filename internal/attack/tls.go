//go:build linux

package attack

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"time"
)

// newCertificate writes a certificate for 127.0.0.1, which signs itself, and its key. It
// returns the configuration of clients that trust it.
func newCertificate(cert, key string) (*tls.Config, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		return nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	return &tls.Config{RootCAs: roots}, errors.Join(
		os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600))
}

func (s *server) scheme() string {
	if s.secure != nil {
		return "https"
	}
	return "http"
}

// dial opens a connection to the server, with TLS if it has a certificate, for the first
// of the protocols that the server speaks.
func (s *server) dial(ctx context.Context, protocols ...string) (net.Conn, error) {
	d := net.Dialer{Timeout: requestTimeout}
	if s.secure == nil {
		return d.DialContext(ctx, "tcp", s.addr)
	}
	secure := s.secure.Clone()
	secure.NextProtos = protocols
	return (&tls.Dialer{NetDialer: &d, Config: secure}).DialContext(ctx, "tcp", s.addr)
}
