package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/gateway/gatewaytest"
	"github.com/glovebox-dev/glovebox/internal/polltest"
	"github.com/glovebox-dev/glovebox/internal/revision"
	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// join connects a client to a server.
func join(t *testing.T, s *mcp.Server, name, version string, mute bool) *gatewaytest.Person {
	t.Helper()
	here, there := mcp.NewInMemoryTransports()
	if _, err := s.Connect(t.Context(), there, nil); err != nil {
		t.Fatal(err)
	}
	return gatewaytest.Join(t, here, name, version, mute)
}

// eras runs f for each pair of a server's era and a client's revision.
func eras(t *testing.T, f func(t *testing.T, server mcpkit.Era, client string)) {
	for _, server := range []mcpkit.Era{mcpkit.Legacy, mcpkit.Modern} {
		for _, client := range []string{"2025-06-18", "2025-11-25", revision.Modern} {
			t.Run(fmt.Sprintf("a %s server and a client of %s", server, client), func(t *testing.T) {
				t.Parallel()
				f(t, server, client)
			})
		}
	}
}

// gatewayOf returns a gateway to one server of an era.
func gatewayOf(t *testing.T, era mcpkit.Era, alone bool, trust mcpkit.Trust) (*Gateway, *mcp.Server) {
	t.Helper()
	o := options(t.TempDir(), trust, "a")
	o.Servers.Era, o.SingleClient = era, alone
	g, s := register(t, o)
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return g, s
}

func TestD5_RequestInput_GoesToCaller(t *testing.T) {
	eras(t, func(t *testing.T, era mcpkit.Era, version string) {
		_, s := gatewayOf(t, era, true, mcpkit.Trusted)
		p := join(t, s, "ann", version, false)
		for _, c := range []struct {
			q     gatewaytest.Question
			want  string
			heard []string
		}{
			{gatewaytest.Question{What: "form"}, "accept ann", []string{"a: who? "}},
			{gatewaytest.Question{What: "form", Rounds: 3}, "accept ann accept ann accept ann", []string{"a: who? ", "a: who? ", "a: who? "}},
			{gatewaytest.Question{What: "page"}, "accept <nil>", []string{"a: log in https://login.example/1"}},
			{gatewaytest.Question{What: "sample"}, "said by ann", []string{"sample: say it"}},
			{gatewaytest.Question{What: "roots"}, "file:///home/ann", nil},
		} {
			p.Forget()
			got, err := p.Ask(t.Context(), "a__ask", c.q)
			if err != nil || got != c.want {
				t.Errorf("%+v: got %q, %v, want %q", c.q, got, err, c.want)
			}
			if c.q.What == "page" && era == mcpkit.Legacy && version < revision.Modern {
				until(t, "the client is notified of the completed elicitation", func() bool { return slices.Contains(p.All(), "done: one") })
			}
			heard := slices.DeleteFunc(p.All(), func(s string) bool { return strings.HasPrefix(s, "done: ") })
			if diff := cmp.Diff(c.heard, heard); diff != "" {
				t.Errorf("%+v: questions (-want +got)\n%s", c.q, diff)
			}
		}
	})
}

// until waits for a condition and fails after 20 s.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	polltest.Until(t, 20*time.Second, what, f)
}

func TestD5_RequestInput_ClientWithoutCapability(t *testing.T) {
	eras(t, func(t *testing.T, era mcpkit.Era, version string) {
		_, s := gatewayOf(t, era, true, mcpkit.Trusted)
		able := join(t, s, "ann", version, false)
		mute := join(t, s, "bob", version, true)
		for what, lacks := range map[string]string{"form": "elicitation", "page": "elicitation", "sample": "sampling", "roots": "roots"} {
			if what == "roots" && era == mcpkit.Legacy {
				continue // one list for the connection: the first client's
			}
			_, err := mute.Ask(t.Context(), "a__ask", gatewaytest.Question{What: what})
			if err == nil || !strings.Contains(err.Error(), lacks) {
				t.Errorf("%s: got %v, want an error that names the missing %s", what, err, lacks)
			}
		}
		if heard := able.All(); len(heard) > 0 {
			t.Errorf("the other client got %q", heard)
		}
	})
}

