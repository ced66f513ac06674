package cli

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/polltest"
)

const secretFile = `[default]
allow = ["api.example.com"]
[secret.api]
owners = ["token alice"]
hosts = ["api.example.com"]
as = "API_TOKEN"
file = "value"
`

func TestNetworks_Secrets(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("net.toml", secretFile, 0o600)
	write("value", "gh_zq9zq9zq9zq9\n", 0o644)
	cfg := &config.Config{NetworkFile: filepath.Join(dir, "net.toml"), StateDir: filepath.Join(dir, "state")}
	_, err := openNetworks(cfg, slog.New(slog.DiscardHandler), nil)
	var bad *config.Error
	if !errors.As(err, &bad) || !strings.Contains(err.Error(), "chmod 600 "+filepath.Join(dir, "value")) || strings.Contains(err.Error(), "zq9") {
		t.Fatalf("a value that others can read: %v, want a *config.Error with the remedy and without the value", err)
	}
	if err := os.Chmod(filepath.Join(dir, "value"), 0o600); err != nil {
		t.Fatal(err)
	}
	n, err := openNetworks(cfg, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer n.close()
	alice := n.Open("token alice", "box1", "", nil)
	defer alice.Close()
	settings := alice.Settings()
	if !strings.HasPrefix(settings.Env["API_TOKEN"], "gbx-secret-api-") || settings.CA == "" {
		t.Errorf("the settings of the owner's box are %+v, want a placeholder and a certificate", settings)
	}
	bob := n.Open("token bob", "box2", "", nil)
	defer bob.Close()
	if s := bob.Settings(); len(s.Env) != 0 || s.CA != "" {
		t.Errorf("the settings of another owner's box are %+v, want neither", s)
	}

	if d := n.described("token alice"); !slices.Equal(d.Secrets, []string{"API_TOKEN (Authorization at https://api.example.com)"}) {
		t.Errorf("models of the owner read of the secrets %q", d.Secrets)
	}
	if d := n.described("token bob"); len(d.Allowed) == 0 || len(d.Secrets) != 0 {
		t.Errorf("models of another owner read %+v, want a network without secrets", d)
	}

	// Hosts that the policy does not allow are not named.
	write("net.toml", strings.Replace(secretFile, `hosts`, `hosts = ["api.example.com", "denied.example.net"] #`, 1), 0o600)
	if err := n.reload(cfg); err != nil {
		t.Fatal(err)
	}
	if d := n.described("token alice"); !slices.Equal(d.Secrets, []string{"API_TOKEN (Authorization at https://api.example.com)"}) {
		t.Errorf("with a host that the policy does not allow, models read %q", d.Secrets)
	}
	write("net.toml", secretFile, 0o600)

	// A faulty file changes nothing; one without secrets removes them.
	write("net.toml", strings.Replace(secretFile, "api.example.com\"]\nas", "*.example.com\"]\nas", 1), 0o600)
	if err := n.reload(cfg); err == nil || !strings.Contains(err.Error(), "pattern") || alice.Settings().CA == "" {
		t.Errorf("reload of a pattern: %v, want an error and the secrets from before", err)
	}
	write("net.toml", "[default]\nallow = [\"api.example.com\"]\n", 0o600)
	if err := n.reload(cfg); err != nil || alice.Settings().CA != "" {
		t.Errorf("reload without secrets: %v, want none left", err)
	}
	select {
	case <-alice.Changed():
	default:
		t.Error("the box was not told to take over its settings again")
	}
}

// TestNetworks_SecretFileRotates rewrites the file of a secret under a running server, which
// uses the new value, and spoils it, which the server logs, and withdraws the secret.
func TestNetworks_SecretFileRotates(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("net.toml", secretFile)
	write("value", "gh_zq9zq9zq9zq9\n")
	var log polltest.Buffer
	cfg := &config.Config{NetworkFile: filepath.Join(dir, "net.toml"), StateDir: filepath.Join(dir, "state")}
	n, err := openNetworks(cfg, slog.New(slog.NewTextHandler(&log, nil)), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer n.close()
	ctx, cancel := context.WithCancel(t.Context())
	wait := n.watch(ctx, func() *config.Config { return cfg })
	defer func() { cancel(); wait() }()
	awaited := func(what, text string) {
		t.Helper()
		if !polltest.Soon(30*time.Second, func() bool { return strings.Contains(log.String(), text) }) {
			t.Fatalf("%s: the log has no %q:\n%s", what, text, log.String())
		}
	}
	write("value", "gh_zq9zq9zq9-rotated\n")
	awaited("after a rotation", `msg="the value of a secret changed" secret=api`)
	write("value", "")
	awaited("with an empty file", `level=WARN msg="a secret keeps the value from before" err="secret \"api\": `)
	// A mistake in the network file does not keep the value.
	write("net.toml", "[default]\nallow = 5\n")
	awaited("with a bad network file", "level=ERROR msg=\"network policies and definitions of secrets unchanged: a file is invalid\"")
	write("value", "gh_zq9zq9zq9-again\n")
	if !polltest.Soon(30*time.Second, func() bool { return strings.Count(log.String(), "the value of a secret changed") == 2 }) {
		t.Errorf("after a rotation beside a bad network file, the log has no change of the value:\n%s", log.String())
	}
	// Nor does one in a definition.
	write("net.toml", strings.Replace(secretFile, "api.example.com\"]\nas", "*.example.com\"]\nas", 1))
	awaited("with a bad definition", "is a pattern")
	write("value", "gh_zq9zq9zq9-thrice\n")
	if !polltest.Soon(30*time.Second, func() bool { return strings.Count(log.String(), "the value of a secret changed") == 3 }) {
		t.Errorf("after a rotation beside a bad definition, the log has no change of the value:\n%s", log.String())
	}
	write("net.toml", "[default]\nallow = [\"api.example.com\"]\n")
	awaited("after the removal of its section", `level=INFO msg="a secret was withdrawn" secret=api`)
	if strings.Contains(log.String(), "zq9") {
		t.Errorf("the log has a value:\n%s", log.String())
	}
}

// TestSecrets_WithoutHTTPS names the secrets whose hosts the policy lets boxes reach over plain
// HTTP only, or not at all.
func TestSecrets_WithoutHTTPS(t *testing.T) {
	for _, tc := range []struct{ policy, secret, want string }{
		{`allow = ["a.example.org"]`, ``, ""},
		{`allow = ["*.example.org"]`, ``, ""},
		{`allow = ["a.example.org:8443"]`, ``, ""},
		{`allow = ["http://a.example.org"]`, ``, "the policy of the local user does not allow https to it; add https://a.example.org to allow"},
		{`allow = ["b.example.org"]`, ``, "the secret one does not work at a.example.org: "},
		{`allow = ["a.example.org"]`, `owners = ["token bob"]`, "the policy of token bob "},
		{`allow = ["b.example.org"]`, `owners = ["*"]`, "the policy of any owner "},
		{`allow = ["a.example.org"]`, `owners = ["*"]`, ""},
	} {
		path := filepath.Join(t.TempDir(), "net.toml")
		text := "[default]\n" + tc.policy + "\n[owner.\"token bob\"]\nallow = []\n[secret.one]\nhosts = [\"a.example.org\"]\nenv = \"X\"\n" + tc.secret + "\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		n, err := (&config.Config{NetworkFile: path}).ReadNetwork()
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(secretsWithoutHTTPS(n), "\n")
		if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s with %q: got %q, want %q", tc.policy, tc.secret, got, tc.want)
		}
	}
}
