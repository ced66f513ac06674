package config

import (
	"strings"
	"testing"
)

// TestReadNetwork_KindErrorsAreInWords: an error about a value of the wrong kind names the
// position, the key and what belongs there, and no type of Go.
func TestReadNetwork_KindErrorsAreInWords(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"[default]\nallow = \"pypi\"", `network.toml:2:9: default.allow: got a value of the kind string, want a list such as ["pypi", "example.org"]`},
		{"[default]\nallow = 5", "network.toml:2:9: default.allow: got a value of the kind integer, want a list"},
		{"[default]\nallow = [[\"pypi\"]]", "default.allow: got a value of the kind array, want a list"},
		{"default = 1", "network.toml:1:11: default: got a value of the kind integer, want a section [default]"},
		{"owner = \"alice\"", "owner: got a value of the kind string, want sections [owner."},
		{"[owner]\n\"token alice\" = [\"pypi\"]", "owner.token alice: got a value of the kind array, want sections [owner."},
		{"[default]\nallow = []\nrule = \"x\"", "want sections [[default.rule]]"},
		{"[secret.api]\nhosts = \"api.example.com\"", "secret.api.hosts: got a value of the kind string, want a list"},
		{"[secret.api]\nas = [\"A\"]", "secret.api.as: got a value of the kind array, want a text in quotes"},
		{"[secret]\napi = true", "want sections [secret.NAME]"},
		{"[[default]]\nallow = []", "network.toml:1:"},
		{"[default]\nallow = [\"pypi\", 5]", `network.toml:2:18: default.allow: got a value of the kind integer, want a list such as ["pypi", "example.org"]`},
		{"[default]\nallow = [\n  \"pypi\", # a comment\n  true,\n]", "network.toml:4:3: default.allow: got a value of the kind boolean, want a list"},
		{"[owner.\"token alice\"]\ndeny = [1.5]", "network.toml:2:9: owner.token alice.deny: got a value of the kind float, want a list"},
		{"default = {allow = [\"pypi\", 7]}", "network.toml:1:29: default.allow: got a value of the kind integer, want a list"},
		{"[[default.rule]]\nhosts = [\"pypi\"]\n[[default.rule]]\nhosts = [\"pypi\",\n 2026-01-02]", "network.toml:5:2: default.rule.hosts: got a value of the kind local date, want a list"},
		{"[default]\nrule = [{hosts = [5]}]", "network.toml:2:19: default.rule.hosts: got a value of the kind integer, want a list"},
		{"[[default.rule]]\nhosts = [\"pypi\"]\nmethods = [\"GET\", 5]", "network.toml:3:19: default.rule.methods: got a value of the kind integer, want a list such as [\"GET\"]"},
	} {
		_, err := (&Config{NetworkFile: networkPath(t, test.text)}).ReadNetwork()
		if err == nil {
			t.Errorf("%q: no error", test.text)
			continue
		}
		text := err.Error()
		if !strings.Contains(text, test.want) || !strings.Contains(text, "network.toml:") || strings.ContainsAny(text, "{}") || strings.Contains(text, "config.") || strings.Contains(text, "[]string") || strings.Contains(text, "struct") {
			t.Errorf("%q: got %q, want %q", test.text, text, test.want)
		}
	}
}

// TestNetwork_EntriesBelowTheFloor: an entry that can allow nothing is refused, in the file
// and in the setting. It may be denied.
func TestNetwork_EntriesBelowTheFloor(t *testing.T) {
	for entry, want := range map[string]string{
		"127.0.0.1": "boxes never reach an address of this machine; allow a name, and pin it to the address with --egress-pin NAME=ADDRESS",
		"10.0.0.1":  "boxes never reach a private address", "tcp://10.0.0.1:22": "boxes never reach a private address", "192.168.0.0/16": "boxes never reach a private address",
		"tcp://[fd12::1]:22": "boxes never reach a private address", "169.254.169.254": "boxes never reach the metadata service of a cloud; no setting allows it",
		"203.0.113.7": "", "0.0.0.0/0": "", "10.example.org": "", "pypi": "",
	} {
		_, file := (&Config{NetworkFile: networkPath(t, "[default]\nallow = [\n  \""+entry+"\"]")}).ReadNetwork()
		_, rule := (&Config{NetworkFile: networkPath(t, "[[default.rule]]\nhosts = [\""+entry+"\"]")}).ReadNetwork()
		_, setting := destinations("network", entry)
		_, denied := (&Config{NetworkFile: networkPath(t, "[default]\nallow = [\"pypi\"]\ndeny = [\""+entry+"\"]")}).ReadNetwork()
		if denied != nil {
			t.Errorf("deny %s: %v", entry, denied)
		}
		if want == "" {
			if file != nil || setting != nil {
				t.Errorf("%s: %v, %v, want neither", entry, file, setting)
			}
			continue
		}
		for how, err := range map[string]error{"file": file, "rule": rule, "setting": setting} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s in the %s: got %v, want %q", entry, how, err, want)
			}
		}
		if file != nil && !strings.Contains(file.Error(), "network.toml:3:3: ") {
			t.Errorf("%s: %v, want the position", entry, file)
		}
	}
}
