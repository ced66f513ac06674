// Package packaging tests that what is here, and what the documentation gives to
// paste, fits the program.
package packaging

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.FromSlash(name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Each snippet of docs/clients.md is read as its client reads it, and leads to us.
func TestClientSnippets(t *testing.T) {
	doc := read(t, "../docs/clients.md")
	const secret = "s3cr3t"
	resolver := mcpjson.Resolver{
		Env: func(name string) (string, bool) { return secret, name == "GLOVEBOX_TOKEN" },
		Input: func(context.Context, mcpjson.Input) (string, error) {
			return secret, nil
		},
		Root: "/", Home: "/",
	}
	snippets := regexp.MustCompile("(?s)<!-- ([a-z0-9-]+) ([a-z]+) -->\n```(?:json|toml)\n(.*?)```").FindAllStringSubmatch(doc, -1)
	if n := strings.Count(doc, "```json") + strings.Count(doc, "```toml"); n != len(snippets) || n < 11 {
		t.Fatalf("%d of %d snippets say whose they are", len(snippets), n)
	}
	kinds := map[string]bool{}
	for _, s := range snippets {
		client, kind, text := s[1], s[2], s[3]
		t.Run(client+" "+kind, func(t *testing.T) {
			kinds[client+" "+kind] = true
			dialect, err := mcpjson.ParseDialect(client)
			if err != nil {
				t.Fatal(err)
			}
			c, err := mcpjson.Parse(dialect, []byte(text))
			// Placeholders in the client's configuration are the bridge's.
			if err != nil || len(c.Warnings) > 0 && kind != "bridge" {
				t.Fatalf("got %v, %v", err, c.Warnings)
			}
			ours := c.Server("glovebox")
			if ours == nil || len(c.Servers) != 1 {
				t.Fatalf("got the servers %v", c.Servers)
			}
			got, err := ours.Resolve(t.Context(), resolver)
			if err != nil {
				t.Fatal(err)
			}
			switch kind {
			case "stdio":
				if fmt.Sprint(got.Argv) != "[glovebox stdio]" {
					t.Errorf("got the command %q", got.Argv)
				}
			case "http":
				if got.URL != "http://127.0.0.1:8775/mcp" || len(got.Headers) != 1 ||
					got.Headers[0].Name != "Authorization" || got.Headers[0].Value != "Bearer "+secret {
					t.Errorf("got %s, %v", got.URL, got.Headers)
				}
			case "bridge":
				if !slices.Contains(got.Argv, "http://127.0.0.1:8775/mcp") {
					t.Errorf("got the command %q", got.Argv)
				}
			default:
				t.Errorf("unknown kind %q", kind)
			}
		})
	}
	for client, ways := range map[string][]string{
		"claude-code": {"stdio", "http"}, "claude-desktop": {"stdio", "bridge"}, "cursor": {"stdio", "http"},
		"vscode": {"stdio", "http"}, "codex": {"stdio", "http"},
	} {
		for _, kind := range ways {
			if !kinds[client+" "+kind] {
				t.Errorf("no snippet for %s, %s", client, kind)
			}
		}
	}
}

// The environment file sets, or shows commented out, existing settings only, with valid
// values.
func TestEnvironmentFile(t *testing.T) {
	known := map[string]config.Key{}
	for _, k := range config.Keys() {
		for _, name := range k.Env {
			known[name] = k
		}
	}
	volume := t.TempDir()
	set := map[string]string{"HOME": t.TempDir()}
	lines := regexp.MustCompile(`(?m)^(# )?([A-Z_]+)=(\S+)$`).FindAllStringSubmatch(read(t, "glovebox.env"), -1)
	if len(lines) < 10 {
		t.Fatalf("got only %d variables", len(lines))
	}
	for _, l := range lines {
		commented, name, value := l[1] != "", l[2], l[3]
		k, ok := known[name]
		switch {
		case name == config.FileEnv:
			continue
		case !ok:
			t.Errorf("there is no setting %s", name)
			continue
		case commented && k.Default != "" && k.Default != "auto" && k.Default != value:
			t.Errorf("%s: the file shows %s, the default is %s", name, value, k.Default)
		}
		set[name] = strings.ReplaceAll(value, "/srv/data", volume)
	}
	if _, notes, err := config.Load(nil, func(name string) (string, bool) { v, ok := set[name]; return v, ok }); err != nil || len(notes) > 0 {
		t.Errorf("got %v, %v", err, notes)
	}
}

// Variables that the documentation of deployment names are settings.
func TestDeploy_NamesSettings(t *testing.T) {
	flags, vars := map[string]bool{"--config": true}, map[string]bool{config.FileEnv: true}
	for _, k := range config.Keys() {
		flags["--"+k.Name] = true
		for _, name := range k.Env {
			vars[name] = true
		}
	}
	doc := read(t, "../docs/deploy.md")
	for _, name := range regexp.MustCompile(`\b(?:MCP|MSB|GLOVEBOX|OTEL)_[A-Z_]+[A-Z]`).FindAllString(doc+read(t, "Dockerfile"), -1) {
		if !vars[name] && name != "GLOVEBOX_GUEST_ARCH" { // of the build
			t.Errorf("there is no setting %s", name)
		}
	}
	for _, flag := range regexp.MustCompile("`(--[a-z-]+)[` ]").FindAllStringSubmatch(doc, -1) {
		if !flags[flag[1]] && !strings.Contains("--security-opt --cap-drop --memory --cpus --init --format --health-cmd", flag[1]) {
			t.Errorf("there is no flag %s", flag[1])
		}
	}
}

func TestDockerfile(t *testing.T) {
	text := read(t, "Dockerfile")
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, "../go.mod"))
	if image := regexp.MustCompile(`golang:(\d+\.\d+)`).FindStringSubmatch(text); image == nil || image[1] != version[1] {
		t.Errorf("the image %q is not of Go %s", image, version[1])
	}
	for _, want := range []string{
		"\nUSER 1000:1000\n", "\nENTRYPOINT [\"glovebox\"]\n", "\nEXPOSE 8775\n", "\nVOLUME /var/lib/glovebox\n", "CGO_ENABLED=0",
		"github.com/glovebox-dev/glovebox/internal/cli.version=", "go generate ./internal/guest/embed",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the Dockerfile has no %q", want)
		}
	}
	// A build fetches its two base images and nothing else that a registry has.
	if strings.Contains(text, "# syntax=") {
		t.Error("the Dockerfile asks for a frontend, where the one that is built in does")
	}
	// Nothing that the build needs is left out of its context.
	ignore := read(t, "../.dockerignore")
	for line := range strings.Lines(ignore) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") || strings.ContainsAny(line, "*") {
			continue
		}
		if tracked, err := exec.Command("git", "-C", "..", "ls-files", "--", line+"/*.go").Output(); err == nil && len(tracked) > 0 {
			t.Errorf(".dockerignore leaves out source: %s", tracked)
		}
	}
}

