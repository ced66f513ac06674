// Package perplexitytest is a stand-in for Perplexity's API on loopback, for tests. It was
// written from the published types of the API, which it applies strictly: it refuses
// unknown fields, as the API does, and streams the published events in their order.
//
// The API behaves as a word in the question says, such as "please scenario:cut"; without
// one it answers.
package perplexitytest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Key is the key that the API accepts.
const Key = "pplx-0123456789abcdefStandIn"

// An API is a running stand-in.
type API struct {
	URL string

	// ChatOnly makes it a gateway that has POST /chat/completions, and no agent API.
	ChatOnly bool

	left chan string

	mu        sync.Mutex
	requests  []Request // guarded by mu
	cancelled []string  // guarded by mu
}

// A Request is what a client asked.
type Request struct {
	Path   string
	Header http.Header
	Body   map[string]any
}

// New starts a stand-in, which the end of the test stops.
func New(t testing.TB) *API {
	a, stop := Start()
	t.Cleanup(stop)
	return a
}

// Start is New without a test: the caller stops the stand-in.
func Start() (a *API, stop func()) {
	a = &API{left: make(chan string, 100)}
	s := httptest.NewServer(a)
	a.URL = s.URL
	return a, s.Close
}

// Requests returns the requests so far, except those that cancel.
func (a *API) Requests() []Request {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.requests)
}

// Cancelled returns the ids of the runs that were to be cancelled.
func (a *API) Cancelled() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.cancelled)
}

// Left gets a word for each client that closed the connection of a silent run.
func (a *API) Left() <-chan string { return a.left }

var scenarioWord = regexp.MustCompile(`scenario:([a-z-]+)`)

// ServeHTTP implements [http.Handler].
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 32<<20))
	if err != nil {
		return
	}
	if r.Method != http.MethodPost {
		refuse(w, http.StatusMethodNotAllowed, "invalid_request", "method not allowed")
		return
	}
	if got := r.Header.Get("Authorization"); got != "Bearer "+Key {
		// The API repeats the key that it rejects.
		refuse(w, http.StatusUnauthorized, "invalid_api_key", "Invalid API key provided: "+strings.TrimPrefix(got, "Bearer "))
		return
	}
	if id, ok := strings.CutPrefix(r.URL.Path, "/v1/agent/"); ok && !a.ChatOnly {
		if id, ok = strings.CutSuffix(id, "/cancel"); ok {
			a.mu.Lock()
			a.cancelled = append(a.cancelled, id)
			a.mu.Unlock()
			reply(w, map[string]any{"response_id": id, "status": "cancelling"})
			return
		}
	}
	var fields map[string]any
	if json.Unmarshal(body, &fields) != nil {
		refuse(w, http.StatusBadRequest, "invalid_request", "invalid request body")
		return
	}
	a.mu.Lock()
	a.requests = append(a.requests, Request{r.URL.Path, r.Header.Clone(), fields})
	a.mu.Unlock()
	scenario := ""
	if m := scenarioWord.FindSubmatch(body); m != nil {
		scenario = string(m[1])
	}
	switch scenario {
	case "limit":
		w.Header().Set("X-RateLimit-Limit", "50")
		w.Header().Set("X-RateLimit-Remaining", "0")
		w.Header().Set("X-RateLimit-Reset", "17")
		refuse(w, http.StatusTooManyRequests, "request_rate_limit_exceeded", "Request rate limit exceeded")
		return
	case "limit-unknown":
		refuse(w, http.StatusTooManyRequests, "request_rate_limit_exceeded", "Request rate limit exceeded")
		return
	case "overloaded":
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusServiceUnavailable)
		io.WriteString(w, "<html><body><h1>503 Service Temporarily Unavailable</h1></body></html>")
		return
	case "forbidden":
		refuse(w, http.StatusForbidden, "forbidden", "This key may not use the model")
		return
	case "redirect":
		http.Redirect(w, r, "http://127.0.0.1:1/elsewhere", http.StatusTemporaryRedirect)
		return
	case "not-json":
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, "<!doctype html>")
		return
	case "huge":
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"results":[],"padding":"`)
		for chunk := bytes.Repeat([]byte("x"), 64<<10); ; {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}
	switch {
	case r.URL.Path == "/search":
		search(w, body, scenario)
	case r.URL.Path == "/v1/agent" && !a.ChatOnly:
		a.agent(w, r, body, scenario)
	case r.URL.Path == "/chat/completions" && a.ChatOnly:
		chat(w, body, scenario)
	default:
		refuse(w, http.StatusNotFound, "not_found", "no such path")
	}
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v)
}

// refuse sends the error object of the API.
func refuse(w http.ResponseWriter, status int, code, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": text, "type": code, "code": code, "param": nil}})
}

// strict decodes a body as the API does, or sends its error.
func strict(w http.ResponseWriter, body []byte, into any) bool {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		refuse(w, http.StatusBadRequest, "invalid_request", "invalid request body: "+err.Error())
		return false
	}
	return true
}

// oneOf sends an error unless word is empty or one of the choices.
func oneOf(w http.ResponseWriter, field, word string, choices ...string) bool {
	if word == "" || slices.Contains(choices, word) {
		return true
	}
	refuse(w, http.StatusBadRequest, "invalid_request", fmt.Sprintf("%s must be one of %q", field, choices))
	return false
}

func result(id int, host string) map[string]any {
	return map[string]any{"id": id, "title": "Title of " + host, "url": "https://" + host + "/page", "snippet": "Snippet of " + host,
		"date": "2026-11-01", "last_updated": "2026-11-02", "source": "web"}
}

func search(w http.ResponseWriter, body []byte, scenario string) {
	var in struct {
		Query            string   `json:"query"`
		MaxResults       int      `json:"max_results"`
		MaxTokens        int      `json:"max_tokens"`
		MaxTokensPerPage int      `json:"max_tokens_per_page"`
		Country          string   `json:"country"`
		Domains          []string `json:"search_domain_filter"`
		Languages        []string `json:"search_language_filter"`
		Recency          string   `json:"search_recency_filter"`
		Mode             string   `json:"search_mode"`
		Type             string   `json:"search_type"`
		ContextSize      string   `json:"search_context_size"`
	}
	if !strict(w, body, &in) || !oneOf(w, "search_recency_filter", in.Recency, "hour", "day", "week", "month", "year") ||
		!oneOf(w, "search_type", in.Type, "web", "fast", "people") {
		return
	}
	if in.Query == "" || in.MaxResults < 1 || in.MaxResults > 20 || len(in.Country) != 0 && len(in.Country) != 2 {
		refuse(w, http.StatusBadRequest, "invalid_request", "query, max_results or country is not valid")
		return
	}
	results := []any{}
	for i := range in.MaxResults {
		if scenario == "nothing" {
			break
		}
		r := result(0, fmt.Sprintf("site%d.example", i+1))
		delete(r, "id")
		delete(r, "source")
		if scenario == "key" {
			r["snippet"] = "The key is " + Key + "."
		}
		results = append(results, r)
	}
	reply(w, map[string]any{"id": "search_1", "results": results, "server_time": "2026-11-23T10:00:00Z"})
}

// Serve starts another server on loopback and returns its URL.
func Serve(t testing.TB, h http.HandlerFunc) string {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}
