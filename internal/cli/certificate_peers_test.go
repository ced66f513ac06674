//go:build linux

package cli

import (
	"crypto/tls"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
)

// TestCertificateOthers_OnlyTheSameCertificate: a server sends tokens of clients to others, and
// knows them by the certificate that they have in common.
func TestCertificateOthers_OnlyTheSameCertificate(t *testing.T) {
	dir := t.TempDir()
	open := func(name string) *certificate {
		cert, key := filepath.Join(dir, name), filepath.Join(dir, name+".key")
		writeCertificate(t, cert, key, name)
		c, err := openCertificate(cert, key, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.close)
		return c
	}
	ours, stranger := open("ours"), open("stranger")
	for _, c := range []struct {
		server *certificate
		ok     bool
	}{{ours, true}, {stranger, false}} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if far, err := ln.Accept(); err == nil {
				_ = tls.Server(far, c.server.config()).Handshake() // the client reports the error
				far.Close()
			}
		}()
		conn, err := tls.Dial("tcp", ln.Addr().String(), ours.others())
		if (err == nil) != c.ok {
			t.Errorf("with the same certificate %t: %v", c.ok, err)
		}
		if err == nil {
			conn.Close()
		}
		<-ended
		ln.Close()
	}
	if (&security{}).peersTLS() != nil {
		t.Error("servers without TLS connect to each other with it")
	}
}
