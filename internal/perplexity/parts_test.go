package perplexity

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/perplexity/perplexitytest"
)

var update = flag.Bool("update", false, "rewrite the files under testdata/catalog")

// The definitions are those of the two servers; a change is one for every client.
func TestTools_Catalog(t *testing.T) {
	c, err := New(Options{Key: "pplx-0123456789"})
	if err != nil {
		t.Fatal(err)
	}
	tools := c.Tools(true)
	if n := len(c.Tools(false)); n != 4 || len(tools) != 8 {
		t.Errorf("got %d tools, and %d with aliases; want 4 and 8", n, len(tools))
	}
	for _, tool := range tools {
		got, err := json.MarshalIndent(tool.Def, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, '\n')
		path := filepath.Join("testdata", "catalog", tool.Def.Name+".json")
		if *update {
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: the definition differs from %s; run go generate ./internal/perplexity and review the change", tool.Def.Name, path)
		}
	}
}

func TestTools_WrongArguments(t *testing.T) {
	api := perplexitytest.New(t)
	c, _ := newClient(t, api, nil)
	u := connect(t, c)
	many := `"a.example"` + strings.Repeat(`, "a.example"`, maxDomains)
	for _, test := range []struct{ tool, args, want string }{
		{"perplexity_search", `{}`, "Invalid parameters: missing required parameter 'query'"},
		{"perplexity_search", `{"query": null}`, "missing required parameter 'query'"},
		{"perplexity_search", `{"query": " "}`, "'query' must not be empty"},
		{"perplexity_search", `{"query": 7}`, "'query' must be a string, got '7'"},
		{"perplexity_search", `[]`, "the arguments must be an object"},
		{"perplexity_search", `{"query": "q", "max_results": 21}`, "'max_results' must be <= 20, got 21"},
		{"perplexity_search", `{"query": "q", "max_results": 0}`, "'max_results' must be >= 1, got 0"},
		{"perplexity_search", `{"query": "q", "max_results": 2.5}`, "'max_results' must be an integer, got '2.5'"},
		{"perplexity_search", `{"query": "q", "max_results": "many"}`, "'max_results' must be an integer, got the string 'many'"},
		{"perplexity_search", `{"query": "q", "max_results": 1e300}`, "must be an integer"},
		{"perplexity_search", `{"query": "q", "country": "Germany"}`, "'country' must have at most 2 characters, got 7"},
		{"perplexity_search", `{"query": "q", "country": "D"}`, "'country' must have at least 2 characters, got 'D'"},
		{"perplexity_search", `{"query": "q", "search_recency_filter": "today"}`, "'search_recency_filter' must be one of: hour, day, week, month, year, got 'today'"},
		{"perplexity_search", `{"query": "q", "search_domain_filter": "a.example"}`, "'search_domain_filter' must be an array, got the string 'a.example'"},
		{"perplexity_search", `{"query": "q", "search_domain_filter": [1]}`, "'search_domain_filter[0]' must be a string, got '1'"},
		{"perplexity_search", `{"query": "q", "search_domain_filter": [` + many + `]}`, "'search_domain_filter' must have at most 20 items, got 21"},
		{"perplexity_search", `{"query": "q", "recency_filter": "day"}`, "unknown parameter 'recency_filter'. Did you mean 'search_recency_filter'?"},
		{"perplexity_search", `{"query": "q", "limits": 1}`, "unknown parameter 'limits'. The parameters are: query, max_results, max_tokens_per_page, country, search_recency_filter, search_domain_filter, search_type."},
		{"perplexity_ask", `{"messages": []}`, "'messages' must not be empty"},
		{"perplexity_ask", `{"messages": "hello"}`, "'messages' must be an array, got the string 'hello'"},
		{"perplexity_ask", `{"messages": ["hello"]}`, "'messages[0]' must be an object, got the string 'hello'"},
		{"perplexity_ask", `{"messages": [{"role": "user", "content": "q"}, {"role": "user"}]}`, "missing required parameter 'messages[1].content'"},
		{"perplexity_ask", `{"messages": [{"role": "tool", "content": "q"}]}`, "'messages[0].role' must be one of: system, user, assistant, got 'tool'"},
		{"perplexity_ask", ask(strings.Repeat("x", maxArguments)), "bytes, and at most 1048576 are allowed"},
		{"perplexity_research", `{"messages": [{"role": "user", "content": "q"}], "search_context_size": "low"}`, "unknown parameter 'search_context_size'. The parameters are: messages."},
		{"perplexity_search_web", `{"query": "` + strings.Repeat("x", 1001) + `"}`, "Error: Invalid parameters: 'query' must have at most 1000 characters, got 1001"},
		{"perplexity_search_web", `{"query": "q", "options": {"return_images": "yes"}}`, "Error: Invalid parameters: 'options.return_images' must be a boolean, got the string 'yes'"},
		{"perplexity_search_web", `{"query": "q", "options": {"search_recancy": "day"}}`, "Did you mean 'options.search_recency'?"},
		{"perplexity_pro_search", `{"query": "q", "model": "sonar"}`, "'model' must be one of: sonar-pro, sonar-reasoning-pro, got 'sonar'"},
		{"perplexity_deep_research", `{"topic": "q", "focus_areas": [null]}`, "'focus_areas[0]' must be a string, got null"},
	} {
		res := u.use(test.tool, test.args)
		if got := text(t, res); !res.IsError || !strings.Contains(got, test.want) {
			t.Errorf("%s(%.100s): got %q, want %q", test.tool, test.args, got, test.want)
		}
	}
	if sent := api.Requests(); len(sent) != 0 {
		t.Errorf("sent %+v, want nothing", sent)
	}
}

