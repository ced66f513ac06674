package server

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/server/auth"
	"github.com/glovebox-dev/glovebox/internal/server/statuspage"
)

// look is a GET of a server that does not listen.
func look(t *testing.T, s *Server, method, path, accept string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, "http://127.0.0.1"+path, nil)
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w
}

func TestReady_ReportsReasons(t *testing.T) {
	why := []string{"the health check is under way"}
	s := New(Options{Ready: func() []string { return why }})
	w := look(t, s, "GET", "/ready", "")
	var answer struct {
		Ready   bool
		Reasons []string
	}
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		t.Fatal(err)
	}
	if w.Code != http.StatusServiceUnavailable || answer.Ready || !slices.Equal(answer.Reasons, why) || w.Header().Get("Retry-After") == "" {
		t.Errorf("before: got %d %s", w.Code, w.Body)
	}
	if w := look(t, s, "GET", "/health", ""); w.Code != http.StatusOK {
		t.Errorf("a server that is not ready is alive: got %d", w.Code)
	}
	why = nil
	if w := look(t, s, "GET", "/ready", ""); w.Code != http.StatusOK || !s.Ready() {
		t.Errorf("then: got %d %s", w.Code, w.Body)
	}
	if w := look(t, s, "HEAD", "/ready", ""); w.Code != http.StatusOK {
		t.Errorf("HEAD: got %d", w.Code)
	}
	if w := look(t, s, "POST", "/ready", ""); w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "GET, HEAD" {
		t.Errorf("POST: got %d", w.Code)
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w := look(t, s, "GET", "/ready", ""); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "stopping") {
		t.Errorf("at the end: got %d %s", w.Code, w.Body)
	}
	if w := look(t, s, "GET", "/health", ""); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "draining") {
		t.Errorf("at the end: a server that stops is alive: got %d %s", w.Code, w.Body)
	}
}

func TestStatusByAccept(t *testing.T) {
	s := New(Options{
		Version: "v9", Status: func(context.Context) map[string]any { return map[string]any{"sessions": 3} },
		Page: func(_ context.Context, p *statuspage.Page) {
			p.Boxes = []statuspage.Box{{ID: "a", Name: "<script>x</script>"}}
		},
	})
	const browser = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
	for _, path := range []string{"/", "/mcp"} {
		w := look(t, s, "GET", path, browser)
		body := w.Body.String()
		if w.Code != 200 || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") || !strings.Contains(body, "v9") ||
			!strings.Contains(body, "&lt;script&gt;x") || w.Header().Get("Content-Security-Policy") == "" {
			t.Errorf("a browser at %s: got %d %s %.200s", path, w.Code, w.Header(), body)
		}
		for _, accept := range []string{"", "*/*", "application/json"} {
			w := look(t, s, "GET", path, accept)
			var status map[string]any
			if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil || status["sessions"] != 3.0 || status["ready"] != true {
				t.Errorf("%s, Accept %q: got %d %s", path, accept, w.Code, w.Body)
			}
		}
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w := look(t, s, "GET", "/", browser); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "stopping") {
		t.Errorf("the page of a server that stops: got %d", w.Code)
	}
}

func TestMetricsAndRefusals(t *testing.T) {
	var mu sync.Mutex
	var refused []int
	s := New(Options{
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("up 1\n")) }),
		Refused: func(status int) {
			mu.Lock()
			defer mu.Unlock()
			refused = append(refused, status)
		},
	})
	if w := look(t, s, "GET", "/metrics", ""); w.Code != 200 || w.Body.String() != "up 1\n" {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	look(t, s, "DELETE", "/metrics", "")
	look(t, s, "GET", "/nowhere", "")
	look(t, s, "POST", "/mcp", "")
	if want := []int{405, 404, 415}; !slices.Equal(refused, want) {
		t.Errorf("refused: got %v, want %v", refused, want)
	}
	if w := look(t, New(Options{}), "GET", "/metrics", ""); w.Code != http.StatusNotFound {
		t.Errorf("without metrics: got %d", w.Code)
	}
}

func TestFaults_CountsByCode(t *testing.T) {
	s := New(Options{})
	look(t, s, "GET", "/", "text/html")
	for range 3 {
		post(t, s, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"no such tool"}}`)
	}
	list := s.faults.list()
	if len(list) != 1 || list[0].Code != -32601 || list[0].Count != 3 || list[0].Last.IsZero() {
		t.Errorf("got %+v", list)
	}
	s.faults.add(12345, list[0].Last)
	if list = s.faults.list(); len(list) != 2 || list[0].Code+list[1].Code != -32601 {
		t.Errorf("an unknown code: got %+v", list)
	}
}

// post sends a message and returns the answer.
func post(t *testing.T, s *Server, body string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), "POST", "http://127.0.0.1/mcp", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w
}

// The page shows the boxes of the caller, and none to a token that may only see the
// status.
func TestPage_RespectsScopes(t *testing.T) {
	p := newPeople(t)
	p.add(t, "alice watching", "alice", auth.Use, auth.Metrics)
	if err := p.v.Reload(); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var last statuspage.Page
	_, url := serve(t, p.options(func(o *Options) {
		o.Page = func(_ context.Context, p *statuspage.Page) {
			mu.Lock()
			defer mu.Unlock()
			last = *p
		}
		o.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("up 1")) })
	}))
	base := strings.TrimSuffix(url, "/mcp")
	for _, c := range []struct {
		token   string
		status  int
		subject string
		noBoxes bool
	}{
		{"alice watching", 200, "alice", false},
		{"monitor", 200, "monitor", true},
		{"bob", 403, "", false},
		{"", 401, "", false},
	} {
		h := header{"Accept": "text/html"}
		if c.token != "" {
			h["Authorization"] = "Bearer " + p.tokens[c.token]
		}
		mu.Lock()
		last = statuspage.Page{}
		mu.Unlock()
		res, body := do(t, "GET", base+"/", h, "")
		mu.Lock()
		if res.StatusCode != c.status || !strings.HasSuffix(last.Subject, c.subject) || (last.Subject == "") != (c.subject == "") || last.NoBoxes != c.noBoxes {
			t.Errorf("%q: got %s, %q, %v", c.token, res.Status, last.Subject, last.NoBoxes)
		}
		mu.Unlock()
		if c.noBoxes != strings.Contains(body, "may not list them") {
			t.Errorf("%q: got the page %s", c.token, body)
		}
		if res, _ := do(t, "GET", base+"/metrics", h, ""); res.StatusCode != c.status {
			t.Errorf("%q: /metrics: got %s", c.token, res.Status)
		}
		// Load balancers have no token, and learn nothing that needs one.
		for _, path := range []string{"/health", "/ready"} {
			if res, _ := do(t, "GET", base+path, header{}, ""); res.StatusCode != 200 {
				t.Errorf("%s: got %s", path, res.Status)
			}
		}
	}
}
