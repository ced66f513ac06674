//go:build linux

package attack

import (
	"compress/gzip"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// echo answers everything to everybody with what it was sent, and hands the stream of a
// call to whoever knows its id.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body) // an error shows in the answer
	w.Header().Set("Mcp-Session-Id", "1")
	if r.Header.Get("Mcp-Session-Id") == "" && r.Method == http.MethodPost {
		w.Write(body) // the client may have left
		return
	}
	calls.Lock()
	defer calls.Unlock()
	if r.Method == http.MethodPost {
		calls.last = body
		io.WriteString(w, "id: e_0\n\n")
		return
	}
	w.Write(calls.last)
}

// calls is the last call that echo was sent.
var calls struct {
	sync.Mutex
	last []byte
}

// remembers answers each request with all that were sent to it.
func remembers() http.HandlerFunc {
	var mu sync.Mutex
	var all []byte
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // an error shows in the answer
		mu.Lock()
		defer mu.Unlock()
		all = append(all, body...)
		w.Write(all) // the client may have left
	}
}

// starts starts the program that the URL names, as the proxy of the MCP Inspector did.
func starts(w http.ResponseWriter, r *http.Request) {
	if command := r.FormValue("command"); command != "" {
		exec.Command(command, r.FormValue("args")).Run() // an error shows in what it leaves
	}
	echo(w, r)
}

// expands answers to what a compressed body contains.
func expands(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(r.Body)
		if err == nil {
			_, err = io.Copy(io.Discard, z)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	echo(w, r)
}

// overTLS serves HTTP/2 and HTTP/1.1 without limits of time.
func overTLS(t *testing.T, h http.HandlerFunc) (addr string, client *tls.Config) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.CloseClientConnections)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return s.Listener.Addr().String(), &tls.Config{RootCAs: roots}
}

// swallows is a server that reads connections of HTTP/2 for ever, and answers over HTTP/1.1
// and to the first request over HTTP/2.
func swallows(t *testing.T) (addr string, client *tls.Config) {
	t.Helper()
	addr, client = overTLS(t, echo)
	behind, secure := addr, client.Clone()
	cert := httptest.NewUnstartedServer(nil)
	cert.StartTLS()
	defer cert.Close()
	roots := x509.NewCertPool()
	roots.AddCert(cert.Certificate())
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: cert.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	var answered atomic.Bool // a connection over HTTP/2
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				c := conn.(*tls.Conn)
				if c.Handshake() != nil {
					return
				}
				protocol := c.ConnectionState().NegotiatedProtocol
				if protocol == "h2" && answered.Swap(true) {
					io.Copy(io.Discard, c)
					return
				}
				to := secure.Clone()
				if protocol != "" {
					to.NextProtos = []string{protocol}
				}
				d, err := tls.Dial("tcp", behind, to)
				if err != nil {
					return
				}
				defer d.Close()
				wg.Go(func() { io.Copy(d, c); d.Close() })
				io.Copy(c, d)
			})
		}
	})
	return l.Addr().String(), &tls.Config{RootCAs: roots}
}

// queue answers one request after the other, each after a while.
func queue() http.HandlerFunc {
	var mu sync.Mutex
	return func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.ProtoMajor == 2 {
			time.Sleep(4 * time.Millisecond)
		}
		echo(w, r)
	}
}

// waits answers one request after the other, and each when the answer is with the client.
func waits() http.HandlerFunc {
	var mu sync.Mutex
	return func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		echo(w, r)
		w.(http.Flusher).Flush()
	}
}

// Attacks over HTTP succeed against naive servers, and the judge notices.
func TestControl_HTTP(t *testing.T) {
	serving := func(h http.HandlerFunc) func(*testing.T) (string, *tls.Config) {
		return func(t *testing.T) (string, *tls.Config) {
			s := httptest.NewServer(h)
			t.Cleanup(s.CloseClientConnections)
			return s.Listener.Addr().String(), nil
		}
	}
	plain := serving(echo)
	withTLS := func(h func() http.HandlerFunc) func(*testing.T) (string, *tls.Config) {
		return func(t *testing.T) (string, *tls.Config) { return overTLS(t, h()) }
	}
	for id, c := range map[string]struct {
		start func(*testing.T) (string, *tls.Config)
		want  string
	}{
		"http/smuggling":            {plain, "is answered 2 times"},
		"http/stream-theft":         {plain, "contains the secret"},
		"http/rapid-reset":          {withTLS(queue), "is answered after"},
		"http/zero-window":          {withTLS(waits), "is answered after"},
		"http/slow-handshakes":      {withTLS(queue), "unfinished handshakes were closed"},
		"http/continuation-flood":   {swallows, "MiB of headers"},
		"http/program-in-url":       {serving(starts), "the attack created"},
		"files/tool-paths":          {serving(remembers()), "download_file reads"},
		"state/reused-id":           {serving(remembers()), "contains the secret"},
		"http/compressed-body":      {serving(expands), "is answered with 200"},
		"gateway/web-page":          {plain, "is answered with 200"},
		"mcp-client/login-listener": {plain, "is answered with 200"},
	} {
		t.Run(strings.ReplaceAll(id, "/", "-"), func(t *testing.T) {
			cfg := unisolated(t, nil)
			cfg.target, cfg.secure = c.start(t)
			r := run(t, cfg, id)
			expectBroken(t, r, c.want)
			// Such a result is not final: the machine may have been busy.
			if c.want == "is answered after" && !r.onlyLate {
				t.Errorf("%s: got %q, want only late answers", id, r.Broken)
			}
		})
	}
}
