// Package authority makes the certificate authority of a box: the one that the programs
// in that box, and no others, trust for a few names.
//
// The key of an authority is derived from a master key and the identity of the box, so
// it is never stored, and a box that another server resumes keeps its authority.
package authority

import (
	"container/list"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// lifetime is how long a certificate of an authority is valid: longer than any
	// program in a box remembers one. It is worth nothing outside the box.
	lifetime = 365 * 24 * time.Hour
	// leafLifetime is how long a certificate of a host is valid.
	leafLifetime = 24 * time.Hour
	// leafMargin is how long before its end a certificate of a host is replaced.
	leafMargin = time.Hour
	// skew is how far the clock of a box may be behind.
	skew = time.Hour
	// maxLeaves bounds the certificates of hosts that an authority keeps.
	maxLeaves = 64
	// MaxNames bounds the names of an authority.
	MaxNames = 128
)

// Authority signs certificates for its names. Its methods may be called concurrently.
type Authority struct {
	names []string
	key   *ecdsa.PrivateKey
	cert  *x509.Certificate
	pem   string
	now   func() time.Time

	mu      sync.Mutex
	leafKey *ecdsa.PrivateKey
	leaves  map[string]*list.Element // of *leaf, guarded by mu
	recent  list.List                // guarded by mu; least recently used last
}

type leaf struct {
	name string
	cert *tls.Certificate
}

// New returns the authority of a box for exactly the names, which are DNS names in lower
// case. The same master key and box give the same key. box is any non-empty string and
// appears in the certificate only as part of a hash.
func New(master []byte, box string, names []string) (*Authority, error) {
	return newAt(master, box, names, time.Now)
}

func newAt(master []byte, box string, names []string, now func() time.Time) (*Authority, error) {
	if len(master) < 32 || box == "" {
		return nil, fmt.Errorf("make the authority of box %q: the master key has %d bytes, want 32 or more, and the box a name", box, len(master))
	}
	if len(names) == 0 || len(names) > MaxNames {
		return nil, fmt.Errorf("make the authority of box %q: %d names, want 1 to %d", box, len(names), MaxNames)
	}
	key, err := deriveKey(master, box)
	if err != nil {
		return nil, fmt.Errorf("make the authority of box %q: %w", box, err)
	}
	a := &Authority{names: slices.Clone(names), key: key, now: now, leaves: make(map[string]*list.Element)}
	sum := sha256.Sum256([]byte(box))
	all4, all6 := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	template := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: "Glovebox box " + hex.EncodeToString(sum[:6])},
		NotBefore:             now().Add(-skew),
		NotAfter:              now().Add(lifetime),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
		PermittedDNSDomainsCritical: true,
		PermittedDNSDomains:         a.names,
		ExcludedIPRanges:            []*net.IPNet{all4, all6},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make the authority of box %q: %w", box, err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("make the authority of box %q: %w", box, err)
	}
	a.pem = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return a, nil
}

// deriveKey returns the key of a box.
func deriveKey(master []byte, box string) (*ecdsa.PrivateKey, error) {
	for try := range 8 { // a scalar is out of range once in 2^32
		scalar, err := hkdf.Key(sha256.New, master, nil, fmt.Sprintf("glovebox authority 1\x00%d\x00%s", try, box), 32)
		if err != nil {
			return nil, fmt.Errorf("derive the key: %w", err)
		}
		if key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), scalar); err == nil {
			return key, nil
		}
	}
	return nil, fmt.Errorf("derive the key: no valid scalar")
}

// serial returns a random serial number of 127 bits.
func serial() *big.Int {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[0] = b[0]&0x7f | 0x40
	return new(big.Int).SetBytes(b[:])
}

// PEM returns the certificate of the authority.
func (a *Authority) PEM() string { return a.pem }

// Names returns the names that the authority was made for. The caller must not change
// them.
func (a *Authority) Names() []string { return a.names }

// Fresh reports whether the certificate of the authority is valid for a good while.
func (a *Authority) Fresh() bool { return a.now().Add(lifetime / 2).Before(a.cert.NotAfter) }

// Leaf returns a certificate for name, which must be one of the authority's names. The
// caller must not change it.
func (a *Authority) Leaf(name string) (*tls.Certificate, error) {
	name = strings.ToLower(name)
	if !slices.Contains(a.names, name) {
		return nil, fmt.Errorf("sign a certificate for %.255q: not a name of this authority", name)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if e, ok := a.leaves[name]; ok {
		if l := e.Value.(*leaf); a.now().Add(leafMargin).Before(l.cert.Leaf.NotAfter) {
			a.recent.MoveToFront(e)
			return l.cert, nil
		}
		a.removeLocked(e)
	}
	cert, err := a.signLocked(name)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate for %q: %w", name, err)
	}
	a.leaves[name] = a.recent.PushFront(&leaf{name, cert})
	for a.recent.Len() > maxLeaves {
		a.removeLocked(a.recent.Back())
	}
	return cert, nil
}

func (a *Authority) removeLocked(e *list.Element) {
	delete(a.leaves, a.recent.Remove(e).(*leaf).name)
}

func (a *Authority) signLocked(name string) (*tls.Certificate, error) {
	if a.leafKey == nil {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		a.leafKey = key
	}
	template := &x509.Certificate{
		SerialNumber: serial(),
		// No common name: it may be too short for the host's name, and nothing reads it.
		Subject:     pkix.Name{Organization: []string{"Glovebox"}},
		NotBefore:   a.now().Add(-skew),
		NotAfter:    a.now().Add(leafLifetime),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{name},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &a.leafKey.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.leafKey, Leaf: parsed}, nil
}
