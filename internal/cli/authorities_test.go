package cli

import (
	"bytes"
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/egress/egresstest"
)

// The authorities of egress-ca are in the settings of every box, beside the authority of the
// box, and verify the hosts of secrets.
func TestNetworks_Authorities(t *testing.T) {
	ca, dir := egresstest.NewCA(t), t.TempDir()
	for name, text := range map[string]string{"net.toml": secretFile, "value": "gh_zq9zq9zq9zq9\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	authority, err := os.ReadFile(ca.File)
	if err != nil {
		t.Fatal(err)
	}
	cfg := &config.Config{NetworkFile: filepath.Join(dir, "net.toml"), StateDir: filepath.Join(dir, "state"), EgressCA: ca.File}
	var log bytes.Buffer
	n, err := openNetworks(cfg, slog.New(slog.NewTextHandler(&log, nil)), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer n.close()
	for owner, certificates := range map[string]int{"token alice": 2, "token bob": 1} {
		opened := n.Open(box.Owner(owner), "box", "", nil)
		defer opened.Close()
		settings := opened.Settings()
		if got := strings.Count(settings.CA, "BEGIN CERTIFICATE"); got != certificates || !strings.Contains(settings.CA, string(authority)) || settings.Check() != nil {
			t.Errorf("the box of %s: %d certificates, want %d and that of the operator's authority", owner, got, certificates)
		}
	}
	if log.Len() > 0 {
		t.Errorf("a valid authority was logged: %s", log.String())
	}

	read, err := cfg.ReadAuthorities()
	if err != nil {
		t.Fatal(err)
	}
	roots, err := hostRoots(read)
	if err != nil {
		t.Fatal(err)
	}
	server, err := tls.Listen("tcp", "127.0.0.1:0", ca.Config("api.example.com"))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		for c, err := server.Accept(); err == nil; c, err = server.Accept() {
			_ = c.(*tls.Conn).Handshake() // the client checks it
			c.Close()
		}
	}()
	for _, trusted := range []bool{true, false} {
		pool := roots
		if !trusted {
			if pool, err = hostRoots(config.Authorities{}); pool != nil || err != nil {
				t.Fatalf("without authorities: %v, %v, want those of the machine", pool, err)
			}
		}
		raw, err := net.Dial("tcp", server.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		err = tls.Client(raw, &tls.Config{ServerName: "api.example.com", RootCAs: pool}).Handshake()
		raw.Close()
		if (err == nil) != trusted {
			t.Errorf("a host of the authority, trusted %t: %v", trusted, err)
		}
	}
}
