package mcpcli

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/consent"
)

// TestTrustOf_Changed: programs that may not use a server learn whether its user has never approved
// it or it has changed since.
func TestTrustOf_Changed(t *testing.T) {
	dir := t.TempDir()
	script, config := filepath.Join(dir, "run.sh"), filepath.Join(dir, "mcp.json")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write(script, "#!/bin/sh\n")
	write(config, `{"mcpServers": {"s": {"command": "`+script+`"}}}`)
	servers, err := LoadCodeServers(Env{
		Lookup: os.LookupEnv, Environ: os.Environ,
		StateDir: func() (string, error) { return filepath.Join(dir, "state"), nil },
	}, config, "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	def := servers.cfg.Servers[0]
	check := func(when string, trust mcpkit.Trust, changed bool) {
		t.Helper()
		got, err := servers.a.trustOf(t.Context(), def)
		if refused := errors.Is(err, mcpkit.ErrUntrusted); got != trust || refused != (trust == mcpkit.Untrusted) || errors.Is(err, mcpkit.ErrChanged) != changed {
			t.Errorf("%s: trust %v, error %v", when, got, err)
		}
	}
	check("never approved", mcpkit.Untrusted, false)
	store, err := servers.a.consents()
	if err != nil {
		t.Fatal(err)
	}
	q, err := servers.a.question(t.Context(), store, def)
	if err == nil {
		q.Files, err = servers.a.files(t.Context(), def)
	}
	if err == nil {
		err = store.Grant(t.Context(), q.Definition)
	}
	if err != nil {
		t.Fatal(err)
	}
	check("approved", mcpkit.Trusted, false)
	write(script, "#!/bin/sh\necho changed\n")
	check("its file has changed", mcpkit.Untrusted, true)
}

// The text about files speaks of files only if it has listed some.
func TestDescribeFiles(t *testing.T) {
	for name, tt := range map[string]struct {
		files []consent.File
		want  string
	}{
		"none":    {nil, "The program, and what it loads"},
		"missing": {[]consent.File{{Path: "/p/.npmrc"}}, "If a local file appears"},
		"present": {[]consent.File{{Path: "/p/a.js", SHA256: strings.Repeat("0", 64)}, {Path: "/p/.npmrc"}}, "If these files change"},
	} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			new(app).describeFiles(&b, true, tt.files)
			if got := b.String(); !strings.Contains(got, tt.want) || strings.Contains(got, "these files") != strings.Contains(got, "  file ") {
				t.Errorf("got\n%s", got)
			}
		})
	}
}
