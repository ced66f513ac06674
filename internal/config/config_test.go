package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// env returns a lookup over pairs.
func env(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1], true
			}
		}
		return "", false
	}
}

// load reads args and the environment.
func load(t *testing.T, args []string, pairs ...string) (*Config, []string, error) {
	t.Helper()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	Bind(fs, "server", "tools", "search", "network", "boxes", "volumes", "host", "log")
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return Load(fs, env(pairs...))
}

func TestLoad_Defaults(t *testing.T) {
	got, notes, err := load(t, nil, "XDG_STATE_HOME", "/x")
	if err != nil || len(notes) != 0 {
		t.Fatalf("got notes %v, error %v", notes, err)
	}
	want := &Config{
		Mode: "http", Host: "127.0.0.1", Port: 8775, Endpoint: "/mcp", DrainTimeout: 30 * time.Second,
		MaxConnections: 100, MaxStreams: 80, MaxCalls: 100, MaxBodyMB: 32, MaxMCPSessions: 1000, MCPSessionTimeout: time.Hour,
		OIDCSubjectClaim: "sub", OIDCScopeClaim: "scope", RateLimit: -1,
		Toolsets: []string{"sessions"}, ToolErrors: "result",
		MaxSessions: 10, MaxContexts: 50, SessionTimeout: 30 * time.Minute, CleanupInterval: time.Minute, OrphanInterval: 10 * time.Minute,
		DefaultFlavor: "small", StartTimeout: 3 * time.Minute, ExecutionTimeout: 5 * time.Minute, ContextTimeout: 30 * time.Second,
		PauseAfter: 30 * time.Second, FinishTemplates: true, Hibernate: true, HibernateMaxAge: 7 * 24 * time.Hour, SnapshotDiskMB: 20480, DiskGuarantee: 5, MaxSnapshots: 100,
		PoolSize: -1, PoolMaxAge: time.Hour,
		ToolsMaxOwners: 16, EgressMaxConnections: 1024, EgressMaxMBPerMinute: 1024,
		PerplexityURL: "https://api.perplexity.ai", PerplexityMode: "auto", PerplexityTimeout: 5 * time.Minute,
		DefaultContext: true, LRUEviction: true, VolumesEnabled: true,
		Preload:  []string{"numpy", "pandas", "matplotlib"},
		StateDir: "/x/glovebox", Engine: EngineAuto, KubeRuntimeClass: "gvisor",
		LogLevel: "auto", LogFormat: "text", LogConsole: true, LogMaxSize: 10 << 20, LogBackupCount: 5,
	}
	if os.Geteuid() == 0 {
		want.StateDir = "/var/lib/glovebox"
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestLoad_PrecedenceOfSources(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.json")
	if err := os.WriteFile(file, []byte(`{"port": 1, "max-sessions": 3, "host": "file", /* why */ "toolset": ["files"],}`), 0o600); err != nil {
		t.Fatal(err)
	}
	c, _, err := load(t, []string{"--port=2", "--config", file}, "MCP_SERVER_PORT", "4", "MSB_MAX_SESSIONS", " 5\n", "MCP_HOST", "second", "MCP_SERVER_HOST", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if c.Port != 2 || c.MaxSessions != 5 || c.Host != "second" || strings.Join(c.Toolsets, "+") != "files" {
		t.Errorf("got port %d, max sessions %d, host %q, toolsets %q", c.Port, c.MaxSessions, c.Host, c.Toolsets)
	}
	c, _, err = load(t, nil, "MCP_PORT", "4", "MCP_SERVER_PORT", "5", "MCP_HOST", "second", "MCP_SERVER_HOST", "first")
	if err != nil || c.Port != 5 || c.Host != "first" {
		t.Errorf("of two variables the first counts: got %+v, %v", c, err)
	}
	c, _, err = load(t, nil, FileEnv, file)
	if err != nil || c.Port != 1 || c.Host != "file" || c.MaxSessions != 3 {
		t.Errorf("from the file alone: got %+v, %v", c, err)
	}
}

func TestLoad_InvalidValues(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	bad := filepath.Join(dir, "bad.json")
	odd := filepath.Join(dir, "odd.json")
	huge := filepath.Join(dir, "huge.json")
	for path, text := range map[string]string{plain: "x", bad: "{", odd: `{"prot": 1}`, huge: "{}" + strings.Repeat(" ", maxFile)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct{ name, value, want string }{
		{"MSB_MAX_SESSIONS", "0", "MSB_MAX_SESSIONS must be a positive integer, got 0"},
		{"MSB_MAX_SESSIONS", "-3", "MSB_MAX_SESSIONS must be a positive integer, got -3"},
		{"MSB_MAX_SESSIONS", "ten", "MSB_MAX_SESSIONS must be a valid integer, got 'ten'"},
		{"MSB_MAX_SESSIONS", "1.5", "MSB_MAX_SESSIONS must be a valid integer, got '1.5'"},
		{"MSB_MAX_SESSIONS", "99999999999999999999", "MSB_MAX_SESSIONS must be at most 2147483647, got 99999999999999999999"},
		{"MSB_SESSION_TIMEOUT", "soon", "MSB_SESSION_TIMEOUT must be a valid integer, got 'soon': write seconds, such as 90, or a unit, such as 90s, 5m or 1h30m"},
		{"MSB_SESSION_TIMEOUT", "5x", "got '5x': write seconds, such as 90, or a unit, such as 90s"},
		{"MSB_SESSION_TIMEOUT", "-5", "MSB_SESSION_TIMEOUT must be a positive integer, got -5"},
		{"MSB_SESSION_TIMEOUT", "-5s", "MSB_SESSION_TIMEOUT must be a positive duration, got -5s"},
		{"MSB_SESSION_TIMEOUT", "NaN", "MSB_SESSION_TIMEOUT must be a valid integer, got 'NaN'"},
		{"MSB_SANDBOX_START_TIMEOUT", "1e99", "MSB_SANDBOX_START_TIMEOUT must be a positive number of at most 315360000, got 1e99"},
		{"MSB_CLEANUP_INTERVAL", "1800", "MSB_CLEANUP_INTERVAL must be less than MSB_SESSION_TIMEOUT, got 30m0s and 30m0s"},
		{"MSB_MAX_TOTAL_MEMORY_MB", "512", "MSB_MAX_TOTAL_MEMORY_MB must be at least the 1024 MB of the flavor small, got 512"},
		{"GLOVEBOX_TLS_CERT", "/c.pem", "tls-cert and tls-key must be set together, got '/c.pem' and ''"},
		{"GLOVEBOX_OIDC_ISSUER", "https://login.example", "oidc-issuer needs oidc-audience or public-url: without an audience, tokens for other services would be accepted"},
		{"GLOVEBOX_PUBLIC_URL", "boxes.example.org", "public-url must be a URL such as https://boxes.example.org/mcp, got 'boxes.example.org'"},
		{"GLOVEBOX_OWNER_MAX_MEMORY_MB", "512", "owner-max-memory-mb must be at least the 1024 MB of the flavor small, got 512"},
		{"GLOVEBOX_OWNER_MAX_SNAPSHOT_MB", "10241", "owner-max-snapshot-mb must not exceed half of snapshot-disk-mb (10240), got 10241"},
		{"GLOVEBOX_OWNER_MAX_BOXES", "0", "GLOVEBOX_OWNER_MAX_BOXES must be a positive integer, got 0"},
		{"GLOVEBOX_KUBE_WARM", "51", "GLOVEBOX_KUBE_WARM must be at most 50, got 51"},
		{"GLOVEBOX_RATE_LIMIT", "-1", "GLOVEBOX_RATE_LIMIT must be a number from 0 to 1000, got '-1'"},
		{"MSB_DEFAULT_FLAVOR", "huge", "MSB_DEFAULT_FLAVOR must be one of: small, medium, large, got 'huge'"},
		{"MSB_ENABLE_LRU_EVICTION", "maybe", "MSB_ENABLE_LRU_EVICTION must be one of: true, 1, yes, on, enabled, or: false, 0, no, off, disabled, got 'maybe'"},
		{"GLOVEBOX_NETWORK", "pypi,pypl", `GLOVEBOX_NETWORK: network entry "pypl": neither a host name with a dot nor a preset (debian, github, go, huggingface, npm, pypi)`},
		{"GLOVEBOX_NETWORK", "tcp://db.example.org", "tcp needs a port, as in tcp://db.example.org:5432"},
		{"GLOVEBOX_NETWORK", ",", "GLOVEBOX_NETWORK must not be empty"},
		{"GLOVEBOX_EGRESS_PIN", "a.example.org", `GLOVEBOX_EGRESS_PIN: pin "a.example.org": want NAME[:PORT]=ADDRESS[:PORT]`},
		{"GLOVEBOX_EGRESS_PIN", "a.example.org=169.254.169.254", "which boxes never reach"},
		{"GLOVEBOX_EGRESS_MAX_CONNECTIONS", "0", "GLOVEBOX_EGRESS_MAX_CONNECTIONS must be a positive integer, got 0"},
		{"GLOVEBOX_EGRESS_MAX_MB_PER_MINUTE", "-1", "GLOVEBOX_EGRESS_MAX_MB_PER_MINUTE must be a positive integer, got -1"},
		{"GLOVEBOX_EGRESS_MAX_MB_PER_MINUTE", "1048577", "GLOVEBOX_EGRESS_MAX_MB_PER_MINUTE must be at most 1048576, got 1048577"},
		{"MCP_SERVER_PORT", "0", "Invalid MCP_SERVER_PORT: must be between 1 and 65535, got 0"},
		{"MCP_SERVER_PORT", "70000", "Invalid MCP_SERVER_PORT: must be between 1 and 65535, got 70000"},
		{"MCP_SERVER_PORT", "http", "Invalid MCP_SERVER_PORT: must be a valid integer, got 'http'"},
		{"MCP_PORT", "x", "Invalid MCP_PORT: must be a valid integer, got 'x'"},
		{"MCP_ENDPOINT", "mcp", "MCP_ENDPOINT must be a path that begins with /, got 'mcp'"},
		{"MCP_ENDPOINT", "/ready", "MCP_ENDPOINT must be another path than /health, /ready and /metrics, got '/ready'"},
		{"GLOVEBOX_TOOLSETS", "files,magic", "GLOVEBOX_TOOLSETS must be of: sessions, contexts, files, snapshots, all, got 'magic'"},
		{"GLOVEBOX_TOOLSETS", ",", "GLOVEBOX_TOOLSETS must not be empty"},
		{"MSB_SHARED_VOLUME_PATH", `{"/a":"/b"}`, "MSB_SHARED_VOLUME_PATH must not be a JSON object"},
		{"MSB_SHARED_VOLUME_PATH", `[1]`, "MSB_SHARED_VOLUME_PATH must be a JSON array of strings"},
		{"MSB_SHARED_VOLUME_PATH", dir + ":/shared/a, oops", `mapping 2 ("oops"): must be host:container`},
		{"MSB_SHARED_VOLUME_PATH", ":/a", "the host path is empty"},
		{"MSB_SHARED_VOLUME_PATH", dir + ": ", "the container path is empty"},
		{"MSB_SHARED_VOLUME_PATH", "a:/b", "the host path must be absolute"},
		{"MSB_SHARED_VOLUME_PATH", dir + ":b", "the container path must be absolute"},
		{"MSB_SHARED_VOLUME_PATH", dir + ":/a:rx", "only :ro, :rw or :quota=SIZE may follow"},
		{"MSB_SHARED_VOLUME_PATH", dir + ":/usr/share", "must not lie in /usr"},
		{"MSB_SHARED_VOLUME_PATH", dir + ":/a/../etc", "must not lie in /etc"},
		{"MSB_SHARED_VOLUME_PATH", dir + ":/..", "belongs to the box"},
		{"MSB_SHARED_VOLUME_PATH", plain + ":/a", "not a directory"},
		{"MSB_SHARED_VOLUME_PATH", "/:/a", "the root directory"},
		{"MSB_SHARED_VOLUME_PATH", dir + "/none:/a", "no such file"},
		{"MSB_SHARED_VOLUME_PATH", dir + ":/a," + dir + ":/a/", "is used by an earlier mapping"},
		{"GLOVEBOX_VOLUME_ROOTS", "rel", "GLOVEBOX_VOLUME_ROOTS must be absolute directories, got 'rel'"},
		{"GLOVEBOX_ALLOWED_ORIGINS", "app.example", "GLOVEBOX_ALLOWED_ORIGINS must be origins such as https://app.example, got 'app.example'"},
		{"GLOVEBOX_ALLOWED_ORIGINS", "https://a.example, null", "got 'null'"},
		{"GLOVEBOX_ALLOWED_ORIGINS", "https://a.example/path", "got 'https://a.example/path'"},
		{"GLOVEBOX_ALLOWED_ORIGINS", "*", "got '*'"},
		{"GLOVEBOX_ALLOWED_ORIGINS", "https://*.example", "got 'https://*.example'"},
		{"GLOVEBOX_ALLOWED_HOSTS", "http://a.example", "GLOVEBOX_ALLOWED_HOSTS must be host names, with or without a port, got 'http://a.example'"},
		{"GLOVEBOX_ALLOWED_HOSTS", "a:b", "got 'a:b'"},
		{"GLOVEBOX_ALLOWED_HOSTS", strings.Repeat("a", maxDNSName+1), "must be host names"},
		{"GLOVEBOX_ALLOWED_HOSTS", strings.Repeat("a,", 101), "at most 100 host names, with or without a port, got 101"},
		{"MCP_MAX_CONNECTIONS", "0", "MCP_MAX_CONNECTIONS must be a positive integer, got 0"},
		{"MCP_MAX_CONNECTIONS", "100001", "MCP_MAX_CONNECTIONS must be at most 100000, got 100001"},
		{"GLOVEBOX_MAX_BODY_MB", "2048", "GLOVEBOX_MAX_BODY_MB must be at most 1024, got 2048"},
		{"MCP_SESSION_TIMEOUT", "0", "MCP_SESSION_TIMEOUT must be a positive integer, got 0: write milliseconds, such as 90000, or a unit, such as 90s"},
		{"MCP_SESSION_TIMEOUT", "1.5", "MCP_SESSION_TIMEOUT must be a valid integer, got '1.5'"},
		{"MCP_SESSION_TIMEOUT", "-1h", "MCP_SESSION_TIMEOUT must be a positive duration, got -1h"},
		{"GLOVEBOX_POOL_SIZE", "-1", "GLOVEBOX_POOL_SIZE must be a number from 0 to 1000, got '-1'"},
		{"GLOVEBOX_PAUSE_AFTER", "soon", "such as 90s, 5m or 1h30m, or never"},
		{"GLOVEBOX_PRELOAD", "numpy,scikit-learn", "GLOVEBOX_PRELOAD must be names of modules, or none, got 'scikit-learn', the name of a package: write it as programs import it, such as 'sklearn'"},
		{"GLOVEBOX_PRELOAD", "typing-extensions", "such as 'typing_extensions'"},
		{"GLOVEBOX_PRELOAD", "os; import sys", "GLOVEBOX_PRELOAD must be names of modules, or none, got 'os; import sys'"},
		{"GLOVEBOX_PRELOAD", "numpy,.x", "got '.x'"},
		{"GLOVEBOX_PRELOAD", strings.Repeat("a,", 65), "at most 64 modules, got 65"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318", "OTEL_EXPORTER_OTLP_ENDPOINT must be an http or https URL"},
		{"GLOVEBOX_OTLP_ENDPOINT", "http://user:pass@collector:4318", "GLOVEBOX_OTLP_ENDPOINT must be an http or https URL without credentials"},
		{FileEnv, dir + "/none.json", "no such file"},
		{FileEnv, bad, bad + ": "},
		{FileEnv, odd, odd + `: unknown setting "prot"; did you mean "port"?`},
		{FileEnv, huge, huge + ": larger than 1048576 bytes"},
	} {
		_, _, err := load(t, nil, test.name, test.value)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s=%q: got error %v, want %q", test.name, test.value, err, test.want)
		}
	}
	_, _, err := load(t, []string{"--max-sessions=0", "--port=-1"}, "MSB_DEFAULT_FLAVOR", "x")
	want := "Invalid --port: must be between 1 and 65535, got -1\n--max-sessions must be a positive integer, got 0\nMSB_DEFAULT_FLAVOR must be one of: small, medium, large, got 'x'"
	if err == nil || err.Error() != want {
		t.Errorf("all wrong settings are named: got %v, want %s", err, want)
	}
}

func TestLoad_Volumes(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	want := []Volume{{Host: dir, Guest: "/shared/input", ReadOnly: true}, {Host: dir, Guest: "/shared/output", Writable: true}}
	for _, text := range []string{
		link + ":/shared/input:ro, " + dir + ":/shared/output:rw",
		`["` + dir + `:/shared/input:ro", "` + link + `:/shared/output/:rw"]`,
	} {
		c, _, err := load(t, nil, "MSB_SHARED_VOLUME_PATH", text, "GLOVEBOX_VOLUME_ROOTS", filepath.Dir(dir))
		if err != nil || !reflect.DeepEqual(c.Volumes, want) {
			t.Errorf("%s: got %+v, %v, want %+v", text, c, err, want)
		}
	}
	if _, _, err := load(t, nil, "MSB_SHARED_VOLUME_PATH", link+":/a", "GLOVEBOX_VOLUME_ROOTS", "/usr"); err == nil || !strings.Contains(err.Error(), dir+" is not below a directory") {
		t.Errorf("outside the roots: got %v", err)
	}
	for _, state := range []string{dir, dir + "/state/deep", filepath.Dir(dir), link + "/state"} {
		_, _, err := load(t, []string{"--volume", dir + ":/a"}, "GLOVEBOX_STATE_DIR", state)
		if err == nil || !strings.Contains(err.Error(), "the volume "+dir+" and the state directory "+state) {
			t.Errorf("with the state in %s: got %v", state, err)
		}
	}
	if _, _, err := load(t, []string{"--volume", dir + ":/a"}, "GLOVEBOX_STATE_DIR", dir+"-state"); err != nil {
		t.Errorf("with the state beside it: got %v", err)
	}
	c, _, err := load(t, []string{"--volume", dir + ":/a", "--volume", dir + ":/b"}, "MSB_ENABLE_VOLUME_MAPPING", "off")
	if err != nil || len(c.Volumes) != 0 {
		t.Errorf("volumes switched off: got %+v, %v", c, err)
	}
	c, _, err = load(t, []string{"--volume", dir + ":/a", "--volume", dir + ":/b"})
	if err != nil || len(c.Volumes) != 2 {
		t.Errorf("a repeated flag: got %+v, %v", c, err)
	}
}

func TestLoad_VolumePerOwner(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	c, _, err := load(t, []string{"--volume", dir + "/{owner}:/shared"})
	if want := []Volume{{Host: dir, Guest: "/shared", PerOwner: true}}; err != nil || !reflect.DeepEqual(c.Volumes, want) {
		t.Errorf("got %+v, %v, want %+v", c, err, want)
	}
	c, _, err = load(t, []string{"--volume", dir + "/{owner}:/shared:quota=2G", "--volume", dir + "/./{owner}:/same:rw:quota=2048M",
		"--volume", dir + "/{owner}:/look:ro"})
	if err != nil || (c.Volumes[0].Quota != 2<<30 || c.Volumes[1].Quota != 2<<30 || !c.Volumes[1].Writable || c.Volumes[2].Quota != 0) {
		t.Errorf("with quotas: got %+v, %v", c, err)
	}
	for text, want := range map[string]string{
		dir + ":/a:quota=":      "must be a size",
		dir + ":/a:quota=2":     "must be a size",
		dir + ":/a:quota=0M":    "must be a size",
		dir + ":/a:quota=-1G":   "must be a size",
		dir + ":/a:quota=1001T": "must be a size",
		dir + ":/a:ro:quota=1G": "a read-only volume has no quota",
		dir + ":/a:quota=1G":    "/srv/shared/{owner}:/shared:quota=2G",
		dir + "/{owner}:/a:quota=1G," + dir + "/{owner}:/b:quota=2G":     "different quotas",
		dir + "/{owner}:/a:quota=1G," + dir + "/{owner}:/b":              "different quotas",
		dir + "/{owner}:/a," + dir + "/sub/../{owner}:/b:rw:quota=1G":    "different quotas",
		dir + "/{owner}:/a:quota=1G," + dir + ":/b":                      "directory for each owner",
		dir + "/{owner}:/a:quota=1G," + dir + "/sub:/b":                  "directory for each owner",
		dir + "/{owner}:/a:quota=1G," + dir + "/sub/{owner}:/b:quota=1G": "directory for each owner",
		dir + "/sub/{owner}:/a:quota=1G," + dir + ":/b:rw":               "directory for each owner",
		dir + "/{owner}/x:/shared":                                       "{owner} must be the last element",
		dir + "/x-{owner}:/shared":                                       "{owner} must be the last element",
		dir + "/missing/{owner}:/shared":                                 "no such file",
		"/{owner}:/shared":                                               "the host path is empty",
		dir + "/{owner}:/shared:ro:rw":                                   "exclude each other",
		dir + "/{owner}:/shared::ro":                                     "is empty",
		dir + "/{owner}:/shared," + dir + ":/all":                        "directory for each owner",
		dir + "/{owner}:/shared," + dir + "/sub:/sub:ro":                 "directory for each owner",
		dir + "/sub/{owner}:/shared," + dir + ":/all":                    "directory for each owner",
		dir + "/sub/{owner}:/shared," + dir + "/{owner}:/b":              "directory for each owner",
	} {
		if _, _, err := load(t, nil, "MSB_SHARED_VOLUME_PATH", text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

func TestLoad_ValidValues(t *testing.T) {
	c, notes, err := load(t, []string{"--port=0", "--enable-cors"}, "MSB_SESSION_TIMEOUT", "2h", "MSB_SANDBOX_START_TIMEOUT", "180.5",
		"MSB_LOG_LEVEL", "WARNING", "MSB_ENABLE_LRU_EVICTION", "Disabled", "MSB_SERVER_URL", "http://x")
	if err != nil {
		t.Fatal(err)
	}
	if c.Port != 0 || !c.CORS || c.SessionTimeout != 2*time.Hour || c.StartTimeout != 180500*time.Millisecond || c.LogLevel != "warn" || c.LRUEviction {
		t.Errorf("got %+v", c)
	}
	if len(notes) != 1 || !strings.Contains(notes[0], "MSB_SERVER_URL is ignored") {
		t.Errorf("got notes %q", notes)
	}
}

func TestLoad_Preload(t *testing.T) {
	for _, test := range []struct {
		args, env []string
		want      string
	}{
		{nil, []string{"GLOVEBOX_PRELOAD", "scipy , matplotlib.pyplot"}, "[scipy matplotlib.pyplot]"},
		{nil, []string{"GLOVEBOX_PRELOAD", "none"}, "[]"},
		{nil, []string{"GLOVEBOX_PRELOAD", `["scipy"]`}, "[scipy]"},
		{nil, []string{"GLOVEBOX_PRELOAD", "[ ]"}, "[]"},
		{[]string{"--preload="}, []string{"GLOVEBOX_PRELOAD", "scipy"}, "[]"},
		{[]string{"--preload=numpy", "--preload=scipy"}, nil, "[numpy scipy]"},
	} {
		c, _, err := load(t, test.args, test.env...)
		if got := fmt.Sprint(c.Preload); err != nil || got != test.want {
			t.Errorf("%q, %q: got %s, %v, want %s", test.args, test.env, got, err, test.want)
		}
	}
}

// Every field has all tags, and names are unique.
func TestKeys_TagsAreComplete(t *testing.T) {
	seen := map[string]bool{}
	groups := map[string]bool{}
	for _, g := range groupTitles {
		groups[g.group] = true
	}
	for _, k := range Keys() {
		if !groups[k.Group] || k.Kind == "" || len(k.Env) == 0 || !strings.HasSuffix(k.Help, ".") {
			t.Errorf("key %q is not complete: %+v", k.Name, k)
		}
		for _, name := range append(k.Env, k.Name) {
			if seen[name] || ignored[name] != "" {
				t.Errorf("the name %s is used twice", name)
			}
			seen[name] = true
		}
	}
}

func TestDocumentationIsCurrent(t *testing.T) {
	got, err := os.ReadFile("../../docs/configuration.md")
	if err != nil || string(got) != Markdown() {
		t.Errorf("docs/configuration.md is out of date (%v): run go generate ./internal/config", err)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add("MSB_SHARED_VOLUME_PATH", "/tmp:/a:ro")
	f.Add("MSB_SESSION_TIMEOUT", "1e3")
	f.Fuzz(func(t *testing.T, name, value string) {
		if name == FileEnv {
			return
		}
		c, _, err := Load(nil, env(name, value, "HOME", "/"))
		if err == nil && (c.MaxSessions <= 0 || c.SessionTimeout <= 0 || c.Port <= 0 || c.ExecutionTimeout <= 0) {
			t.Errorf("%s=%q: got %+v", name, value, c)
		}
	})
}

func TestNames(t *testing.T) {
	c, _, err := load(t, []string{"--allowed-hosts=Box.Example", "--allowed-hosts=[::1]:80"}, "GLOVEBOX_ALLOWED_ORIGINS", `["https://App.Example/", "http://10.0.0.1:8080"]`)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(c.AllowedOrigins, c.AllowedHosts), "[https://app.example http://10.0.0.1:8080] [box.example [::1]:80]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Every variable of the servers that Glovebox replaces is a setting, or accepted
// without effect.
func TestLoad_VariablesOfReplacedServers(t *testing.T) {
	known := map[string]bool{}
	for _, k := range Keys() {
		for _, name := range k.Env {
			known[name] = true
		}
	}
	doc := Markdown()
	for _, name := range strings.Fields(`
		MCP_SERVER_HOST MCP_SERVER_PORT MCP_ENABLE_CORS MCP_MODE MCP_PORT MCP_HOST MCP_ENDPOINT MCP_SESSION_TIMEOUT MCP_MAX_CONNECTIONS
		MSB_SERVER_URL MSB_API_KEY MSB_MAX_SESSIONS MSB_SESSION_TIMEOUT MSB_CLEANUP_INTERVAL MSB_DEFAULT_FLAVOR
		MSB_SANDBOX_START_TIMEOUT MSB_EXECUTION_TIMEOUT MSB_MAX_TOTAL_MEMORY_MB MSB_SHARED_VOLUME_PATH
		MSB_ORPHAN_CLEANUP_INTERVAL MSB_ENABLE_LRU_EVICTION MICROSANDBOX_PYTHON_IMAGE MICROSANDBOX_NODE_IMAGE
		MSB_LOG_LEVEL MSB_LOG_FILE MSB_LOG_MAX_SIZE MSB_LOG_BACKUP_COUNT MSB_LOG_CONSOLE MSB_LOG_STRUCTURED MSB_LOG_FORMAT
		MSB_CONNECTION_TIMEOUT MSB_REQUEST_TIMEOUT MSB_MAX_EXECUTION_TIME MSB_MAX_TOTAL_CPU_CORES MSB_ENABLE_VOLUME_MAPPING
		AGENTRUN_ACCESS_KEY_ID AGENTRUN_ACCESS_KEY_SECRET AGENTRUN_ACCOUNT_ID AGENTRUN_REGION AGENTRUN_INTERPRETER_NAME
		AGENTRUN_CPU AGENTRUN_MEMORY AGENTRUN_SESSION_TIMEOUT`) {
		if !known[name] && ignored[name] == "" {
			t.Errorf("%s is neither a setting nor known to have no effect", name)
		}
		if !strings.Contains(doc, "`"+name+"`") {
			t.Errorf("%s is not documented", name)
		}
	}
}

func TestLoad_Security(t *testing.T) {
	load := func(env map[string]string) *Config {
		t.Helper()
		c, _, err := Load(nil, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for _, c := range []struct {
		env       map[string]string
		auth      bool
		rate      float64
		burst     int
		audiences []string
	}{
		{map[string]string{"HOME": "/"}, false, 0, 0, nil},
		{map[string]string{"GLOVEBOX_TOKENS_FILE": "/t.toml"}, true, 100, 200, nil},
		{map[string]string{"GLOVEBOX_TOKENS_FILE": "/t.toml", "GLOVEBOX_RATE_LIMIT": "0"}, true, 0, 0, nil},
		{map[string]string{"GLOVEBOX_RATE_LIMIT": "5", "GLOVEBOX_RATE_BURST": "7"}, false, 5, 7, nil},
		{map[string]string{"GLOVEBOX_OIDC_ISSUER": "https://a.example, https://b.example", "GLOVEBOX_PUBLIC_URL": "https://boxes.example/mcp"}, true, 100, 200, []string{"https://boxes.example/mcp"}},
		{map[string]string{"GLOVEBOX_OIDC_ISSUER": "https://a.example", "GLOVEBOX_PUBLIC_URL": "https://boxes.example/mcp", "GLOVEBOX_OIDC_AUDIENCE": "x,y"}, true, 100, 200, []string{"x", "y"}},
	} {
		cfg := load(c.env)
		rate, burst := cfg.Rate()
		calls, streams := 0, 0
		if c.auth {
			calls, streams = 50, 40
		}
		if cfg.OwnerCalls() != calls || cfg.OwnerStreams() != streams {
			t.Errorf("%v: %d calls and %d streams of one owner, want %d and %d", c.env, cfg.OwnerCalls(), cfg.OwnerStreams(), calls, streams)
		}
		if cfg.Auth() != c.auth || rate != c.rate || burst != c.burst || !slices.Equal(cfg.Audiences(), c.audiences) {
			t.Errorf("%v: auth %v, rate %v and %d, audiences %v", c.env, cfg.Auth(), rate, burst, cfg.Audiences())
		}
	}
}

// TestKeys_ParsedOnce: commands ask for the settings dozens of times at each start.
func TestKeys_ParsedOnce(t *testing.T) {
	if n := testing.AllocsPerRun(10, func() { Keys() }); n > 1 {
		t.Errorf("Keys allocates %.0f times, want 1: the copy", n)
	}
	first := Keys()
	name := first[0].Name
	first[0].Name = "changed"
	if got := Keys()[0].Name; got != name {
		t.Errorf("the first setting is %q after a caller changed its copy, want %q", got, name)
	}
}
