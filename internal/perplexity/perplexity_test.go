package perplexity

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/perplexity/perplexitytest"
	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// logged is a log in memory.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// newClient returns a client of a stand-in, with its log.
func newClient(t *testing.T, api *perplexitytest.API, change func(*Options)) (*Client, *logged) {
	t.Helper()
	log := &logged{}
	o := Options{Key: perplexitytest.Key, BaseURL: api.URL, Version: "1.2.3", Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	if change != nil {
		change(&o)
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, log
}

// A user is a stock client of the Go SDK that is connected to all tools.
type user struct {
	t *testing.T
	*mcp.ClientSession

	mu       sync.Mutex
	progress []string // guarded by mu: what it was told, in order
}

// told returns the progress so far.
func (u *user) told() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.progress)
}

func connect(t *testing.T, c *Client) *user {
	t.Helper()
	u := &user{t: t}
	server := mcp.NewServer(&mcp.Implementation{Name: "search", Version: "1"}, nil)
	for _, tool := range c.Tools(true) {
		server.AddTool(tool.Def, tool.Handler)
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
			u.mu.Lock()
			defer u.mu.Unlock()
			u.progress = append(u.progress, fmt.Sprintf("%v %s", req.Params.Progress, req.Params.Message))
		},
	})
	there, here := mcp.NewInMemoryTransports()
	if _, err := server.Connect(t.Context(), there, nil); err != nil {
		t.Fatal(err)
	}
	var err error
	if u.ClientSession, err = client.Connect(t.Context(), here, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.Close() })
	return u
}

// use calls a tool with arguments in JSON.
func (u *user) use(tool, args string) *mcp.CallToolResult {
	u.t.Helper()
	res, err := u.CallTool(u.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: json.RawMessage(args)})
	if err != nil {
		u.t.Fatalf("%s(%s): %v", tool, args, err)
	}
	return res
}

func text(t *testing.T, res *mcp.CallToolResult) string {
	t.Helper()
	if len(res.Content) != 1 {
		t.Fatalf("got %d contents, want one", len(res.Content))
	}
	return res.Content[0].(*mcp.TextContent).Text
}

// ask returns arguments for a question.
func ask(question string) string {
	return fmt.Sprintf(`{"messages": [{"role": "user", "content": %q}]}`, question)
}

const (
	agentText = "The answer [1][2].\n\nCitations:\n[1] https://one.example/page\n[2] https://two.example/page\n"
	sources   = "\n\n## 參考來源\n1. [Title of one.example](https://one.example/page)\n   Snippet of one.example\n2. [Title of two.example](https://two.example/page)\n   Snippet of two.example\n"
	related   = "\n\n## 相關問題\n- Why is that?\n- What else is there?\n"
	pictures  = "\n\n## 圖片\n- https://one.example/a.png\n- https://two.example/b.png\n"
)