// A host that the name server does not know is a fault of the network, not a refusal.
func TestTools_HostWithoutAddress(t *testing.T) {
	c, _ := newClient(t, perplexitytest.New(t), func(o *Options) { o.BaseURL = "https://gateway.invalid" })
	res := connect(t, c).use("perplexity_search", `{"query": "q"}`)
	if got := text(t, res); !res.IsError || !strings.HasPrefix(got, "Network error while calling Perplexity API: the name of its host cannot be resolved. Try again;") {
		t.Errorf("got %q", got)
	}
}

// A call like an earlier one is answered from the cache, and says so.
func TestCache_MarksAnswers(t *testing.T) {
	api := perplexitytest.New(t)
	c, _ := newClient(t, api, nil)
	u := connect(t, c)
	for _, test := range []struct{ tool, args, same, other, mark string }{
		{"perplexity_ask", ask("q"), `{"search_recency_filter": null, "messages": [{"content": "q", "role": " USER"}]}`, ask("Q"), "\n\n*(This result is from the cache, 0 min old.)*"},
		{"perplexity_search", `{"query": "q"}`, `{"max_results": 10, "query": "q"}`, `{"query": "q", "max_results": 9}`, "\n\n*(This result is from the cache, 0 min old.)*"},
		{"perplexity_pro_search", `{"query": "q"}`, `{"query": "q", "options": {"return_images": true}}`, `{"query": "q", "options": {"return_images": false}}`, "\n\n*（此結果來自快取）*"},
	} {
		before := len(api.Requests())
		fresh := u.use(test.tool, test.args)
		again := u.use(test.tool, test.same)
		if got, want := text(t, again), text(t, fresh)+test.mark; got != want {
			t.Errorf("%s: got %q, want %q", test.tool, got, want)
		}
		if fresh.Meta[metaCached] != nil || again.Meta[metaCached] == nil {
			t.Errorf("%s: meta %v, then %v", test.tool, fresh.Meta, again.Meta)
		}
		if one, other := fmt.Sprint(fresh.StructuredContent), fmt.Sprint(again.StructuredContent); one != other {
			t.Errorf("%s: structured content %s, then %s", test.tool, one, other)
		}
		if other := u.use(test.tool, test.other); other.Meta[metaCached] != nil {
			t.Errorf("%s: another call is answered from the cache", test.tool)
		}
		if n := len(api.Requests()) - before; n != 2 {
			t.Errorf("%s: %d requests, want 2", test.tool, n)
		}
	}
	// Neither failures nor incomplete answers are kept.
	for _, scenario := range []string{"scenario:failed", "scenario:incomplete"} {
		before := len(api.Requests())
		u.use("perplexity_ask", ask(scenario))
		if res := u.use("perplexity_ask", ask(scenario)); res.Meta[metaCached] != nil || len(api.Requests()) != before+2 {
			t.Errorf("%s is answered from the cache", scenario)
		}
	}
}

// searchAs calls the tool that searches as an authenticated owner.
func searchAs(t *testing.T, c *Client, owner, query string) *mcp.CallToolResult {
	t.Helper()
	res, err := c.Tools(false)[0].Handler(t.Context(), &mcp.CallToolRequest{
		Params: &mcp.CallToolParamsRaw{Arguments: fmt.Appendf(nil, `{"query": %q}`, query)},
		Extra:  &mcp.RequestExtra{TokenInfo: &auth.TokenInfo{UserID: owner}},
	})
	if err != nil {
		t.Fatalf("%s searches %q: %v", owner, query, err)
	}
	return res
}

