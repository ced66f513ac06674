package secret

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/egress"
	"github.com/glovebox-dev/glovebox/internal/egress/policy"
)

const (
	apiHost  = "api.example.com"
	gitHost  = "git.example.com"
	apiValue = "ghp_0123456789abcdefghijABCDEFGHIJ456789"
	gitValue = "glpat-KKKKKKKKKKKKKKKK+/77"
)

var (
	masterKey = bytes.Repeat([]byte{9}, keySize)
	box       = egress.Box{Owner: "token alice", ID: "box1"}
)

// world is an Interceptor, and a host with TLS on loopback.
type world struct {
	t     *testing.T
	i     *Interceptor
	host  *httptest.Server
	mu    sync.Mutex
	event []Event
	notes []string
	dials int

	dialing func() // called before each connection to the host; nil: nothing
}

// writeSecret writes a value to a file of mode 0600.
func writeSecret(t *testing.T, value string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "value")
	if err := os.WriteFile(path, []byte(value+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func definitions(t *testing.T) []Definition {
	return []Definition{
		{Name: "api", Owners: []string{"token alice"}, Hosts: []string{apiHost}, Headers: []string{"Authorization", "X-Api-Key"}, As: "API_TOKEN", File: writeSecret(t, apiValue)},
		{Name: "git", Owners: []string{"token alice"}, Hosts: []string{gitHost}, As: "GIT_TOKEN", File: writeSecret(t, gitValue)},
	}
}

// newWorld starts a host that serves h under apiHost and gitHost.
func newWorld(t *testing.T, h http.Handler) *world {
	t.Helper()
	s, err := Load(definitions(t))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, host: httptest.NewUnstartedServer(h)}
	cert, roots := hostCertificate(t, apiHost, gitHost)
	w.host.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	w.host.EnableHTTP2 = true
	w.host.Config.ErrorLog = log.New(io.Discard, "", 0)
	w.host.StartTLS()
	t.Cleanup(w.host.Close)
	w.i = New(Options{Key: masterKey, Roots: roots, Report: func(e Event) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.event = append(w.event, e)
	}}, s)
	w.i.lines = newLines(1000) // tests count events
	return w
}

func hostCertificate(t *testing.T, names ...string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots
}

// connect returns a connection of a program in the box to a host, as the gate makes one.
func (w *world) connect(b egress.Box, host string, port uint16) net.Conn {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	defer l.Close()
	guest, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	ours, err := l.Accept()
	if err != nil {
		w.t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := w.i.Serve(context.Background(), b, host, port, ours, w.dial, w.note); err != nil {
			w.t.Errorf("Serve: %v", err)
		}
	}()
	w.t.Cleanup(func() {
		guest.Close()
		select {
		case <-served:
		case <-time.After(10 * time.Second):
			w.t.Error("Serve did not return after the program left")
		}
	})
	return guest
}

func (w *world) dial(ctx context.Context) (net.Conn, error) {
	w.mu.Lock()
	w.dials++
	w.mu.Unlock()
	if w.dialing != nil {
		w.dialing()
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", w.host.Listener.Addr().String())
}

// tlsConfig trusts the authority of the box only.
func (w *world) tlsConfig(b egress.Box, host string, protocols ...string) *tls.Config {
	w.t.Helper()
	_, ca := w.i.Settings(b)
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(ca)) {
		w.t.Fatalf("Settings returned the certificate %q", ca)
	}
	return &tls.Config{RootCAs: roots, ServerName: host, NextProtos: protocols}
}

// client returns an HTTP client in the box for a host.
func (w *world) client(b egress.Box, host string, http2 bool) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!http2)
	protocols.SetHTTP2(http2)
	tr := &http.Transport{
		TLSClientConfig: w.tlsConfig(b, host), DisableCompression: true, Protocols: protocols,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return w.connect(b, host, 443), nil },
	}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func (w *world) placeholder(b egress.Box, variable string) string {
	w.t.Helper()
	env, _ := w.i.Settings(b)
	if env[variable] == "" {
		w.t.Fatalf("Settings has no %s: %v", variable, env)
	}
	return env[variable]
}

func (w *world) note(_ policy.Reason, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notes = append(w.notes, text)
}

// noted returns the latest note; "" if there is none.
func (w *world) noted() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.notes) == 0 {
		return ""
	}
	return w.notes[len(w.notes)-1]
}

// events returns those of a kind so far.
func (w *world) events(kind Kind) []Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.event), func(e Event) bool { return e.Kind != kind })
}

// bothVersions runs a test over HTTP/1.1 and HTTP/2.
func bothVersions(t *testing.T, h http.Handler, f func(t *testing.T, w *world, c *http.Client)) {
	for _, http2 := range []bool{false, true} {
		name := "HTTP1"
		if http2 {
			name = "HTTP2"
		}
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, h)
			f(t, w, w.client(box, apiHost, http2))
		})
	}
}

func do(t *testing.T, c *http.Client, method, url string, header http.Header, body io.Reader) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		req.Header = header
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: read the body: %v", method, url, err)
	}
	return res, string(b)
}

func get(t *testing.T, c *http.Client, url, authorization string) (*http.Response, string) {
	t.Helper()
	h := http.Header{}
	if authorization != "" {
		h.Set("Authorization", authorization)
	}
	return do(t, c, http.MethodGet, url, h, nil)
}

// checkClean fails if text has eight bytes of the value in a row.
func checkClean(t *testing.T, what, text string) {
	t.Helper()
	for _, value := range []string{apiValue, gitValue} {
		for at := 0; at+8 <= len(value); at++ {
			if strings.Contains(text, value[at:at+8]) {
				t.Fatalf("%s discloses %q: %.500q", what, value[at:at+8], text)
			}
		}
	}
}
