package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// A secret comes from a variable or the file, and neither a flag nor a message has it.
func TestSecrets(t *testing.T) {
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	Bind(fs, "search")
	secrets := 0
	for _, k := range Keys() {
		if k.HasFlag() {
			continue
		}
		secrets++
		if fs.Lookup(k.Name) != nil {
			t.Errorf("%s has a flag, which other users of the machine see", k.Name)
		}
		if !strings.Contains(Markdown(), "| file: `"+k.Name+"` | `"+k.Env[0]+"`") {
			t.Errorf("%s is not documented", k.Name)
		}
	}
	if secrets != 1 {
		t.Errorf("%d settings are secrets, want 1", secrets)
	}
	c, _, err := load(t, nil, "PERPLEXITY_API_KEY", " pplx-secret\n")
	if err != nil || c.PerplexityKey != "pplx-secret" {
		t.Errorf("got %q, %v", c.PerplexityKey, err)
	}
	_, notes, err := load(t, nil, "PERPLEXITY_BEARER_TOKEN", "other-secret")
	if err != nil || len(notes) != 1 || notes[0] != "PERPLEXITY_BEARER_TOKEN is ignored: use GLOVEBOX_TOKENS_FILE" {
		t.Errorf("got %q, %v", notes, err)
	}
}

// An invalid variable of web search, which may be meant for another program, is kept for
// whoever offers web search. No message has a password or a part of the key.
func TestLoad_SearchVariables(t *testing.T) {
	for name, test := range map[string]struct{ value, want string }{
		"PERPLEXITY_BASE_URL":         {"user:secret@api.perplexity.ai", "PERPLEXITY_BASE_URL must be an http or https URL"},
		"PERPLEXITY_API_MODE":         {"sonar", "PERPLEXITY_API_MODE must be one of: auto, agent, chat, got 'sonar'"},
		"PERPLEXITY_TIMEOUT_MS":       {"0", "PERPLEXITY_TIMEOUT_MS must be a positive integer, got 0"},
		"PERPLEXITY_PROXY":            {"ftp://user:sec@ret@proxy:3128", "PERPLEXITY_PROXY must be the http or https URL of a proxy without path, query and fragment, got 'ftp://xxxxx@proxy:3128'"},
		"GLOVEBOX_PERPLEXITY_ALIASES": {"maybe", "GLOVEBOX_PERPLEXITY_ALIASES must be one of: true"},
	} {
		c, _, err := load(t, nil, name, test.value)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := c.Search.Invalid; got == nil || !strings.Contains(got.Error(), test.want) || strings.Contains(got.Error(), "secret") {
			t.Errorf("%s=%s: got %v, want %q", name, test.value, got, test.want)
		}
		if c.PerplexityURL != "https://api.perplexity.ai" || c.PerplexityMode != "auto" || c.PerplexityTimeout == 0 || c.PerplexityProxy != "" || c.Search.Explicit {
			t.Errorf("%s: got %+v, want the defaults", name, c)
		}
	}
	const proxy = "http://user:secret@proxy:3128"
	c, _, err := load(t, nil, "PERPLEXITY_PROXY", proxy)
	if err != nil || c.Search.Invalid != nil || c.PerplexityProxy != proxy {
		t.Errorf("a proxy with a password: got %q, %v, %v", c.PerplexityProxy, c.Search.Invalid, err)
	}
	next, _, err := load(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, changes, _ := c.Adopt(next); len(changes) != 1 || strings.Contains(changes[0].From, "secret") {
		t.Errorf("a change of the proxy: got %+v", changes)
	}
	if _, _, err := load(t, []string{"--perplexity-api-mode=sonar"}); err == nil || !strings.Contains(err.Error(), "--perplexity-api-mode must be one of") {
		t.Errorf("an invalid flag: got %v", err)
	}
	if c, _, err := load(t, []string{"--perplexity-api-mode=chat"}); err != nil || !c.Search.Explicit {
		t.Errorf("a flag: got %+v, %v", c, err)
	}
}

// An error in the configuration file does not quote it: it may have the key.
func TestLoad_InvalidFileNamesPosition(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	for text, want := range map[string]string{
		"{\n  \"perplexity-api-key\": pplx-SECRET}": "invalid JSON at line 2, column 25",
		`{"perplexity-api-key": "pplx-SECRET`:       "invalid JSON at line 1, column",
		`{"perplexity-api-key": {"pplx-SECRET":1}}`: "perplexity-api-key must not be an object",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := load(t, []string{"--config", path}); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}