// fromCache is searchAs for a search that works. It reports whether the answer was cached.
func fromCache(t *testing.T, c *Client, owner, query string) bool {
	t.Helper()
	res := searchAs(t, c, owner, query)
	if res.IsError {
		t.Fatalf("%s searches %q: got %q", owner, query, text(t, res))
	}
	return res.Meta[metaCached] != nil
}

// The cache does not tell one owner what another one asked.
func TestCache_OwnersApart(t *testing.T) {
	c, _ := newClient(t, perplexitytest.New(t), nil)
	for _, test := range []struct {
		owner  string
		cached bool
	}{{"alice", false}, {"bob", false}, {"alice", true}, {"bob", true}} {
		if got := fromCache(t, c, test.owner, "q"); got != test.cached {
			t.Errorf("%s: from the cache: %v, want %v", test.owner, got, test.cached)
		}
	}
}

// The tools tell the cache whose answer it is: the 51st of an owner takes the place of the owner's
// own first one, and of no other owner's, though the cache has room for 100.
func TestTools_CacheIsSharedByOwners(t *testing.T) {
	c, _ := newClient(t, perplexitytest.New(t), nil)
	fromCache(t, c, "bob", "of bob")
	for i := range 51 {
		if fromCache(t, c, "alice", fmt.Sprint(i)) {
			t.Fatalf("the new search %d is answered from the cache", i)
		}
	}
	for _, test := range []struct {
		owner, query string
		cached       bool
	}{{"bob", "of bob", true}, {"alice", "1", true}, {"alice", "50", true}, {"alice", "0", false}} {
		if got := fromCache(t, c, test.owner, test.query); got != test.cached {
			t.Errorf("%s searches %q again: from the cache: %v, want %v", test.owner, test.query, got, test.cached)
		}
	}
}

// The tools count the calls at once by owner: the 17th of one is refused, though the server has
// room for 32, and another owner's is not.
func TestTools_CallsAtOnceAreByOwner(t *testing.T) {
	c, _ := newClient(t, perplexitytest.New(t), nil)
	hold := func(n int) {
		t.Helper()
		for range n {
			release, err := c.slots.take("alice")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(release)
		}
	}
	hold(15)
	if res := searchAs(t, c, "alice", "the 16th"); res.IsError {
		t.Errorf("the 16th search at once of an owner: got %q, want an answer", text(t, res))
	}
	hold(1)
	if res := searchAs(t, c, "alice", "the 17th"); !res.IsError || !strings.Contains(text(t, res), "16 searches and answers of this user are under way already") {
		t.Errorf("the 17th search at once of an owner: got %q, want an error with the limit", text(t, res))
	}
	if res := searchAs(t, c, "bob", "the first"); res.IsError {
		t.Errorf("a search of another owner: got %q, want an answer", text(t, res))
	}
}

// One owner has half of the calls at once; a call at the limit is refused, not queued.
func TestSlots(t *testing.T) {
	var s slots
	var held []func()
	take := func(owner string, want bool) {
		t.Helper()
		release, err := s.take(owner)
		var e *Error
		if (err == nil) != want || err != nil && (!errors.As(err, &e) || e.Kind != KindBusy) {
			t.Errorf("%q with %d calls: got %v", owner, len(held), err)
		}
		if err == nil {
			held = append(held, release)
		}
	}
	for range maxOwnerCalls {
		take("alice", true)
	}
	take("alice", false)
	for range maxOwnerCalls {
		take("bob", true)
	}
	take("carol", false)
	held[0]()
	take("carol", true)
	take("alice", false)
	for _, release := range held[1:] {
		release()
	}
	for held = nil; len(held) < maxCalls; {
		take("", true)
	}
	take("", false)
	for _, release := range held {
		release()
	}
	if s.all != 0 || len(s.owners) != 0 {
		t.Errorf("after all calls: %d, %v", s.all, s.owners)
	}
}