// The container's health check finds the server where the environment puts it.
func TestHealthCheck(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatal("no python3: scripts/setup test installs it")
	}
	var argv []string
	cmd := regexp.MustCompile(`(?m)^HEALTHCHECK .*\\\n +CMD (\[.*\])$`).FindStringSubmatch(read(t, "Dockerfile"))
	if cmd == nil || json.Unmarshal([]byte(cmd[1]), &argv) != nil || len(argv) != 3 {
		t.Fatalf("got the health check %q", cmd)
	}
	health := http.NewServeMux()
	health.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	for _, test := range []struct {
		name    string
		start   func(http.Handler) *httptest.Server
		handler http.Handler
		env     []string
		healthy bool
	}{
		{"HTTP", httptest.NewServer, health, nil, true},
		{"TLS", httptest.NewTLSServer, health, []string{"GLOVEBOX_TLS_CERT=/tls/cert.pem"}, true},
		{"not well", httptest.NewServer, http.NotFoundHandler(), nil, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := test.start(test.handler)
			defer server.Close()
			_, port, err := net.SplitHostPort(server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			check := exec.CommandContext(t.Context(), python, argv[1:]...)
			check.Env = append(test.env, "MCP_SERVER_PORT="+port)
			if out, err := check.CombinedOutput(); (err == nil) != test.healthy {
				t.Errorf("got %v: %s", err, out)
			}
		})
	}
}

// systemd itself finds nothing wrong with the unit.
func TestUnit(t *testing.T) {
	unit := read(t, "glovebox.service")
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		if os.Getenv("GLOVEBOX_TEST_COMPLETE") != "" {
			t.Fatal("no systemd-analyze: scripts/setup test installs systemd")
		}
		t.Skip("no systemd-analyze: scripts/setup test installs systemd")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "glovebox") // systemd checks that it is there
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "glovebox.service")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(unit, "/usr/local/bin/glovebox", program)), 0o644); err != nil {
		t.Fatal(err)
	}
	verify := exec.Command("systemd-analyze", "verify", path)
	if out, err := verify.CombinedOutput(); err != nil || bytes.Contains(out, []byte("glovebox.service:")) {
		t.Errorf("systemd-analyze verify: %v: %s", err, out)
	}
	out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--threshold=40", path).CombinedOutput()
	if err != nil && !bytes.Contains(out, []byte("nrecognized option")) { // before systemd 250
		t.Errorf("systemd-analyze security: %v: %s", err, out)
	}
}

// The script adds the six calls to a profile and leaves the rest as it is.
func TestContainerSeccomp(t *testing.T) {
	if _, err := exec.LookPath("jq"); err != nil {
		if os.Getenv("GLOVEBOX_TEST_COMPLETE") != "" {
			t.Fatal("no jq: scripts/setup test installs it")
		}
		t.Skip("no jq: scripts/setup test installs it")
	}
	profile := filepath.Join(t.TempDir(), "default.json")
	if err := os.WriteFile(profile, []byte(`{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["read"],"action":"SCMP_ACT_ALLOW"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("./container-seccomp", profile).Output()
	if err != nil {
		t.Fatal(err)
	}
	doc := read(t, "../docs/deploy.md")
	for _, call := range []string{"clone", "mount", "mount_setattr", "open_tree", "pivot_root", "umount2"} {
		if !bytes.Contains(out, []byte(`"`+call+`"`)) || !strings.Contains(doc, "`"+call+"`") {
			t.Errorf("%s is missing in the profile or in the documentation", call)
		}
	}
	if !bytes.Contains(out, []byte(`"read"`)) || !bytes.Contains(out, []byte("SCMP_ACT_ERRNO")) {
		t.Errorf("the profile lost what it had: %s", out)
	}
}

// Links between the documents lead somewhere.
func TestDocuments_LinksResolve(t *testing.T) {
	docs, err := fs.Glob(os.DirFS(".."), "docs/*.md")
	if err != nil || len(docs) == 0 {
		t.Fatal(docs, err)
	}
	for _, doc := range docs {
		for _, link := range regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`).FindAllStringSubmatch(read(t, "../"+doc), -1) {
			if _, err := os.Stat(filepath.Join("..", filepath.Dir(doc), link[1])); err != nil {
				t.Errorf("%s: the link %s leads nowhere", doc, link[1])
			}
		}
	}
}
