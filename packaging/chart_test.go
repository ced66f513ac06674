package packaging

import (
	"regexp"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/config"
)

// TestChart_SetsKnownSettings: each variable that the chart sets, refuses, or names in its
// comments is one that the program reads.
func TestChart_SetsKnownSettings(t *testing.T) {
	// The server ignores the other two, and the chart refuses them because they hold secrets.
	known := map[string]bool{config.FileEnv: true, "PERPLEXITY_BEARER_TOKEN": true, "MSB_API_KEY": true}
	for _, k := range config.Keys() {
		for _, env := range k.Env {
			known[env] = true
		}
	}
	count := 0
	for _, file := range []string{"templates/deployment.yaml", "templates/_helpers.tpl", "values.yaml"} {
		for _, name := range regexp.MustCompile(`\b(?:GLOVEBOX|MCP|MSB|PERPLEXITY)_[A-Z_]+`).FindAllString(read(t, "helm/glovebox/"+file), -1) {
			count++
			if !known[name] {
				t.Errorf("%s names %s, which no setting has", file, name)
			}
		}
	}
	if count < 30 {
		t.Errorf("found only %d variables", count)
	}
}