func TestCache_IsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache()
		for i := range maxCached + 2 {
			c.put("", fmt.Sprint(i), &answer{text: fmt.Sprint(i)})
			c.get("1") // stays in use
		}
		if n := c.lru.Len(); n != maxCached {
			t.Errorf("the local user has %d answers, want the whole cache of %d", n, maxCached)
		}
		for _, key := range []string{"0", "2"} {
			if a, _ := c.get(key); a != nil {
				t.Errorf("the answer %s, one of the two least recently used of 102, is still there", key)
			}
		}
		if a, _ := c.get("1"); a == nil || a.text != "1" {
			t.Errorf("an answer in use: got %+v", a)
		}
		time.Sleep(maxAge - time.Second)
		if a, age := c.get("1"); a == nil || age != maxAge-time.Second {
			t.Errorf("after %v: got %+v, %v", maxAge-time.Second, a, age)
		}
		time.Sleep(time.Second)
		if a, _ := c.get("1"); a != nil {
			t.Error("an answer of an hour ago is still there")
		}
		c.put("", "large", &answer{text: strings.Repeat("x", maxCachedAnswer)})
		if a, _ := c.get("large"); a != nil {
			t.Error("a large answer is kept")
		}
	})
}

func TestResetOf(t *testing.T) {
	now := time.Date(2026, 11, 23, 10, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		header, value string
		want          time.Duration // 0: unknown
	}{
		{"Retry-After", "17", 17 * time.Second},
		{"Retry-After", "0", time.Second},
		{"Retry-After", "Mon, 23 Nov 2026 10:02:00 GMT", 2 * time.Minute},
		{"X-RateLimit-Reset", "1.2", time.Second},
		{"X-RateLimit-Reset", fmt.Sprint(now.Unix() + 90), 90 * time.Second},
		{"X-RateLimit-Reset", fmt.Sprint(now.UnixMilli() + 90_000), 90 * time.Second},
		{"X-RateLimit-Reset-Requests", "6m0s", 6 * time.Minute},
		{"RateLimit-Reset", "2026-11-23T10:00:05Z", 5 * time.Second},
		{"Retry-After", "soon", 0}, {"Retry-After", "", 0}, {"Retry-After", "-500", 0}, {"Retry-After", "NaN", 0}, {"Retry-After", "1e300", 0},
		{"Retry-After", "99999999", 0}, {"Retry-After", "Mon, 23 Nov 2099 10:02:00 GMT", 0}, {"X-RateLimit-Remaining", "3", 0},
	} {
		h := http.Header{}
		h.Set(test.header, test.value)
		got, ok := resetOf(h, now)
		if got != test.want || ok != (test.want > 0) {
			t.Errorf("%s: %s: got %v, %v, want %v", test.header, test.value, got, ok, test.want)
		}
	}
	h := http.Header{"Retry-After": {"soon"}}
	h.Set("X-RateLimit-Reset", "3")
	if got, _ := resetOf(h, now); got != 3*time.Second {
		t.Errorf("with one header that is no time: got %v", got)
	}
}