// Each tool asks the API for what its parameters mean, and formats the answer.
func TestTools_AgentAPI(t *testing.T) {
	api := perplexitytest.New(t)
	c, _ := newClient(t, api, nil)
	u := connect(t, c)
	const prompt = `"input": [{"type": "message", "role": "user", "content": "q"}], "stream": true`
	for _, test := range []struct{ tool, args, path, body, text string }{
		{"perplexity_search", `{"query": "q", "max_results": 1}`, "/search", `{"query": "q", "max_results": 1, "max_tokens_per_page": 1024}`,
			"Found 1 search results:\n\n1. **Title of site1.example**\n   URL: https://site1.example/page\n   Snippet of site1.example\n   Date: 2026-11-01\n\n"},
		{"perplexity_search", `{"query": "scenario:nothing", "max_results": "2", "max_tokens_per_page": 256, "country": "de", "search_recency_filter": "Hour", "search_domain_filter": ["a.example", "-b.example"], "search_type": "fast"}`, "/search",
			`{"query": "scenario:nothing", "max_results": 2, "max_tokens_per_page": 256, "country": "DE", "search_recency_filter": "hour", "search_domain_filter": ["a.example", "-b.example"], "search_type": "fast"}`, "No search results found."},
		{"perplexity_ask", ask("q"), "/v1/agent", `{"preset": "fast", ` + prompt + `}`, agentText},
		{"perplexity_ask", `{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}], "search_recency_filter": "week", "search_domain_filter": ["a.example"], "search_context_size": "high"}`, "/v1/agent",
			`{"preset": "fast", "input": [{"type": "message", "role": "system", "content": "s"}, {"type": "message", "role": "user", "content": "q"}], "stream": true,
			  "tools": [{"type": "web_search", "filters": {"search_recency_filter": "week", "search_domain_filter": ["a.example"]}, "search_context_size": "high"}]}`, agentText},
		{"perplexity_reason", ask("q"), "/v1/agent", `{"preset": "medium", ` + prompt + `}`, agentText},
		{"perplexity_research", ask("q"), "/v1/agent", `{"preset": "high", ` + prompt + `}`, agentText},
		// Parameters of earlier versions.
		{"perplexity_research", `{"messages": [{"role": "user", "content": "q"}], "strip_thinking": true, "reasoning_effort": "low"}`, "/v1/agent", `{"preset": "high", "reasoning": {"effort": "low"}, ` + prompt + `}`, agentText},

		{"perplexity_search_web", `{"query": "q"}`, "/v1/agent", `{"preset": "low", ` + prompt + `}`, "The answer [1][2]." + sources},
		{"perplexity_search_web", `{"query": "q", "model": "sonar", "options": {"search_domain": "a.example", "search_recency": "day", "return_citations": false}}`, "/v1/agent",
			`{"model": "perplexity/sonar", ` + prompt + `, "tools": [{"type": "web_search", "filters": {"search_recency_filter": "day", "search_domain_filter": ["a.example"]}}]}`, "The answer [1][2]."},
		{"perplexity_search_web", `{"query": "q", "model": "sonar-deep-research"}`, "/v1/agent", `{"preset": "medium", ` + prompt + `}`, "The answer [1][2]." + sources},
		{"perplexity_pro_search", `{"query": "q", "model": "sonar-reasoning-pro"}`, "/v1/agent",
			`{"preset": "low", "reasoning": {"effort": "medium"}, "input": [{"type": "message", "role": "user", "content": "q\n\nEnd with a section titled 'Related questions:'."}], "stream": true}`, "The answer [1][2]." + sources + related},
		{"perplexity_deep_research", `{"topic": "q", "depth": "quick", "focus_areas": ["x", "y"]}`, "/v1/agent",
			`{"preset": "medium", "input": [{"type": "message", "role": "user", "content": "Please conduct a quick research on: q\n\nFocus particularly on these areas:\n- x\n- y\n\nProvide a brief overview with key points."}], "stream": true}`, "The answer [1][2]." + sources},
		{"perplexity_reasoning", `{"query": "q", "context": "c"}`, "/v1/agent",
			`{"preset": "low", "reasoning": {"effort": "medium"}, "input": [{"type": "message", "role": "user", "content": "Context: c\n\nQuery: q\n\nEnd with a section titled 'Related questions:'."}], "stream": true}`, "The answer [1][2]." + sources + related},
	} {
		before := len(api.Requests())
		res := u.use(test.tool, test.args)
		if got := text(t, res); res.IsError || got != test.text {
			t.Errorf("%s(%s): got %q, want %q", test.tool, test.args, got, test.text)
		}
		sent := api.Requests()[before:]
		if len(sent) != 1 || sent[0].Path != test.path {
			t.Errorf("%s(%s): sent %+v, want one request of %s", test.tool, test.args, sent, test.path)
			continue
		}
		var want map[string]any
		if err := json.Unmarshal([]byte(test.body), &want); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(sent[0].Body, want) {
			t.Errorf("%s(%s): sent %v, want %v", test.tool, test.args, sent[0].Body, want)
		}
		if got := sent[0].Header.Get("User-Agent"); got != "glovebox/1.2.3" {
			t.Errorf("user agent %q", got)
		}
		structured, _ := res.StructuredContent.(map[string]any)
		switch member := map[string]string{"/search": "results", "/v1/agent": "response"}[test.path]; {
		case strings.Contains(test.text, "參考") || !strings.Contains(test.text, "Citations") && test.path != "/search":
			if structured != nil {
				t.Errorf("%s: structured content %v, which the earlier server did not have", test.tool, structured)
			}
		case structured[member] != test.text:
			t.Errorf("%s: structured content %v", test.tool, structured)
		}
	}
	if len(api.Cancelled()) != 0 {
		t.Errorf("cancelled %q, want none", api.Cancelled())
	}
}