// A legacy server does not say which call its request belongs to, over a connection
// that clients share.
func TestD5_RequestInput_NeverToAnotherClient(t *testing.T) {
	eras(t, func(t *testing.T, era mcpkit.Era, version string) {
		_, s := gatewayOf(t, era, false, mcpkit.Trusted)
		people := []*gatewaytest.Person{join(t, s, "ann", version, false), join(t, s, "bob", version, false)}
		errs, texts := make([]error, 2), make([]string, 2)
		var wg sync.WaitGroup
		for i, p := range people {
			wg.Go(func() { texts[i], errs[i] = p.Ask(t.Context(), "a__ask", gatewaytest.Question{What: "form", Wait: 2}) })
		}
		wg.Wait()
		for i, p := range people {
			switch {
			case era == mcpkit.Modern && texts[i] != "accept "+p.Name:
				t.Errorf("%s: got %q, %v", p.Name, texts[i], errs[i])
			case era == mcpkit.Legacy && errs[i] == nil && texts[i] != "accept "+p.Name:
				t.Errorf("%s: got the answer to another prompt: %q", p.Name, texts[i])
			}
		}
		if era == mcpkit.Legacy && errs[0] == nil && errs[1] == nil {
			t.Error("a request was answered although calls of two clients were in progress")
		}
		// From now on the calls are serialized.
		for i, p := range people {
			for range 4 {
				wg.Go(func() {
					if text, err := p.Ask(t.Context(), "a__ask", gatewaytest.Question{What: "form"}); err != nil || text != "accept "+p.Name {
						errs[i] = err
						t.Errorf("%s, serialized: got %q, %v", p.Name, text, err)
					}
				})
			}
		}
		wg.Wait()
	})
}

// overHTTP returns options of a gateway to an untrusted HTTP server of an era.
func overHTTP(t *testing.T, era mcpkit.Era, also ...mcp.Middleware) Options {
	t.Helper()
	o := options(t.TempDir(), mcpkit.Untrusted, "a")
	upstream := gatewaytest.New("a", filepath.Join(t.TempDir(), "notes"))
	upstream.AddReceivingMiddleware(also...)
	ts := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return upstream },
		&mcp.StreamableHTTPOptions{Stateless: era == mcpkit.Modern}))
	t.Cleanup(ts.Close)
	o.Servers.Config.Servers[0] = &mcpjson.Server{Name: "a", Transport: mcpjson.TransportHTTP, URL: mcpjson.Literal(ts.URL)}
	o.Servers.Era = era
	o.Servers.Outbound.AllowHTTP, o.Servers.Outbound.AllowLocalhost = true, true
	return o
}

// A connection that is made for one client's call serves the calls of others.
func TestD5_SharedConnection_ServesAllClientsAfterCrash(t *testing.T) {
	eras(t, func(t *testing.T, era mcpkit.Era, version string) {
		_, s := gatewayOf(t, era, false, mcpkit.Trusted)
		ann, bob := join(t, s, "ann", version, false), join(t, s, "bob", version, false)
		if res, err := ann.CallTool(t.Context(), &mcp.CallToolParams{Name: "a__crash"}); err == nil && !res.IsError {
			t.Errorf("the server dies: got %+v", res.Content)
		}
		for _, p := range []*gatewaytest.Person{ann, bob, ann} {
			if text, err := p.Ask(t.Context(), "a__ask", gatewaytest.Question{What: "form"}); text != "accept "+p.Name {
				t.Errorf("%s: got %q, %v", p.Name, text, err)
			}
		}
	})
}

