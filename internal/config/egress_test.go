package config

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// networkPath writes a network-file that only this user can change.
func networkPath(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "network.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const exampleNetwork = `
[default]                      # every owner without a section
allow = ["pypi", "files.example.net"]

[owner."token alice"]
allow = ["github", "*.example.org", "tcp://db.example.org:5432"]
deny  = ["gist.example.org"]

[[owner."token alice".rule]]
hosts = ["http://api.example.com"]
methods = ["GET"]
paths = ["/v1/public/"]

[owner."token bob"]
allow = []
`

func TestReadNetwork_LayersByOwner(t *testing.T) {
	c := &Config{Network: []string{"modules.example.com"}, NetworkFile: networkPath(t, exampleNetwork)}
	n, err := c.ReadNetwork()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		owner, host string
		port        uint16
		want        bool
	}{
		{"", "modules.example.com", 443, true}, // the setting is for the local user
		{"", "files.example.net", 443, false},
		{"token carol", "files.example.net", 443, true}, // the default section, not the setting
		{"token carol", "modules.example.com", 443, false},
		{"token alice", "a.example.org", 443, true},
		{"token alice", "example.org", 443, false},
		{"token alice", "db.example.org", 5432, true},
		{"token alice", "gist.example.org", 443, false},
		{"token alice", "api.example.com", 80, true},
		{"token alice", "api.example.com", 443, false},
		{"token bob", "files.example.net", 443, false},
	} {
		if got := n.Set(test.owner).Decide(test.host, test.port).OK; got != test.want {
			t.Errorf("owner %q, %s:%d: got %t, want %t", test.owner, test.host, test.port, got, test.want)
		}
	}
	if n.Set("token bob").On() || !n.Set("token alice").On() {
		t.Error("bob's network is on, or alice's off")
	}
	for owner, want := range map[string]string{
		"": "--network", "token alice": "the section of this owner in --network-file", "token carol": "the section [default] in --network-file",
	} {
		if got := n.Where(owner); got != want {
			t.Errorf("where hosts are allowed to %q: got %q, want %q", owner, got, want)
		}
	}
	if got := n.Owners(); !slices.Equal(got, []string{"token alice", "token bob"}) {
		t.Errorf("owners: got %q", got)
	}
	if v := n.Set("token alice").DecideRequest("api.example.com", 80, "POST", "/v1/public/x"); v.OK {
		t.Error("a method that no rule has is allowed")
	}
}

func TestReadNetwork_SettingAloneIsForAll(t *testing.T) {
	n, err := (&Config{Network: []string{"npm"}}).ReadNetwork()
	if err != nil || !n.Set("").On() || !n.Set("token x").On() {
		t.Errorf("with network=npm: %v, want a network for all", err)
	}
	n, err = (&Config{}).ReadNetwork()
	if err != nil || n.Set("").On() || n.Of("token x") != nil || n.Where("token x") != "--network" {
		t.Errorf("without settings: %v, want no network", err)
	}
}

func TestReadNetwork_Errors(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"", "has no section: write [default]"},
		{"[default]\nallow = [\n  \"pypi\",\n  \"pypl\",\n]", `network.toml:4:3: network entry "pypl": neither a host name with a dot nor a preset`},
		{"[default]\nallow = [\"https://10.0.0.1:x\"]", `:2:10: network entry`},
		{"[default]\nalow = [\"pypi\"]", `network.toml:2:1: unknown key "default.alow"`},
		{"[default]\nallow = \"pypi\"", "network.toml:2:"},
		{"[default\n", "network.toml:1:"},
		{"[owner.alice]\nallow = [\"pypi\"]", `[owner."alice"]: "alice" is no owner: write "token NAME"`},
		{"[owner.\"\"]\nallow = [\"pypi\"]", `is no owner`},
		{"[default]\nallow = [\"pypi\"]\n[default]\n", "network.toml:3:"},
		{"[[default.rule]]\nhosts = [\"https://a.example.org\"]\nmethods = [\"GET\"]", `[default]: rule for "https://a.example.org": methods and paths can only be seen in plain HTTP`},
		{"[[default.rule]]\nmethods = [\"GET\"]", "[default]: the rule has no hosts"},
		{"[secrets.github]\nas = \"TOKEN\"", `unknown key "secrets`},
		{"#" + strings.Repeat("x", maxFile), "larger than"},
	} {
		_, err := (&Config{NetworkFile: networkPath(t, test.text)}).ReadNetwork()
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "network-file: ") {
			t.Errorf("%.60q: got error %v, want %q", test.text, err, test.want)
		}
	}
}

func TestReadNetwork_FileOfOthers(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("access control lists protect files here")
	}
	for name, change := range map[string]func(path string) error{
		"everybody can write it":     func(path string) error { return os.Chmod(path, 0o666) },
		"everybody can replace it":   func(path string) error { return os.Chmod(filepath.Dir(path), 0o777) },
		"it belongs to another user": func(path string) error { return os.Chown(path, 12345, 12345) },
		"a link of another user leads to it": func(path string) error {
			to := path + ".real"
			return errors.Join(os.Rename(path, to), os.Symlink(to, path), os.Lchown(path, 12345, 12345))
		},
	} {
		t.Run(name, func(t *testing.T) {
			if os.Geteuid() != 0 && strings.Contains(name, "another user") {
				t.Skip("only root can give a file away")
			}
			path := networkPath(t, exampleNetwork)
			if _, err := (&Config{NetworkFile: path}).ReadNetwork(); err != nil {
				t.Fatal(err)
			}
			if err := change(path); err != nil {
				t.Fatal(err)
			}
			_, err := (&Config{NetworkFile: path}).ReadNetwork()
			if err == nil || !strings.Contains(err.Error(), "other users could change what boxes reach") {
				t.Errorf("got error %v", err)
			}
		})
	}
	_, err := (&Config{NetworkFile: filepath.Join(t.TempDir(), "missing")}).ReadNetwork()
	if err == nil || !strings.Contains(err.Error(), "network-file: ") {
		t.Errorf("a missing file: got error %v", err)
	}
}

func FuzzReadNetwork(f *testing.F) {
	f.Add(exampleNetwork)
	f.Add("[default]\nallow = [\"pypl\"]")
	f.Add("[default]\nallow = [\"pypi\", true]\nrule = [{hosts = [5, 1.5]}]")
	path := filepath.Join(f.TempDir(), "network.toml")
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		n, err := (&Config{NetworkFile: path}).ReadNetwork()
		if err == nil && n.Of("token x") == nil && len(n.Owners()) == 0 {
			t.Errorf("%q: no error and no policy", text)
		}
	})
}