// The API may leave out what it has said, answer without a stream, stop before the end,
// and say what nobody knows.
func TestTools_VariantsOfAnswers(t *testing.T) {
	api := perplexitytest.New(t)
	c, _ := newClient(t, api, nil)
	u := connect(t, c)
	for scenario, want := range map[string]string{
		"unknown": agentText, "json": agentText, "open": agentText, "bare": "The answer [1][2].",
		"incomplete": "The answer [1][2].\n\n(The answer is incomplete: max_output_tokens.)\n\nCitations:\n[1] https://one.example/page\n[2] https://two.example/page\n",
	} {
		res := u.use("perplexity_ask", ask("scenario:"+scenario))
		if got := text(t, res); res.IsError || got != want {
			t.Errorf("%s: got %q, want %q", scenario, got, want)
		}
	}
	select {
	case <-api.Left():
	case <-time.After(10 * time.Second):
		t.Error("the connection of a complete run stays open")
	}
	if got := api.Cancelled(); len(got) != 0 {
		t.Errorf("cancelled %q, want none: the runs have ended", got)
	}
}

// In mode auto, a gateway without the agent API is asked as a chat API, and found out
// once.
func TestTools_ChatAPI(t *testing.T) {
	api := perplexitytest.New(t)
	api.ChatOnly = true
	c, _ := newClient(t, api, nil)
	u := connect(t, c)
	const chatText = "The chat answer [1][2]."
	const cited = "\n\nCitations:\n[1] https://one.example/page\n[2] https://two.example/page\n"
	for _, test := range []struct{ tool, args, body, text string }{
		{"perplexity_ask", `{"messages": [{"role": "user", "content": "q"}], "search_recency_filter": "week", "search_domain_filter": ["a.example"], "search_context_size": "low"}`,
			`{"model": "sonar-pro", "messages": [{"role": "user", "content": "q"}], "search_recency_filter": "week", "search_domain_filter": ["a.example"], "web_search_options": {"search_context_size": "low"}, "stream": true}`, chatText + cited},
		{"perplexity_reason", ask("q"), `{"model": "sonar-reasoning-pro", "messages": [{"role": "user", "content": "q"}], "stream": true}`, "<think>\nHm.\n</think>\n\n" + chatText + cited},
		{"perplexity_reason", `{"messages": [{"role": "user", "content": "q"}], "strip_thinking": true, "reasoning_effort": "high"}`, `{"model": "sonar-reasoning-pro", "reasoning_effort": "high", "messages": [{"role": "user", "content": "q"}], "stream": true}`, chatText + cited},
		{"perplexity_research", ask("scenario:json"), `{"model": "sonar-deep-research", "messages": [{"role": "user", "content": "scenario:json"}], "stream": true}`, chatText + cited},
		{"perplexity_research", ask("scenario:no-done"), `{"model": "sonar-deep-research", "messages": [{"role": "user", "content": "scenario:no-done"}], "stream": true}`, chatText + cited},
		{"perplexity_research", ask("scenario:incomplete"), `{"model": "sonar-deep-research", "messages": [{"role": "user", "content": "scenario:incomplete"}], "stream": true}`, chatText + "\n\n(The answer is incomplete: length.)" + cited},
		{"perplexity_pro_search", `{"query": "q"}`, `{"model": "sonar-pro", "messages": [{"role": "user", "content": "q"}], "return_images": true, "return_related_questions": true, "stream": true}`, chatText + sources + related + pictures},
		{"perplexity_reasoning", `{"query": "q"}`, `{"model": "sonar-reasoning", "messages": [{"role": "user", "content": "q"}], "return_related_questions": true, "stream": true}`, chatText + sources + related},
	} {
		res := u.use(test.tool, test.args)
		if got := text(t, res); res.IsError || got != test.text {
			t.Errorf("%s(%s): got %q, want %q", test.tool, test.args, got, test.text)
		}
		sent := api.Requests()
		var want map[string]any
		if err := json.Unmarshal([]byte(test.body), &want); err != nil {
			t.Fatal(err)
		}
		if last := sent[len(sent)-1]; last.Path != "/chat/completions" || !reflect.DeepEqual(last.Body, want) {
			t.Errorf("%s(%s): sent %v to %s, want %v", test.tool, test.args, last.Body, last.Path, want)
		}
	}
	tried := 0
	for _, r := range api.Requests() {
		if r.Path == "/v1/agent" {
			tried++
		}
	}
	if tried != 1 {
		t.Errorf("tried the agent API %d times, want once", tried)
	}

	only, _ := newClient(t, api, func(o *Options) { o.Mode, o.Model = Chat, "vendor/sonar" })
	before := len(api.Requests())
	if res := connect(t, only).use("perplexity_ask", ask("q")); res.IsError {
		t.Errorf("got %q", text(t, res))
	}
	if sent := api.Requests()[before:]; len(sent) != 1 || sent[0].Body["model"] != "vendor/sonar" {
		t.Errorf("in mode chat with a model: sent %+v", sent)
	}
	agent, _ := newClient(t, api, func(o *Options) { o.Mode = Agent })
	if res := connect(t, agent).use("perplexity_ask", ask("q")); !res.IsError || !strings.Contains(text(t, res), "/v1/agent may not exist at this API") {
		t.Errorf("in mode agent: got %q", text(t, res))
	}
}

