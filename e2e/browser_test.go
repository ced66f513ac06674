package e2e

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"
)

// browser returns the environment of a client that drives a browser.
func browser(t *testing.T) (env string) {
	t.Helper()
	clients(t)
	path, err := exec.LookPath("chromium")
	if err != nil {
		lacking(t, "no browser: %v; scripts/setup test installs it", err)
	}
	return "CHROMIUM=" + path
}

// TestPageInBrowser uses the server from pages in a real browser with fetch, across
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
	use := func(t *testing.T, p *steady, steps ...string) {
		t.Helper()
		converse(t, append(environment(t, dir), chromium), p.restart, append([]string{"browser.mjs", p.front.url}, steps...)...)
	}
	t.Run("any origin", func(t *testing.T) {
		p := launchSteady(t, dir, "MCP_ENABLE_CORS=true")
		use(t, p, "use", site.URL+"/page.html")
		p.stop(t)
	})
	t.Run("origins on a list", func(t *testing.T) {
		p := launchSteady(t, dir, "GLOVEBOX_ALLOWED_ORIGINS=https://other.example,"+origin("app"))
		use(t, p,
			"use", origin("app")+"/page.html",
			"refused", origin("foreign")+"/page.html",
			"refused", site.URL+"/page.html", // of this machine, and not on the list
			"rebound", strings.Replace(p.front.url, "127.0.0.1", "rebound.example", 1))
		list, err := json.Marshal(p.call(t, "list_contexts", map[string]any{}).StructuredContent)
		if err != nil || bytes.Contains(list, []byte("of-a-foreign-page")) {
			t.Errorf("a page that is not allowed has made a context: %s, %v", list, err)
		}
		p.stop(t)
	})
}

// TestAttackInBrowser has pages attack a server with the default settings: of a foreign
// site, of another port of loopback, and of names that lead to the server itself.
func TestAttackInBrowser(t *testing.T) {
	t.Parallel()
	chromium := browser(t)
	site := httptest.NewServer(http.FileServer(http.Dir("."))) // knows no names of its own
	t.Cleanup(site.Close)
	_, port, err := net.SplitHostPort(strings.TrimPrefix(site.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	dir := state(t)
	pages := []string{
		"attack", site.URL + "/page.html", // of this machine
		"attack", strings.Replace(site.URL, "127.0.0.1", "localhost", 1) + "/page.html",
		"attack", "http://foreign.example:" + port + "/page.html",
	}
	p := launchSteady(t, dir)
	for _, name := range []string{"rebound.example", "127.0.0.1.rebound.example"} {
		pages = append(pages, "rebound", strings.Replace(p.front.url, "127.0.0.1", name, 1))
	}
	converse(t, append(environment(t, dir), chromium), p.restart, append([]string{"browser.mjs", p.front.url}, pages...)...)
	list, err := json.Marshal(p.call(t, "list_contexts", map[string]any{}).StructuredContent)
	if err != nil || bytes.Contains(list, []byte("of-a-foreign-page")) {
		t.Errorf("a page has made a context: %s, %v", list, err)
	}
	p.stop(t)
}