func TestD5_UntrustedServer_NoSamplingOrRoots(t *testing.T) {
	// Untrusted commands are never started; an untrusted HTTP server may get to call.
	for _, allowed := range []bool{false, true} {
		for _, era := range []mcpkit.Era{mcpkit.Legacy, mcpkit.Modern} {
			o := overHTTP(t, era)
			o.SingleClient, o.Servers.Hooks.Untrusted = true, allowed
			g, s := register(t, o)
			p := join(t, s, "ann", "2025-11-25", false)
			for _, what := range []string{"sample", "roots"} {
				if _, err := p.Ask(t.Context(), "a__ask", gatewaytest.Question{What: what}); (err == nil) != allowed {
					t.Errorf("%s of a %s server, allowed %v: %v", what, era, allowed, err)
				}
			}
			if text, err := p.Ask(t.Context(), "a__ask", gatewaytest.Question{What: "form"}); text != "accept ann" {
				t.Errorf("form of a %s server: got %q, %v", era, text, err)
			}
			p.Close()
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestD5_ForwardLog_GoesToCaller(t *testing.T) {
	eras(t, func(t *testing.T, era mcpkit.Era, version string) {
		_, s := gatewayOf(t, era, false, mcpkit.Trusted)
		p, other := join(t, s, "ann", version, false), join(t, s, "bob", version, false)
		params := &mcp.CallToolParams{Name: "a__shout"}
		if version < revision.Modern {
			for _, one := range []*gatewaytest.Person{p, other} {
				if err := one.SetLoggingLevel(t.Context(), &mcp.SetLoggingLevelParams{Level: "info"}); err != nil {
					t.Fatal(err)
				}
			}
		} else {
			params.Meta = mcp.Meta{mcp.MetaKeyLogLevel: "info"}
		}
		if era == mcpkit.Modern && version < revision.Modern {
			t.Skip("the gateway does not pass an older client's log level to a modern server, which sends no log without one")
		}
		if era == mcpkit.Legacy && version >= revision.Modern {
			t.Skip("a modern client's level is for one request, an older server's for the connection")
		}
		if _, err := p.CallTool(t.Context(), params); err != nil {
			t.Fatal(err)
		}
		until(t, "the caller hears what the server logs", func() bool { return slices.Contains(p.All(), "a/throat: hey") })
		if heard := other.All(); len(heard) > 0 {
			t.Errorf("another client got %q", heard)
		}
	})
}

// byHand connects a client that returns requests for input to the test.
func byHand(t *testing.T, s *mcp.Server) *mcp.ClientSession {
	t.Helper()
	here, there := mcp.NewInMemoryTransports()
	if _, err := s.Connect(t.Context(), there, nil); err != nil {
		t.Fatal(err)
	}
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, &mcp.ClientOptions{
		MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true}, Capabilities: &mcp.ClientCapabilities{},
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return nil, errors.New("not here")
		},
	}).Connect(t.Context(), here, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cs.Close() })
	return cs
}

// textOf returns the text of a result, which may be nil.
func textOf(res *mcp.CallToolResult) (text string) {
	if res == nil {
		return ""
	}
	for _, c := range res.Content {
		if c, ok := c.(*mcp.TextContent); ok {
			text += c.Text
		}
	}
	return text
}

