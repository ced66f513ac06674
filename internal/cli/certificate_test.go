//go:build linux

package cli

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/server"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// writeCertificate makes a certificate for 127.0.0.1 that is its own root.
func writeCertificate(t *testing.T, cert, key, name string) *x509.Certificate {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// TestTLS: the server speaks HTTP/2 with streams, accepts TLS 1.2 and refuses older versions, and
// loads a new certificate without a restart.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	first := writeCertificate(t, certFile, keyFile, "first")
	cert, err := openCertificate(certFile, keyFile, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cert.close)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	sec := security{cert: cert}
	srv := server.New(server.Options{
		Tools:  tools.Deps{Boxes: box.New(box.DefaultConfig(), box.Parts{})},
		Limits: server.Limits{Heartbeat: 50 * time.Millisecond, Grace: time.Second},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ctx, sec.listener(ln)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})

	url := "https://" + ln.Addr().String() + "/mcp"
	client := func(trusted *x509.Certificate, most uint16) *http.Client {
		roots := x509.NewCertPool()
		roots.AddCert(trusted)
		tr := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS10, MaxVersion: most}}
		t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr}
	}
	c := client(first, 0)
	post := func(c *http.Client, session, body string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		if session != "" {
			req.Header.Set("Mcp-Session-Id", session)
		}
		return c.Do(req)
	}
	res, err := post(c, "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	session := res.Header.Get("Mcp-Session-Id")
	if res.ProtoMajor != 2 || res.StatusCode != 200 || session == "" || res.TLS.Version < tls.VersionTLS12 {
		t.Fatalf("got %s %s, %v", res.Proto, res.Status, res.Header)
	}
	listening, stop := context.WithCancel(t.Context())
	defer stop()
	req, err := http.NewRequestWithContext(listening, "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Mcp-Session-Id", session)
	stream, err := c.Do(req)
	if err != nil || stream.ProtoMajor != 2 || stream.StatusCode != 200 {
		t.Fatalf("stream: %v, %v", stream, err)
	}
	defer stream.Body.Close()
	lines := bufio.NewScanner(stream.Body)
	for beats := 0; beats < 3; {
		if !lines.Scan() {
			t.Fatalf("the stream ended: %v", lines.Err())
		}
		if strings.HasPrefix(lines.Text(), ": hb") {
			beats++
		}
	}
	// Beside the stream, on the same connection.
	res, err = post(c, session, `{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}`)
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("beside the stream: %v, %v", res, err)
	}
	body, err := io.ReadAll(res.Body)
	if _ = res.Body.Close(); err != nil || !strings.Contains(string(body), "execute_code") {
		t.Errorf("beside the stream: %v, %.200s", err, body)
	}
	if _, err := client(first, tls.VersionTLS11).Get(url); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.1: %v", err)
	}
	if res, err := post(client(first, tls.VersionTLS12), session, `{"jsonrpc":"2.0","id":3,"method":"ping"}`); err != nil {
		t.Errorf("TLS 1.2: %v", err)
	} else if res.Body.Close(); res.StatusCode != 200 || res.ProtoMajor != 2 || res.TLS.Version != tls.VersionTLS12 {
		t.Errorf("TLS 1.2: got %s %s over %s", res.Proto, res.Status, tls.VersionName(res.TLS.Version))
	}

	// The server loads a new pair, and ignores a new certificate without its key.
	other := writeCertificate(t, filepath.Join(dir, "other.pem"), filepath.Join(dir, "other.key"), "other")
	rename := func(from, to string) {
		t.Helper()
		if err := os.Rename(filepath.Join(dir, from), to); err != nil {
			t.Fatal(err)
		}
	}
	rename("other.pem", certFile)
	if err := cert.load(); err == nil {
		t.Error("a certificate without its key was read")
	}
	health := strings.TrimSuffix(url, "/mcp") + "/health"
	if res, err := client(first, 0).Get(health); err != nil {
		t.Errorf("after half a change: %v", err)
	} else {
		_ = res.Body.Close()
	}
	rename("other.key", keyFile)
	eventually(t, "the new certificate is served", time.Minute, func() bool {
		res, err := client(other, 0).Get(health)
		if err == nil {
			_ = res.Body.Close()
		}
		return err == nil
	})
}
