package e2e

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"strings"
	"testing"
)

// browser returns what a client needs besides that drives one.
func browser(t *testing.T) (env string) {
	t.Helper()
	clients(t)
	path, err := exec.LookPath("chromium")
	if err != nil {
		lacking(t, "no browser: %v; scripts/setup test installs it", err)
	}
	return "CHROMIUM=" + path
}

// TestPageInBrowser has pages in a real browser use the server with fetch, across
// origins.
func TestPageInBrowser(t *testing.T) {
	t.Parallel()
	chromium := browser(t)
	site := httptest.NewServer(http.FileServer(http.Dir("."))) // knows no names of its own
	t.Cleanup(site.Close)
	_, port, err := net.SplitHostPort(strings.TrimPrefix(site.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	origin := func(name string) string { return "http://" + name + ".example:" + port }
	dir := state(t)
	t.Run("any origin", func(t *testing.T) {
		p := launchSteady(t, dir, "MCP_ENABLE_CORS=true")
		converse(t, append(environment(t, dir), chromium), p.restart, "browser.mjs", "use", site.URL+"/page.html", p.front.url)
		p.stop(t)
	})
	t.Run("origins on a list", func(t *testing.T) {
		p := launchSteady(t, dir, "GLOVEBOX_ALLOWED_ORIGINS=https://other.example,"+origin("app"))
		converse(t, append(environment(t, dir), chromium), p.restart, "browser.mjs", "use", origin("app")+"/page.html", p.front.url)
		for name, address := range map[string]string{"foreign": origin("foreign"), "of this machine": site.URL} {
			t.Run(name, func(t *testing.T) {
				node(t, append(environment(t, dir), chromium), "browser.mjs", "refused", address+"/page.html", p.front.url)
			})
		}
		t.Run("rebound name", func(t *testing.T) {
			u, err := url.Parse(p.front.url)
			if err != nil {
				t.Fatal(err)
			}
			node(t, append(environment(t, dir), chromium), "browser.mjs", "rebound", "http://rebound.example:"+u.Port()+"/mcp")
		})
		if list, err := json.Marshal(p.call(t, "list_contexts", map[string]any{}).StructuredContent); err != nil || bytes.Contains(list, []byte("of-a-foreign-page")) {
			t.Errorf("a page that is not allowed has made a context: %s, %v", list, err)
		}
		p.stop(t)
	})
}
