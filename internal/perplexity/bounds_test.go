package perplexity

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/glovebox-dev/glovebox/internal/perplexity/perplexitytest"
)

// elements returns a JSON array of about maxBody bytes.
func elements(one string) string {
	return "[" + strings.TrimSuffix(strings.Repeat(one+",", (maxBody-200)/(len(one)+1)), ",") + "]"
}

// serving returns a client of a server that answers every request with a body.
func serving(t *testing.T, contentType, body string) *Client {
	t.Helper()
	url := perplexitytest.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		io.WriteString(w, body)
	})
	c, err := New(Options{Key: perplexitytest.Key, BaseURL: url, Mode: Agent})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// An answer of many small elements is refused before it takes a multiple of its size in
// memory.
func TestBounds_Elements(t *testing.T) {
	const event = "data: %s\n\n"
	message := func(member, list string) string {
		return `{"type":"message","` + member + `":` + list + `}`
	}
	for name, test := range map[string]struct {
		chat              bool
		contentType, body string
	}{
		"search":         {false, "application/json", `{"results":` + elements("{}") + `}`},
		"items":          {false, "application/json", `{"output":` + elements("{}") + `}`},
		"contents":       {false, "application/json", `{"output":[` + message("content", elements("{}")) + `]}`},
		"sources":        {false, "application/json", `{"output":[` + message("results", elements("{}")) + `]}`},
		"sum of sources": {false, "application/json", `{"output":` + elements(message("results", "["+strings.Repeat("{},", 499)+"{}]")) + `}`},
		"stream":         {false, "text/event-stream", strings.Repeat(fmt.Sprintf(event, `{"type":"response.output_item.done","item":{"type":"message"}}`), 2000)},
		"queries":        {false, "text/event-stream", fmt.Sprintf(event, `{"type":"response.reasoning.search_queries","queries":`+elements(`""`)+`}`)},
		"text":           {false, "text/event-stream", strings.Repeat(fmt.Sprintf(event, `{"type":"response.output_text.delta","delta":"`+strings.Repeat("x", 1<<20)+`"}`), 5)},
		"choices":        {true, "application/json", `{"choices":` + elements("{}") + `}`},
		"citations":      {true, "application/json", `{"citations":` + elements(`""`) + `}`},
		"images":         {true, "application/json", `{"images":` + elements(`{}`) + `}`},
		"related":        {true, "application/json", `{"related_questions":` + elements(`""`) + `}`},
		"chat text":      {true, "text/event-stream", strings.Repeat(fmt.Sprintf(event, `{"choices":[{"delta":{"content":"`+strings.Repeat("x", 1<<20)+`"}}]}`), 5)},
	} {
		t.Run(name, func(t *testing.T) {
			c := serving(t, test.contentType, test.body)
			if test.chat {
				c.o.Mode = Chat
			}
			tool, args := "perplexity_ask", ask("q")
			if name == "search" {
				tool, args = "perplexity_search", `{"query": "q"}`
			}
			u := connect(t, c)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			res := u.use(tool, args)
			runtime.ReadMemStats(&after)
			if got := text(t, res); !res.IsError || !strings.Contains(got, "too large") && !strings.Contains(got, "larger than") {
				t.Errorf("got %.200q", got)
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > 100<<20 {
				t.Errorf("the call allocated %d MB", got>>20)
			}
		})
	}
}

// The values of an error are text, whatever they are.
func TestBounds_ErrorOfManyValues(t *testing.T) {
	c := serving(t, "text/event-stream", `data: {"type":"response.failed","error":{"message":`+elements("{}")+"}}\n\n")
	u := connect(t, c)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	res := u.use("perplexity_ask", ask("q"))
	runtime.ReadMemStats(&after)
	if got := text(t, res); !res.IsError || len(got) > 2000 {
		t.Errorf("got %.200q", got)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 100<<20 {
		t.Errorf("the call allocated %d MB", got>>20)
	}
}

// The time to join citations with results does not grow with the product of their
// numbers.
func TestChat_ManyCitations(t *testing.T) {
	var chat chatAnswer
	chat.whole = "x"
	const n = 20_000
	for i := range n {
		url := fmt.Sprintf("https://%s.example/%d", strings.Repeat("x", 60), i)
		chat.last.Citations = append(chat.last.Citations, url)
		chat.last.Results = append(chat.last.Results, source{URL: url, Title: fmt.Sprint(n - i)}, source{URL: url, Title: "again"})
	}
	begun := time.Now()
	a, err := chat.answer(&question{})
	if err != nil || len(a.sources) != n {
		t.Fatalf("got %d sources, %v", len(a.sources), err)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	for i, s := range a.sources {
		if *s.ID != i+1 || s.Title != fmt.Sprint(n-i) {
			t.Fatalf("source %d: got %d, %q", i, *s.ID, s.Title)
		}
	}
}

// Elements without text count for the cache.
func TestCache_CountsElements(t *testing.T) {
	if n := (&answer{sources: make([]source, 1000), images: make([]string, 1000), related: make([]string, 1000)}).size(); n < 3000*100 {
		t.Errorf("3000 empty elements have the size %d", n)
	}
}

// One owner has half of the cache, and displaces none but its own answers.
func TestCache_ShareOfOwner(t *testing.T) {
	c := newCache()
	c.put("bob", "bob", &answer{text: "bob"})
	for i := range 10 * maxCached {
		c.put("alice", fmt.Sprint("alice", i%maxCached), &answer{text: "alice"})
	}
	if a, _ := c.get("bob"); a == nil {
		t.Error("the answer of another owner is gone")
	}
	n := 0
	for i := range maxCached {
		if a, _ := c.get(fmt.Sprint("alice", i)); a != nil {
			n++
		}
	}
	if newest, _ := c.get(fmt.Sprint("alice", maxCached-1)); n != maxOwnerCached || newest == nil {
		t.Errorf("one owner has %d answers, the newest one: %v; want %d", n, newest, maxOwnerCached)
	}
	for i := range 2 * maxCached {
		c.put(fmt.Sprint("owner", i), fmt.Sprint("owner", i), &answer{text: "x"})
	}
	if len(c.owners) != maxCached {
		t.Errorf("%d owners are counted, want %d", len(c.owners), maxCached)
	}
}

// roundTrip is an http.RoundTripper that calls a handler in place.
type roundTrip struct{ http.Handler }

func (r roundTrip) RoundTrip(req *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	r.ServeHTTP(w, req)
	return w.Result(), nil
}

// A gateway that had no agent API once is asked for it again later.
func TestChat_TriesAgentAgain(t *testing.T) {
	api := perplexitytest.New(t)
	api.ChatOnly = true
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Options{Key: perplexitytest.Key, BaseURL: "https://gateway.example"})
		if err != nil {
			t.Fatal(err)
		}
		c.http.Transport = roundTrip{api} // no network in the bubble
		tried := func() string {
			t.Helper()
			before := len(api.Requests())
			if _, err := c.ask(t.Context(), &question{messages: []message{{"user", "q"}}, preset: "fast", chatModel: "sonar"}, func(string) {}); err != nil {
				t.Fatal(err)
			}
			var paths []string
			for _, r := range api.Requests()[before:] {
				paths = append(paths, r.Path)
			}
			return strings.Join(paths, " ")
		}
		for _, step := range []struct {
			wait time.Duration
			want string
		}{{0, "/v1/agent /chat/completions"}, {9 * time.Minute, "/chat/completions"}, {time.Minute, "/v1/agent /chat/completions"}} {
			time.Sleep(step.wait)
			if got := tried(); got != step.want {
				t.Errorf("after %v more: asked %q, want %q", step.wait, got, step.want)
			}
		}
		api.ChatOnly = false
		time.Sleep(10 * time.Minute)
		if got := tried(); got != "/v1/agent" {
			t.Errorf("of a gateway that has it by now: asked %q", got)
		}
	})
}

// A key that goes over HTTP to this machine goes through no proxy.
func TestNew_NoProxyForHTTP(t *testing.T) {
	api := perplexitytest.New(t)
	asked := make(chan string, 10)
	proxy := perplexitytest.Serve(t, func(_ http.ResponseWriter, r *http.Request) { asked <- r.Header.Get("Authorization") })
	c, _ := newClient(t, api, func(o *Options) { o.Proxy = proxy })
	if res := connect(t, c).use("perplexity_search", `{"query": "q"}`); res.IsError {
		t.Errorf("got %q", text(t, res))
	}
	select {
	case key := <-asked:
		t.Errorf("the proxy got %q", key)
	default:
	}
}