// TestTools_Failures: the result names every failure of the API with a remedy, and without the
// key, which the API may repeat.
func TestTools_Failures(t *testing.T) {
	api := perplexitytest.New(t)
	gateway := perplexitytest.New(t)
	gateway.ChatOnly = true
	c, log := newClient(t, api, nil)
	chat, _ := newClient(t, gateway, nil)
	rejected, rejectedLog := newClient(t, api, func(o *Options) { o.Key = "pplx-revoked-key-0123456789" })
	official, aliased := connect(t, c), connect(t, chat)
	for _, test := range []struct {
		user             *user
		tool, args, want string
	}{
		{connect(t, rejected), "perplexity_search", `{"query": "q"}`, "Perplexity API error: 401 Unauthorized: Invalid API key provided: [API key] (invalid_api_key). The API rejects the key of this server: its operator has to set a valid PERPLEXITY_API_KEY."},
		{official, "perplexity_ask", ask("scenario:forbidden"), "Perplexity API error: 403 Forbidden: This key may not use the model (forbidden). The API rejects the key"},
		{official, "perplexity_search", `{"query": "scenario:limit"}`, "Perplexity API error: 429 Too Many Requests: Request rate limit exceeded (request_rate_limit_exceeded). The limit resets in 17s: try again then."},
		{official, "perplexity_ask", ask("scenario:limit"), "The limit resets in 17s"},
		{official, "perplexity_ask", ask("scenario:limit-unknown"), "exceeded). Try again in a minute."},
		{official, "perplexity_ask", ask("scenario:overloaded"), "Perplexity API error: 503 Service Unavailable. The API has a problem of its own: try again later."},
		{official, "perplexity_ask", ask("scenario:failed"), "Perplexity API error: the run failed: the model is not available (model_unavailable)."},
		{official, "perplexity_ask", ask("scenario:failed-json"), "Perplexity API error: the run failed: the model is not available (model_unavailable)."},
		{official, "perplexity_ask", ask("scenario:queued-json"), `Perplexity API error: the run has no answer: its status is "queued".`},
		{official, "perplexity_ask", ask("scenario:error"), "Perplexity API error: the run failed: internal error."},
		{official, "perplexity_ask", ask("scenario:cancelled"), "Perplexity API error: the run was cancelled at the API."},
		{official, "perplexity_ask", ask("scenario:cut"), "Perplexity API error: the connection ended before the answer was complete, after 10 characters of it. Try again."},
		{official, "perplexity_ask", ask("scenario:end"), "Perplexity API error: the connection ended before the answer was complete, after 10 characters of it. Try again."},
		{official, "perplexity_ask", ask("scenario:malformed"), "Perplexity API error: invalid event: unexpected end of JSON input."},
		{official, "perplexity_ask", ask("scenario:huge-event"), "Perplexity API error: the event is larger than 4194304 bytes. Ask for less."},
		{official, "perplexity_ask", ask("scenario:not-json"), "Perplexity API error: invalid answer: invalid character '<' looking for beginning of value."},
		{official, "perplexity_search", `{"query": "scenario:huge"}`, "Perplexity API error: the answer is larger than 4194304 bytes. Ask for less."},
		{official, "perplexity_search", `{"query": "scenario:redirect"}`, "Refused to call the search API: its address is a redirect to another origin."},
		{official, "perplexity_search_web", `{"query": "scenario:error"}`, "Error: Perplexity API error: the run failed: internal error."},
		{aliased, "perplexity_ask", ask("scenario:cut"), "the connection ended before the answer was complete, after 8 characters of it."},
		{aliased, "perplexity_ask", ask("scenario:end"), "the connection ended before the answer was complete, after 8 characters of it."},
		{aliased, "perplexity_pro_search", `{"query": "scenario:failed"}`, "Error: Perplexity API error: the run failed: the model is not available (500)."},
	} {
		res := test.user.use(test.tool, test.args)
		if got := text(t, res); !res.IsError || !strings.Contains(got, test.want) {
			t.Errorf("%s(%s): got %q, want %q", test.tool, test.args, got, test.want)
		}
		if res.StructuredContent != nil {
			t.Errorf("%s(%s): an error with structured content", test.tool, test.args)
		}
	}
	// Runs that go on at the API are ended; those that ended are not.
	if got, want := len(api.Cancelled()), 4; got != want { // cut, end, malformed, huge-event
		t.Errorf("cancelled %d runs, want %d", got, want)
	}
	if !strings.Contains(rejectedLog.String(), "level=WARN") || strings.Contains(rejectedLog.String(), "pplx-") {
		t.Errorf("the log of a rejected key: %s", rejectedLog)
	}
	for _, secret := range []string{perplexitytest.Key, "scenario:", "model is not available"} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log has %q:\n%s", secret, log)
		}
	}
}

