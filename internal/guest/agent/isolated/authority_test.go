//go:build linux && (amd64 || arm64) && !cgo

package isolated

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// secureStub is the host of a network with one server, which speaks TLS.
type secureStub struct{ to string }

func (s *secureStub) Lookup(context.Context, string) protocol.LookupResult {
	return protocol.LookupResult{Status: protocol.LookupOK, Ports: []int{443}, TTL: 60}
}

func (s *secureStub) Serve(_ context.Context, _ protocol.Dial, c net.Conn) error {
	defer c.Close()
	up, err := net.Dial("tcp", s.to)
	if err != nil {
		return err
	}
	defer up.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = io.Copy(up, c) // either end may leave
		up.Close()
	})
	_, _ = io.Copy(c, up)
	c.Close()
	wg.Wait()
	return nil
}

// Programs trust an authority of the machine, such as that of a company, and one of the
// settings, whatever they are written in, and also while the box has an authority of its own. So
// does JavaScript in an interpreter that started before the settings came.
func TestTrust_Authorities(t *testing.T) {
	if _, err := exec.LookPath("/usr/bin/node"); err != nil {
		t.Skip("node is not installed in /usr/bin")
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "trusted") }))
	server.Config.SetKeepAlivesEnabled(false)
	server.TLS = &tls.Config{SessionTicketsDisabled: true} // each request verifies the server
	server.StartTLS()
	defer server.Close()
	authority := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	for name, test := range map[string]struct {
		machine  string
		settings []protocol.Network
	}{
		"machine":  {authority, []protocol.Network{{On: true}, {On: true, CA: newAuthority(t)}, {On: true}}},
		"settings": {newAuthority(t), []protocol.Network{{On: true, CA: authority}, {On: true, CA: newAuthority(t) + authority}}},
	} {
		t.Run(name, func(t *testing.T) {
			root := networkedRoot(t)
			must(t, os.MkdirAll(root.Tree.Dir+"/etc/ssl/certs", 0o755))
			must(t, os.WriteFile(root.Tree.Dir+"/etc/ssl/certs/ca-certificates.crt", []byte(test.machine), 0o644))
			root.Key = "authority-of-" + name
			l := connTo(t, root, map[string]string{"javascript": "/usr/bin/node"})
			javascript(t, l, "") // starts the interpreter
			l.SetNetwork(&secureStub{server.Listener.Addr().String()})
			trusts(t, l, test.settings)
		})
	}
}

// trusts checks that programs trust https://example.com with each of the settings.
func trusts(t *testing.T, l *client.Conn, all []protocol.Network) {
	t.Helper()
	programs := map[string]string{
		"python": `python3 -c 'import urllib.request as r; print(r.build_opener(r.ProxyHandler({})).open("https://example.com/").read().decode())'`,
		"node":   `/usr/bin/node -e 'require("https").get("https://example.com/", r => r.on("data", d => console.log(String(d)))).on("error", e => { console.log(e.message); process.exit(1) })'`,
	}
	for _, settings := range all {
		must(t, l.Configure(t.Context(), settings))
		for name, line := range programs {
			if res, r := sh(t, l, line); res.Code != 0 || strings.TrimSpace(string(r.out)) != "trusted" {
				t.Errorf("%s, with %d bytes of authorities in the settings: exit code %d, %s %s", name, len(settings.CA), res.Code, r.out, r.err)
			}
		}
		for _, code := range []string{
			`await new Promise((done) => require("https").get("https://example.com/", (r) => r.on("data", (d) => done(String(d)))).on("error", (e) => done(e.message)))`,
			`await fetch("https://example.com/").then((r) => r.text(), (e) => String(e.cause))`,
		} {
			if got := javascript(t, l, "console.log("+code+")"); got != "trusted" {
				t.Errorf("the interpreter, with %d bytes of authorities in the settings: %s = %s", len(settings.CA), code, got)
			}
		}
	}
}

// javascript returns the output of code in the interpreter of JavaScript.
func javascript(t *testing.T, l *client.Conn, code string) string {
	t.Helper()
	var r record
	res, err := l.Run(t.Context(), protocol.Run{Kernel: "main", Language: "javascript", TimeoutMS: 30_000}, []byte(code), &r)
	must(t, err)
	if !res.OK {
		t.Errorf("%s: %+v, %s%s", code, res.Error, r.out, r.err)
	}
	return strings.TrimSpace(string(r.out))
}

// newAuthority returns the certificate of a new authority, which signs nothing here.
func newAuthority(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	must(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}
