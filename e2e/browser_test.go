package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"slices"
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

// errAttackSucceeded is the error of attackFromPages if a page could read or change
// something.
var errAttackSucceeded = errors.New("a page has attacked the server")

// attackFromPages has pages attack a server whose endpoint for them is url. Steps are those
// of browser.mjs.
func attackFromPages(t *testing.T, chromium string, p *process, url string, steps ...string) error {
	t.Helper()
	_, err := tryNode(t, append(environment(t, t.TempDir()), chromium), append([]string{"browser.mjs", url}, steps...)...)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 3 {
		return fmt.Errorf("%w: %w", errAttackSucceeded, err)
	}
	if err != nil {
		return err
	}
	list, err := json.Marshal(p.call(t, "list_contexts", map[string]any{}).StructuredContent)
	if err == nil && bytes.Contains(list, []byte("of-a-foreign-page")) {
		return fmt.Errorf("%w: it has made a context: %s", errAttackSucceeded, list)
	}
	return err
}

// pagesOf returns steps by the kind of page that attacks the server at url: of this
// machine, of a foreign site, and of names that lead to the server itself.
func pagesOf(t *testing.T, url string) map[string][]string {
	t.Helper()
	site := httptest.NewServer(http.FileServer(http.Dir("."))) // knows no names of its own
	t.Cleanup(site.Close)
	_, port, err := net.SplitHostPort(strings.TrimPrefix(site.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]string{
		"another port of loopback":  {"attack", site.URL + "/page.html"},
		"another port of localhost": {"attack", "http://localhost:" + port + "/page.html"},
		"foreign site":              {"attack", "http://foreign.example:" + port + "/page.html"},
		"rebound name":              {"rebound", strings.Replace(url, "127.0.0.1", "rebound.example", 1)},
		"rebound name with address": {"rebound", strings.Replace(url, "127.0.0.1", "127.0.0.1.rebound.example", 1)},
	}
}

// TestAttackInBrowser has pages attack a server with the default settings.
func TestAttackInBrowser(t *testing.T) {
	t.Parallel()
	chromium := browser(t)
	p := launch(t, state(t))
	var steps []string
	for _, pages := range pagesOf(t, p.url) {
		steps = append(steps, pages...)
	}
	if err := attackFromPages(t, chromium, p, p.url, steps...); err != nil {
		t.Error(err)
	}
	p.stop(t)
}

// TestAttackInBrowser_Control: each kind of page succeeds against a server that is weakened
// for it, and the judge notices.
func TestAttackInBrowser_Control(t *testing.T) {
	t.Parallel()
	chromium := browser(t)
	dir := state(t)
	t.Run("settings", func(t *testing.T) {
		p := launch(t, dir, "MCP_ENABLE_CORS=true", "GLOVEBOX_ALLOWED_HOSTS=rebound.example,127.0.0.1.rebound.example")
		pages := pagesOf(t, p.url)
		err := attackFromPages(t, chromium, p, p.url, slices.Concat(slices.Collect(maps.Values(pages))...)...)
		if !errors.Is(err, errAttackSucceeded) {
			t.Fatalf("got %v, want that pages have attacked the server", err)
		}
		for kind, steps := range pages {
			t.Run(kind, func(t *testing.T) {
				read := func(line string) bool {
					return strings.HasPrefix(line, steps[1]+" ") && strings.Contains(line, "list to http://") && strings.HasSuffix(line, ": read 200")
				}
				if !slices.ContainsFunc(strings.Split(err.Error(), "\n"), read) {
					t.Errorf("got %v, want that %s could read a list of tools", err, steps[1])
				}
			})
		}
		p.stop(t)
	})
	// Pages that cannot read the answer still make calls if nothing checks where requests
	// come from and what type they have.
	t.Run("no checks", func(t *testing.T) {
		p := launch(t, dir)
		target, err := url.Parse(p.url)
		if err != nil {
			t.Fatal(err)
		}
		careless := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = target.Scheme, target.Host, target.Host
			r.Out.Header.Del("Origin")
			r.Out.Header.Set("Content-Type", "application/json")
			r.Out.Header.Set("Accept", "application/json, text/event-stream")
		}})
		defer careless.Close()
		front := careless.URL + target.Path
		err = attackFromPages(t, chromium, p, front, pagesOf(t, front)["foreign site"]...)
		if !errors.Is(err, errAttackSucceeded) || !strings.Contains(err.Error(), "made a context") {
			t.Errorf("got %v, want that a page has made a context", err)
		}
		p.stop(t)
	})
}