func TestTools_NothingListens(t *testing.T) {
	api := perplexitytest.New(t)
	c, log := newClient(t, api, func(o *Options) { o.BaseURL = "http://127.0.0.1:1/internal" })
	res := connect(t, c).use("perplexity_search", `{"query": "q"}`)
	if got := text(t, res); !res.IsError || !strings.HasPrefix(got, "Network error while calling Perplexity API: connection refused. Try again;") {
		t.Errorf("got %q", got)
	}
	if !strings.Contains(log.String(), "dial tcp 127.0.0.1:1") || !strings.Contains(log.String(), "http://127.0.0.1:1/internal") {
		t.Errorf("the log does not say where nothing listens: %s", log)
	}
}

// The key is in no result, even if the API repeats it.
func TestTools_KeyInAnswer(t *testing.T) {
	api := perplexitytest.New(t)
	c, _ := newClient(t, api, nil)
	u := connect(t, c)
	for tool, args := range map[string]string{"perplexity_ask": ask("scenario:key"), "perplexity_search": `{"query": "scenario:key"}`, "perplexity_reasoning": `{"query": "scenario:key"}`} {
		for range 2 { // the second is from the cache
			data, err := json.Marshal(u.use(tool, args))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Contains(data, []byte("key is [API key].")) || bytes.Contains(data, []byte(perplexitytest.Key)) {
				t.Errorf("%s: %s", tool, data)
			}
		}
	}
}

// The events of a run become progress, before the answer.
func TestTools_Progress(t *testing.T) {
	api := perplexitytest.New(t)
	c, _ := newClient(t, api, nil)
	u := connect(t, c)
	params := &mcp.CallToolParams{Name: "perplexity_research", Arguments: json.RawMessage(ask("q"))}
	params.SetProgressToken("token")
	if _, err := u.CallTool(t.Context(), params); err != nil {
		t.Fatal(err)
	}
	want := []string{"1 Searching: first query | second query", "2 Reading 2 search results", "3 Fetching page content", "4 Writing answer"}
	polltest.Until(t, 10*time.Second, "four notifications", func() bool { return len(u.told()) >= len(want) }) // the client handles them beside the answer
	if got := u.told(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A call that is cancelled ends the run at the API, and so does one that takes too long.
func TestTools_CancelIsPassedOn(t *testing.T) {
	api := perplexitytest.New(t)
	c, _ := newClient(t, api, nil)
	u := connect(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		params := &mcp.CallToolParams{Name: "perplexity_ask", Arguments: json.RawMessage(ask("scenario:silent"))}
		params.SetProgressToken("token")
		_, err := u.CallTool(ctx, params)
		ended <- err
	}()
	polltest.Until(t, 10*time.Second, "the run has begun", func() bool { return len(u.told()) > 0 })
	cancel()
	if err := <-ended; err == nil {
		t.Error("a cancelled call has an answer")
	}
	wait := func(what string, n int) {
		t.Helper()
		select {
		case <-api.Left():
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: the connection stays open", what)
		}
		polltest.Until(t, 10*time.Second, what+": the run is cancelled", func() bool { return len(api.Cancelled()) >= n })
	}
	wait("cancelled", 1)

	slow, _ := newClient(t, api, func(o *Options) { o.Timeout = 200 * time.Millisecond })
	res := connect(t, slow).use("perplexity_ask", ask("scenario:silent"))
	if got, want := text(t, res), "Request timeout: Perplexity API did not respond within 200ms. Ask for less, or consider increasing PERPLEXITY_TIMEOUT_MS."; !res.IsError || got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	wait("timed out", 2)
	if got := api.Cancelled(); got[0] != "resp_0f1e2d3c" {
		t.Errorf("cancelled %q", got)
	}
}

// Many calls at once share a client, its cache and the discovery of its API.
func TestTools_Concurrent(t *testing.T) {
	api := perplexitytest.New(t)
	api.ChatOnly = true
	c, _ := newClient(t, api, nil)
	u := connect(t, c)
	var wg sync.WaitGroup
	places := make(chan struct{}, maxCalls)
	for i := range 60 {
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			scenario := []string{"", "scenario:cut", "scenario:limit"}[i%3]
			res, err := u.CallTool(t.Context(), &mcp.CallToolParams{Name: "perplexity_ask", Arguments: json.RawMessage(ask(fmt.Sprint(scenario, " ", i%7)))})
			if err != nil || res.IsError != (scenario != "") {
				t.Errorf("%d: got %+v, %v", i, res, err)
			}
		})
	}
	wg.Wait()
}

