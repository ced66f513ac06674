package mcpkit

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// Errors of every kind show the host of a server, and no key in its URL.
func TestErrors_HideKeysOfURLs(t *testing.T) {
	const path, query = "/v1/key-in-path/mcp", "?key=key-in-query"
	for name, odd := range map[string]func(w http.ResponseWriter, r *http.Request){
		"hangs up": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"declares a huge body": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", "1000000000000")
		},
		"redirects, and then hangs up": func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/") {
				panic(http.ErrAbortHandler)
			}
			http.Redirect(w, r, r.URL.Path+"/?"+r.URL.RawQuery, http.StatusTemporaryRedirect)
		},
	} {
		t.Run(name, func(t *testing.T) {
			at := hostileHTTP(t, func(w http.ResponseWriter, r *http.Request, m message) bool {
				if m.Params.Name == "odd" {
					odd(w, r)
				}
				return m.Params.Name == "odd"
			})
			s := session(t, manager(t, Options{Limits: limitsFor("")}, endpoint("srv", at+path+query)), "srv")
			_, err := call(t, s, "odd", nil)
			checkHidden(t, err, at)
		})
	}
	down := httptest.NewServer(http.NotFoundHandler())
	down.Close()
	for name, transport := range map[string]mcpjson.Transport{"down": mcpjson.TransportHTTP, "down, the older transport": mcpjson.TransportSSE} {
		t.Run(name, func(t *testing.T) {
			def := endpoint("srv", down.URL+path+query)
			def.Transport = transport
			s := session(t, manager(t, Options{Limits: limitsFor("")}, def), "srv")
			_, err := s.Initialize(t.Context())
			checkHidden(t, err, down.URL)
			checkHidden(t, s.Notify(t.Context(), "notifications/x", nil), down.URL)
		})
	}
}

func checkHidden(t *testing.T, err error, origin string) {
	t.Helper()
	if err == nil || strings.Contains(err.Error(), "key-in") || !strings.Contains(err.Error(), `"`+origin+`"`) {
		t.Errorf("got %v, want an error with %q and without the rest of the URL", err, origin)
	}
}

func TestWithoutURLs(t *testing.T) {
	for in, want := range map[string]string{
		`sending "x": Get "https://h:1/p/KEY?k=KEY#KEY": EOF`:              `sending "x": Get "https://h:1": EOF`,
		`Get "https://KEY:***@h/p": EOF`:                                   `Get "https://h": EOF`,
		`Get "https://h/p?k=KEY \"KEY\" KEY": EOF`:                         `Get "https://h": EOF`,
		`parse "HTTPS://H?k=KEY\x7f": invalid`:                             `parse "https://h": invalid`,
		`Get "https://other/KEY": redirected by Get "https://third/KEY"`:   `Get "https://other": redirected by Get "https://third"`,
		`metadata of the server at https://h/.well-known/x/KEY: 404`:       `metadata of the server at https://h: 404`,
		`see https://h/KEY, or https://login.example/tenant`:               `see https://h, or https://login.example/tenant`,
		`dial tcp 127.0.0.1:1: connect: connection refused; "quoted" text`: `dial tcp 127.0.0.1:1: connect: connection refused; "quoted" text`,
		`"https://`: `"https://`,
	} {
		flat := errors.New(in)
		if got := withoutURLs(flat, originsOf("https://h/KEY", "")); got.Error() != want || !errors.Is(got, flat) {
			t.Errorf("%s\ngot  %v\nwant %s", in, got, want)
		}
	}
	answer := &jsonrpc.Error{Message: `no page at "https://h/page"`}
	err := fmt.Errorf("%w after %w", answer, &url.Error{Op: "Get", URL: "https://h/KEY", Err: errors.New("EOF")})
	if got, want := withoutURLs(err, nil).Error(), answer.Message+` after Get "https://h": EOF`; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if err := withoutURLs(nil, nil); err != nil {
		t.Error(err)
	}
}