// TestPendingInput_CallEndsBeforeAnswer: an older server may request roots during a call
// that does not need them, and finish the call meanwhile. The client that returns with
// its answer gets the result of the call.
func TestPendingInput_CallEndsBeforeAnswer(t *testing.T) {
	g, _ := gatewayOf(t, mcpkit.Legacy, false, mcpkit.Trusted)
	away := make(chan struct{})
	do := func(ctx context.Context, _ *mcpkit.Session, c *call) (mcp.Result, error) {
		go c.requestInput(ctx, &mcp.ListRootsParams{})
		<-away
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "42"}}}, nil
	}
	res, err := g.forward(t.Context(), "a", client{}, nil, "tool x", nil, inputParams{}, do)
	asked, ok := res.(*inputRequired)
	if err != nil || !ok {
		t.Fatalf("got %+v, %v, want a request for input", res, err)
	}
	close(away)
	until(t, "the call ends", func() bool {
		g.serializer.mu.Lock()
		defer g.serializer.mu.Unlock()
		return len(g.serializer.get("a").calls) == 0
	})
	in := inputParams{responses: mcp.InputResponseMap{answerID: &mcp.ListRootsResult{Roots: []*mcp.Root{}}}, state: asked.state}
	res, err = g.forward(t.Context(), "a", client{}, nil, "tool x", nil, in, nil)
	if got, ok := res.(*mcp.CallToolResult); err != nil || !ok || textOf(got) != "42" {
		t.Errorf("got %+v, %v, want the result of the call", res, err)
	}
	if _, err := g.forward(t.Context(), "a", client{owner: "other"}, nil, "tool x", nil, in, nil); !errors.Is(err, errNotPending) {
		t.Errorf("again, and of another owner: got %v, want %v", err, errNotPending)
	}
}

func TestPendingInput_Timeout(t *testing.T) {
	for _, era := range []mcpkit.Era{mcpkit.Legacy, mcpkit.Modern} {
		o := options(t.TempDir(), mcpkit.Trusted, "a")
		o.Servers.Era, o.Servers.Limits.Question = era, 300*time.Millisecond
		g, s := register(t, o)
		cs := byHand(t, s)
		params := &mcp.CallToolParams{Name: "a__ask", Arguments: gatewaytest.Question{What: "form"}}
		res, err := cs.CallTool(t.Context(), params)
		if err != nil || res.InputRequests[answerID] == nil || res.RequestState == "" {
			t.Fatalf("%s: got %+v, %v, want a question", era, res, err)
		}
		until(t, "the call ends", func() bool {
			g.serializer.mu.Lock()
			defer g.serializer.mu.Unlock()
			return len(g.serializer.get("a").calls) == 0
		})
		late := *params
		late.RequestState = res.RequestState
		late.InputResponses = mcp.InputResponseMap{answerID: &mcp.ElicitResult{Action: "decline"}}
		// The late client learns what became of its call.
		res, err = cs.CallTool(t.Context(), &late)
		if failed := err != nil || res.IsError; !failed || !strings.Contains(fmt.Sprint(err, textOf(res)), "no answer within 300ms") {
			t.Errorf("%s: a late answer: got %+v, %v, want that there was no answer in time", era, res, err)
		}
		if _, err := cs.CallTool(t.Context(), &late); err == nil || !strings.Contains(err.Error(), errNotPending.Message) {
			t.Errorf("%s: the second late answer: got %v, want %q", era, err, errNotPending.Message)
		}
		cs.Close()
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The state in a result is valid for one answer to the call that it was issued for.
func TestPendingInput_StateOfAnotherCall(t *testing.T) {
	_, s := gatewayOf(t, mcpkit.Legacy, false, mcpkit.Trusted)
	cs := byHand(t, s)
	params := mcp.CallToolParams{Name: "a__ask", Arguments: gatewaytest.Question{What: "form"}}
	res, err := cs.CallTool(t.Context(), &params)
	if err != nil {
		t.Fatal(err)
	}
	answered := params
	answered.RequestState = res.RequestState
	answered.InputResponses = mcp.InputResponseMap{answerID: &mcp.ElicitResult{Action: "decline"}}
	for name, change := range map[string]func(*mcp.CallToolParams){
		"another tool":    func(p *mcp.CallToolParams) { p.Name, p.Arguments = "a__say", map[string]any{"text": "x"} },
		"other arguments": func(p *mcp.CallToolParams) { p.Arguments = gatewaytest.Question{What: "roots"} },
		"another state":   func(p *mcp.CallToolParams) { p.RequestState += "x" },
		"no answer":       func(p *mcp.CallToolParams) { p.InputResponses = nil },
		"an answer of a kind": func(p *mcp.CallToolParams) {
			p.InputResponses = mcp.InputResponseMap{answerID: &mcp.ListRootsResult{Roots: []*mcp.Root{}}}
		},
	} {
		other := answered
		change(&other)
		if res, err := cs.CallTool(t.Context(), &other); err == nil {
			t.Errorf("%s: got %+v, want an error", name, res)
		}
	}
	if res, err := cs.CallTool(t.Context(), &answered); err != nil || res.Content[0].(*mcp.TextContent).Text != "decline <nil>" {
		t.Errorf("the right answer: got %+v, %v", res, err)
	}
	if res, err := cs.CallTool(t.Context(), &answered); err == nil {
		t.Errorf("the right answer for the second time: got %+v, want an error", res)
	}
}

// Cancelling a call cancels its request for input at the client.
func TestCancel_WhileClientAnswers(t *testing.T) {
	_, s := gatewayOf(t, mcpkit.Legacy, true, mcpkit.Trusted)
	asked, gone := make(chan struct{}), make(chan struct{})
	c := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(ctx context.Context, _ *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			close(asked)
			<-ctx.Done()
			close(gone)
			return nil, ctx.Err()
		},
	})
	here, there := mcp.NewInMemoryTransports()
	if _, err := s.Connect(t.Context(), there, nil); err != nil {
		t.Fatal(err)
	}
	cs, err := c.Connect(t.Context(), here, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		t.Fatal(err)
	}
	defer cs.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "a__ask", Arguments: gatewaytest.Question{What: "form"}})
		done <- err
	}()
	<-asked
	cancel()
	if err := <-done; err == nil {
		t.Error("a cancelled call: no error")
	}
	select {
	case <-gone:
	case <-time.After(20 * time.Second):
		t.Error("the question was kept after its call ended")
	}
}