func TestNew(t *testing.T) {
	const key = "pplx-0123456789"
	for _, test := range []struct {
		o    Options
		want string // "" no error
	}{
		{Options{Key: key}, ""},
		{Options{Key: key, BaseURL: "https://gateway.example/v1/"}, ""},
		{Options{Key: key, BaseURL: "https://10.1.2.3"}, ""}, // a company's gateway
		{Options{Key: key, BaseURL: "http://localhost:8080"}, ""},
		{Options{Key: key, BaseURL: "http://[::1]:8080"}, ""},
		{Options{Key: key, BaseURL: "http://gateway.example"}, "the base URL of the search API cannot be used: http://gateway.example is not https, and the key would cross the network in clear text"},
		{Options{Key: key, BaseURL: "http://api.perplexity.ai"}, "is not https"},
		{Options{Key: key, BaseURL: "http://10.1.2.3"}, "is not https"},
		{Options{Key: key, BaseURL: "https://169.254.169.254"}, "https://169.254.169.254 is the metadata service of a cloud"},
		{Options{Key: key, BaseURL: "file:///etc/passwd"}, "not http or https"},
		{Options{Key: key, BaseURL: "https://user:secret@gateway.example"}, "a url with credentials in it"},
		{Options{Key: key, Proxy: "::"}, "the proxy for the search API is not a URL"},
		{Options{}, "no key of the search API"},
		{Options{Key: "short"}, "has 5 bytes, want 8 to 1024"},
		{Options{Key: "pplx-with\nnewline"}, "has a space, a control character"},
		{Options{Key: "pplx-schlüssel"}, "a letter beyond ASCII"},
	} {
		c, err := New(test.o)
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%q: %v", test.o.BaseURL, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%q: got %v, want %q", test.o.BaseURL, err, test.want)
		case err != nil && len(test.o.Key) > 0 && strings.Contains(err.Error(), test.o.Key), err != nil && strings.Contains(err.Error(), "secret"):
			t.Errorf("the error has the secret: %v", err)
		}
		if c != nil {
			c.Close()
		}
	}
}

// The key goes through a proxy only in a tunnel, which this proxy refuses.
func TestNew_Proxy(t *testing.T) {
	asked := make(chan *http.Request, 1)
	proxy := perplexitytest.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked <- r
		w.WriteHeader(http.StatusForbidden)
	})
	c, err := New(Options{Key: perplexitytest.Key, Proxy: proxy})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if res := connect(t, c).use("perplexity_search", `{"query": "q"}`); !res.IsError {
		t.Errorf("got %q", text(t, res))
	}
	r := <-asked
	if r.Method != http.MethodConnect || r.Host != "api.perplexity.ai:443" || r.Header.Get("Authorization") != "" {
		t.Errorf("the proxy got %s %s with %v", r.Method, r.Host, r.Header)
	}
}