func TestSplitRelated(t *testing.T) {
	for in, want := range map[string]string{
		"A.\n\nRelated questions:\n- B?\n- C?":        "A.|B?|C?",
		"A.\n\n## **Related questions**\n\n1. B?\n\n": "A.|B?",
		"A.\n- item":                            "A.\n- item",
		"A.\n\nRelated questions:\n- B?\nMore.": "A.\n\nRelated questions:\n- B?\nMore.",
		"A.\n\nRelated questions:":              "A.\n\nRelated questions:",
		"":                                      "",
	} {
		rest, related := splitRelated(in)
		if got := strings.Join(append([]string{rest}, related...), "|"); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestCitations(t *testing.T) {
	one, two := 1, 2
	for _, test := range []struct {
		sources []source
		want    string
	}{
		{nil, ""},
		{[]source{{ID: &two, URL: "b"}, {ID: &one, URL: "a"}, {ID: &two, URL: "b"}}, "[2] b\n[1] a\n"},
		{[]source{{ID: &one, URL: "a"}, {ID: &one, URL: "b"}}, "[1] a\n[2] b\n"},
		{[]source{{URL: "a"}, {ID: &one, URL: "b"}, {URL: "a"}}, "[1] a\n[2] b\n"},
	} {
		if got := (&answer{sources: test.sources}).citations(); got != test.want {
			t.Errorf("%+v: got %q, want %q", test.sources, got, test.want)
		}
	}
}

// decode returns the events of a stream, and why it ended.
func decode(r io.Reader, limit, total int) (all []string, err error) {
	d := newEvents(r, limit, total)
	for {
		ev, err := d.next()
		if err != nil {
			return all, err
		}
		all = append(all, ev.name+"|"+string(ev.data))
	}
}

func TestEvents(t *testing.T) {
	for in, want := range map[string]string{
		"data: a\n\ndata: b\n\n":                                  "|a,|b",
		"data:a\r\n\r\ndata: b\r\rdata: c\n\n":                    "|a,|b,|c",
		"event: x\ndata: a\ndata: b\n\ndata: c\n":                 "x|a\nb,|c",
		": comment\n\nid: 7\nretry: 1\n\nevent: y\n\ndata: a\n\n": "|a",
		"\xef\xbb\xbfdata: a\n\n":                                 "|a",
		"data\n\ndata:  two\n\n":                                  "|,| two",
		"data: a":                                                 "|a",
		"":                                                        "",
	} {
		all, err := decode(strings.NewReader(in), 100, 100)
		if got := strings.Join(all, ","); got != want || err != io.EOF {
			t.Errorf("%q: got %q, %v, want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"data: " + strings.Repeat("x", 200), strings.Repeat("data: xxxxxxxx\n", 20), strings.Repeat(": x\n", 2000)} {
		var e *Error
		if _, err := decode(strings.NewReader(in), 100, 1000); !errors.As(err, &e) || e.Kind != KindTooLarge {
			t.Errorf("%.40q: got %v, want that it is too large", in, err)
		}
	}
}

// FuzzEvents: however a stream arrives, it has the same events, within the limits; and no
// event ends the reader of runs or of chats.
func FuzzEvents(f *testing.F) {
	f.Add([]byte("data: a\n\nevent: b\r\ndata: {\"type\": \"response.completed\"}\r\n\r\n"))
	f.Add([]byte("data: {\"type\":\"response.output_item.done\",\"item\":{\"type\":\"message\",\"content\":[{\"type\":\"output_text\",\"text\":\"x\"}]}}\n\ndata: {\"type\":\"response.completed\"}\n\n"))
	f.Add([]byte("data: {\"type\":\"response.failed\",\"error\":\"x\"}\n\n"))
	f.Add([]byte("data: {\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}],\"images\":[{\"url\":\"x\"}]}\n\ndata: [DONE]\n\n"))
	c, err := New(Options{Key: "pplx-0123456789"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		const limit, total = 1 << 10, 1 << 13
		whole, errWhole := decode(bytes.NewReader(data), limit, total)
		bytewise, errBytewise := decode(iotest.OneByteReader(bytes.NewReader(data)), limit, total)
		if strings.Join(whole, "\x00") != strings.Join(bytewise, "\x00") || fmt.Sprint(errWhole) != fmt.Sprint(errBytewise) {
			t.Errorf("got %q, %v at once and %q, %v byte by byte", whole, errWhole, bytewise, errBytewise)
		}
		for _, ev := range whole {
			if len(ev) > 2*limit+1 {
				t.Errorf("an event has %d bytes", len(ev))
			}
		}
		run := agentStream{client: c, progress: func(string) {}}
		if got, err := run.read(t.Context(), bytes.NewReader(data)); err == nil {
			if _, err := c.outcome(got, &question{related: true}); err != nil {
				_ = err.Error()
			}
		}
		chat := chatAnswer{client: c, progress: func(string) {}}
		if err := chat.read(t.Context(), bytes.NewReader(data)); err == nil {
			_, _ = chat.answer(&question{stripThinking: true}) // an error for most input
		}
	})
}

// FuzzArguments: what is accepted is accepted again, unchanged.
func FuzzArguments(f *testing.F) {
	f.Add([]byte(`{"query": "q", "options": {"return_images": "true"}}`))
	f.Add([]byte(`{"messages": [{"role": "USER", "content": "q"}]}`))
	f.Add([]byte(`{"query": "q", "max_results": "7", "search_domain_filter": ["a"]}`))
	c, err := New(Options{Key: "pplx-0123456789"})
	if err != nil {
		f.Fatal(err)
	}
	tools := c.Tools(true)
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, tool := range tools {
			schema := schemaOf(t, tool)
			var in map[string]any
			once, err := arguments(schema, nil, raw, &in)
			if err != nil {
				continue
			}
			again, err := arguments(schema, nil, once, &in)
			if err != nil || !bytes.Equal(once, again) {
				t.Errorf("%s: %s becomes %s, and then %s, %v", tool.Def.Name, raw, once, again, err)
			}
		}
	})
}

func schemaOf(t *testing.T, tool Tool) *jsonschema.Schema {
	t.Helper()
	var s jsonschema.Schema
	if err := json.Unmarshal(tool.Def.InputSchema.(json.RawMessage), &s); err != nil {
		t.Fatal(err)
	}
	return &s
}
