package kernel

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tlsServer returns a server with an authority of its own, and its certificate in PEM.
func tlsServer(t *testing.T) (url, ca string) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

// network is the message for a kernel.
func network(t *testing.T, env map[string]string, unset []string, ca string) []byte {
	t.Helper()
	b, err := json.Marshal(map[string]any{"env": env, "unset": unset, "ca": ca})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestNetworkPython(t *testing.T) {
	url, ca := tlsServer(t)
	bundle := filepath.Join(t.TempDir(), "bundle.pem")
	for _, python := range pythons(t) {
		if err := os.WriteFile(bundle, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		k := start(t, Python, python)
		fetch := fmt.Sprintf("import os, ssl, urllib.request\nos.environ['SSL_CERT_FILE'] = %q\nurllib.request.urlopen(%q).read().decode()", bundle, url)
		if res, _ := run(t, k, fetch); res.OK || !strings.Contains(res.Error.Value, "CERTIFICATE_VERIFY_FAILED") {
			t.Errorf("%s: before the certificate: %+v, want that it is not trusted", python, res)
		}
		if err := os.WriteFile(bundle, []byte(ca), 0o600); err != nil { // as the agent does
			t.Fatal(err)
		}
		if res, rec := run(t, k, fetch); !res.OK || rec.value() != "'hello'" {
			t.Errorf("%s: with the certificate: %+v, %s", python, res, rec.value())
		}
		for _, step := range []struct {
			message []byte
			want    string
		}{
			{network(t, map[string]string{"API_TOKEN": "one", "OTHER": "x"}, nil, ""), "('one', 'x')"},
			{nil, "('one', 'x')"},
			{network(t, map[string]string{"API_TOKEN": "two"}, []string{"OTHER", "NEVER"}, ""), "('two', None)"},
			{[]byte("{"), "('two', None)"},
		} {
			res, rec := runWith(t, k, Request{Code: []byte("import os\nos.environ.get('API_TOKEN'), os.environ.get('OTHER')"), Network: step.message})
			if !res.OK || rec.value() != step.want {
				t.Errorf("%s: after %s: %+v, %s, want %s", python, step.message, res, rec.value(), step.want)
			}
		}
	}
}

func TestNetworkNode(t *testing.T) {
	url, ca := tlsServer(t)
	for _, node := range nodes(t) {
		k := start(t, JavaScript, node)
		fetch := func(message []byte, code string) string {
			res, rec := runWith(t, k, Request{Code: []byte(code), Network: message})
			if !res.OK {
				return fmt.Sprint(res.Error)
			}
			return rec.value()
		}
		get := fmt.Sprintf("await fetch(%q).then((r) => r.text(), (e) => String(e.cause && e.cause.code || e))", url)
		plain := fmt.Sprintf("await new Promise((done) => require('https').get(%q, (r) => r.on('data', (d) => done(String(d)))).on('error', (e) => done(e.code)))", url)
		for _, code := range []string{get, plain} {
			if got := fetch(nil, code); strings.Contains(got, "hello") {
				t.Fatalf("%s: before the certificate: %s, want that it is not trusted", node, got)
			}
		}
		_, other := tlsServer(t)
		message := network(t, map[string]string{"API_TOKEN": "one"}, nil, other+ca)
		for _, code := range []string{get, plain} {
			if got := fetch(message, code); got != "'hello'" {
				t.Errorf("%s: with the certificate: %s = %s, want 'hello'", node, code, got)
			}
		}
		if got := fetch(network(t, map[string]string{"OTHER": "x"}, []string{"API_TOKEN"}, ""), "[process.env.API_TOKEN, process.env.OTHER].join()"); got != "',x'" {
			t.Errorf("%s: the variables are %s, want ',x'", node, got)
		}
	}
}