// Subscribed clients are notified, also after the server was restarted; others are not.
func TestSubscriptions_NotifySubscribersOnly(t *testing.T) {
	eras(t, func(t *testing.T, era mcpkit.Era, version string) {
		_, s := gatewayOf(t, era, false, mcpkit.Trusted)
		p, other := join(t, s, "ann", version, false), join(t, s, "bob", version, false)
		const uri = "note://a/one"
		subscribe := func() {
			t.Helper()
			if err := p.Subscribe(t.Context(), &mcp.SubscribeParams{URI: uri}); err != nil {
				t.Fatal(err)
			}
		}
		change := func() {
			if _, err := other.CallTool(t.Context(), &mcp.CallToolParams{Name: "a__change", Arguments: map[string]any{"text": uri}}); err != nil {
				t.Fatal(err)
			}
		}
		heard := func(who *gatewaytest.Person) (n int) {
			for _, one := range who.All() {
				if one == "updated: "+uri {
					n++
				}
			}
			return n
		}
		subscribe()
		until(t, "the change is told", func() bool { change(); return heard(p) > 0 })
		if _, err := other.CallTool(t.Context(), &mcp.CallToolParams{Name: "a__crash"}); err == nil {
			t.Log("the server answered before it crashed")
		}
		before := heard(p)
		until(t, "the change is told by the server that was started anew", func() bool { change(); return heard(p) > before })
		if err := p.Unsubscribe(t.Context(), &mcp.UnsubscribeParams{URI: uri}); err != nil {
			t.Fatal(err)
		}
		if n := heard(other); n > 0 {
			t.Errorf("a client without a subscription got %d notifications", n)
		}
	})
}

