//go:build linux

package cli

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/server/auth"
)

// TestCheckBind_Table checks the table of addresses and protections in docs/security.md.
func TestCheckBind_Table(t *testing.T) {
	tokens := func(c *config.Config) { c.TokensFile = "tokens.toml" }
	certificate := func(c *config.Config) { c.TLSCert, c.TLSKey = "cert.pem", "key.pem" }
	proxy := func(c *config.Config) { c.BehindProxy = true }
	insecure := func(c *config.Config) { c.InsecureBind = true }
	for _, c := range []struct {
		name   string
		change []func(*config.Config)
		want   string // in the refusal; "": the server starts
	}{
		{"nothing", nil, "without authentication"},
		{"TLS without tokens", []func(*config.Config){certificate}, "without authentication"},
		{"proxy without tokens", []func(*config.Config){proxy}, "without authentication"},
		{"tokens without TLS", []func(*config.Config){tokens}, "in clear text"},
		{"tokens and TLS", []func(*config.Config){tokens, certificate}, ""},
		{"tokens and proxy", []func(*config.Config){tokens, proxy}, ""},
		{"insecure", []func(*config.Config){insecure}, ""},
		{"insecure with tokens", []func(*config.Config){insecure, tokens}, ""},
	} {
		for _, host := range []string{"0.0.0.0", "::", "192.0.2.1", "boxes.example", "127.0.0.1.example", ""} {
			cfg := &config.Config{Host: host}
			for _, change := range c.change {
				change(cfg)
			}
			err := checkBind(cfg, "run code")
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s on %q: got %v, want %q", c.name, host, err, c.want)
			}
		}
	}
	for _, host := range []string{"127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"} {
		if err := checkBind(&config.Config{Host: host}, "run code"); err != nil {
			t.Errorf("loopback address %s without tokens: %v", host, err)
		}
	}
}

// TestOpenSecurity_AuditLog: audit lines go to the file of --audit-log as JSON, otherwise to
// the log if tokens are required, otherwise nowhere.
func TestOpenSecurity_AuditLog(t *testing.T) {
	dir := t.TempDir()
	tokens := addTokenFile(t, filepath.Join(dir, "tokens.toml"))
	file := filepath.Join(dir, "audit.log")
	for _, c := range []struct {
		name   string
		cfg    config.Config
		inFile bool
		inLog  bool
	}{
		{"no tokens", config.Config{}, false, false},
		{"tokens", config.Config{TokensFile: tokens}, false, true},
		{"tokens and file", config.Config{TokensFile: tokens, AuditLog: file}, true, false},
		{"file", config.Config{AuditLog: file}, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := os.RemoveAll(file); err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			s, err := openSecurity(&c.cfg, slog.New(slog.NewTextHandler(&log, nil)))
			if err != nil {
				t.Fatal(err)
			}
			defer s.close()
			if s.audit == nil {
				if c.inFile || c.inLog {
					t.Error("no audit log")
				}
				return
			}
			s.audit.Info("call", "tool", "execute_code")
			if got := strings.Contains(log.String(), "tool=execute_code"); got != c.inLog {
				t.Errorf("line in the log: got %t, want %t", got, c.inLog)
			}
			data, err := os.ReadFile(file)
			if !c.inFile {
				if err == nil {
					t.Errorf("the audit file exists: %s", data)
				}
				return
			}
			var line map[string]any
			if err != nil || json.Unmarshal(data, &line) != nil || line["tool"] != "execute_code" {
				t.Errorf("audit file: %v, %q", err, data)
			}
			if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("audit file: %v, %v, want the mode 0600", info, err)
			}
		})
	}
}

// TestOpenSecurity_ReloadsFiles: SIGHUP rereads the certificate and the tokens file, and
// reopens the audit log.
func TestOpenSecurity_ReloadsFiles(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	first := writeCertificate(t, cert, key, "first")
	path := filepath.Join(dir, "tokens.toml")
	cfg := &config.Config{TLSCert: cert, TLSKey: key, TokensFile: addTokenFile(t, path), AuditLog: filepath.Join(dir, "audit.log")}
	s, err := openSecurity(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	served := func() []byte { return s.cert.now.Load().Certificate[0] }
	if !bytes.Equal(served(), first.Raw) {
		t.Error("the certificate is not that of the file")
	}
	second := writeCertificate(t, cert, key, "second")
	secret, token, err := auth.NewToken("bob", time.Time{}, auth.Scopes{auth.Use})
	if err == nil {
		err = auth.AddToken(path, &token)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.audit.Info("before")
	if err := os.Rename(cfg.AuditLog, cfg.AuditLog+".old"); err != nil { // as logrotate does
		t.Fatal(err)
	}
	var names []string
	for _, f := range s.files {
		names = append(names, f.name)
		if err := f.reload(); err != nil {
			t.Errorf("reload %s: %v", f.name, err)
		}
	}
	if want := []string{"certificate", "tokens file", "audit log"}; !slices.Equal(names, want) {
		t.Fatalf("reloaded files: got %q, want %q", names, want)
	}
	if !bytes.Equal(served(), second.Raw) {
		t.Error("after a reload, the certificate is the earlier one")
	}
	if _, err := s.verifier.Verify(t.Context(), secret); err != nil {
		t.Errorf("after a reload, a new token: %v", err)
	}
	s.audit.Info("after")
	if b, err := os.ReadFile(cfg.AuditLog); err != nil || !bytes.Contains(b, []byte("after")) || bytes.Contains(b, []byte("before")) {
		t.Errorf("the audit log after a reload: got %q, %v, want the later line only", b, err)
	}
	if err := os.WriteFile(path, []byte("[[token]]\nname = \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.files[1].reload(); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("reload of an invalid tokens file: got %v, want the line", err)
	}
}

// addTokenFile adds a token to a tokens file and returns its path.
func addTokenFile(t *testing.T, path string) string {
	t.Helper()
	_, token, err := auth.NewToken("alice", time.Time{}, auth.Scopes{auth.Use})
	if err == nil {
		err = auth.AddToken(path, &token)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}
