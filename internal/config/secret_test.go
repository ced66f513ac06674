package config

import (
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