func TestSubscriptions_DisconnectedClientsFreeTheLimit(t *testing.T) {
	g, s := gatewayOf(t, mcpkit.Legacy, false, mcpkit.Trusted)
	p, other := join(t, s, "ann", "2025-11-25", false), join(t, s, "bob", "2025-11-25", false)
	watch := func(who *gatewaytest.Person, i int) error {
		return who.Subscribe(t.Context(), &mcp.SubscribeParams{URI: fmt.Sprint("note://a/", i)})
	}
	for i := range maxSubscriptions {
		if err := watch(p, i); err != nil {
			t.Fatal(err)
		}
	}
	if err := watch(other, maxSubscriptions); err == nil {
		t.Errorf("more than %d resources are watched", maxSubscriptions)
	}
	if err := watch(other, 0); err != nil {
		t.Errorf("subscribe again: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	until(t, "there is room", func() bool { return watch(other, maxSubscriptions) == nil })
	g.subscriptions.mu.Lock()
	defer g.subscriptions.mu.Unlock()
	if n := len(g.subscriptions.byURI); n != 2 {
		t.Errorf("%d resources are watched, want 2", n)
	}
}

func TestSubscriptions_FollowResourceToAnotherServer(t *testing.T) {
	g, s := register(t, options(t.TempDir(), mcpkit.Trusted, "a", "b"))
	defer g.Close()
	<-g.firstListed
	const uri = "x://r"
	offers := func(server string, resources ...*mcp.Resource) {
		g.mu.Lock()
		o := g.published[server].Entry
		g.mu.Unlock()
		o.Resources = resources
		g.publish(server, o, true)
	}
	p, other := join(t, s, "ann", "2025-11-25", false), join(t, s, "bob", "2025-11-25", false)
	offers("a", &mcp.Resource{Name: "r", URI: uri})
	for _, who := range []*gatewaytest.Person{p, other} {
		if err := who.Subscribe(t.Context(), &mcp.SubscribeParams{URI: uri}); err != nil {
			t.Fatal(err)
		}
		offers("a")
		offers("b", &mcp.Resource{Name: "r", URI: uri})
	}
	until(t, "the change is told", func() bool {
		if _, err := p.CallTool(t.Context(), &mcp.CallToolParams{Name: "b__change", Arguments: map[string]any{"text": uri}}); err != nil {
			t.Fatal(err)
		}
		return slices.Contains(p.All(), "updated: "+uri) && slices.Contains(other.All(), "updated: "+uri)
	})
}

func TestForward_ResourcesPromptsCompletion(t *testing.T) {
	eras(t, func(t *testing.T, era mcpkit.Era, version string) {
		_, s := gatewayOf(t, era, false, mcpkit.Trusted)
		p := join(t, s, "ann", version, false)
		res, err := p.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "note://a/one"})
		if err != nil || res.Contents[0].Text != "a note" {
			t.Errorf("resource: %+v, %v", res, err)
		}
		prompt, err := p.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "a__greet", Arguments: map[string]string{"who": "you"}})
		if err != nil || prompt.Messages[0].Content.(*mcp.TextContent).Text != "greet you" {
			t.Errorf("prompt: %+v, %v", prompt, err)
		}
		for ref, want := range map[*mcp.CompleteReference]string{
			{Type: "ref/prompt", Name: "a__greet"}:         "prompt greet who j",
			{Type: "ref/resource", URI: "note://a/{name}"}: "resource note://a/{name} who j",
		} {
			done, err := p.Complete(t.Context(), &mcp.CompleteParams{Ref: ref, Argument: mcp.CompleteParamsArgument{Name: "who", Value: "j"}})
			if err != nil || len(done.Completion.Values) != 1 || done.Completion.Values[0] != want {
				t.Errorf("complete %+v: got %+v, %v, want %q", ref, done, err, want)
			}
		}
		if _, err := p.Complete(t.Context(), &mcp.CompleteParams{Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: "greet"},
			Argument: mcp.CompleteParamsArgument{Name: "who"}}); err == nil {
			t.Error("complete an unknown prompt: no error")
		}
	})
}
