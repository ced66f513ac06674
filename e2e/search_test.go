package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/perplexity/perplexitytest"
	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// TestSearch: the server of web search answers stock clients, from a stand-in for the API.
func TestSearch(t *testing.T) {
	t.Parallel()
	clients(t)
	for _, g := range generations {
		t.Run(g.sdk+"/"+g.era, func(t *testing.T) {
			api := perplexitytest.New(t)
			env := append(environment(t, t.TempDir()), "PERPLEXITY_API_KEY="+perplexitytest.Key, "PERPLEXITY_BASE_URL="+api.URL)
			out := node(t, env, "search.mjs", g.sdk, g.era, "stdio", glovebox(t), "search", "stdio", "--perplexity-aliases")
			if n := strings.Count(string(out), "perplexity_"); n != 8 {
				t.Errorf("got %s, want 8 tools", out)
			}
			polltest.Until(t, 10*time.Second, "the run of the cancelled call is cancelled", func() bool { return len(api.Cancelled()) == 1 })
		})
	}
}
