package server

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/polltest"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// message is what a body says, whatever its form.
func message(t *testing.T, body string) (v any) {
	t.Helper()
	data := body
	for line := range strings.Lines(body) {
		if event, ok := strings.CutPrefix(line, "data: "); ok {
			data = event // the last: the first may carry an id only
		}
	}
	if err := json.Unmarshal([]byte(data), &v); err != nil {
		t.Fatalf("parse %.300q: %v", body, err)
	}
	return v
}

// TestDirect_AnswersLikeSDK sends every kind of call to a server with direct calls and to
// one that has the SDK do all: the answers are the same.
func TestDirect_AnswersLikeSDK(t *testing.T) {
	endpoint := func(change func(*Server)) string {
		s := New(Options{
			Tools:  tools.Deps{Boxes: box.New(box.DefaultConfig(), box.Parts{})},
			Extend: Extension{Tools: odd()},
		})
		change(s)
		srv := httptest.NewServer(s.Handler())
		t.Cleanup(srv.Close)
		return srv.URL + "/mcp"
	}
	direct := endpoint(func(*Server) {})
	sdk := endpoint(func(s *Server) { s.handlers = nil })

	good, goodBody := modernCall(7, "list_contexts", "{}")
	oddCall := func(name string) (header, string) {
		return with(good, "Mcp-Name", name), strings.Replace(goodBody, "list_contexts", name, 1)
	}
	asks, asksBody := oddCall("asks")
	needs, needsBody := oddCall("needs")
	notes, notesBody := oddCall("notes")
	bare := header{"Accept": "application/json, text/event-stream"}
	bareBody := toolCall(7, "list_contexts", "{}")
	own := header{"Accept": bare["Accept"], headerSession: "own", headerVersion: "2025-11-25"}
	replace := strings.NewReplacer
	for name, c := range map[string]struct {
		h    header
		body string
	}{
		"modern":                    {good, goodBody},
		"modern, no client":         {good, replace(`"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},`, "").Replace(goodBody)},
		"modern, no capabilities":   {good, replace(`,"io.modelcontextprotocol/clientCapabilities":{}`, "").Replace(goodBody)},
		"modern, bad capabilities":  {good, replace(`clientCapabilities":{}`, `clientCapabilities":[]`).Replace(goodBody)},
		"modern, null capabilities": {good, replace(`clientCapabilities":{}`, `clientCapabilities":null`).Replace(goodBody)},
		"modern, odd capabilities":  {good, replace(`clientCapabilities":{}`, `clientCapabilities":{"roots":5}`).Replace(goodBody)},
		"modern, bad client":        {good, replace(`{"name":"t","version":"1"}`, `"t"`).Replace(goodBody)},
		"modern, null client":       {good, replace(`{"name":"t","version":"1"}`, `null`).Replace(goodBody)},
		"modern, no meta":           {good, toolCall(7, "list_contexts", "{}")},
		"modern, other version":     {good, replace(`"2026-07-28"`, `"2026-07-29"`).Replace(goodBody)},
		"modern, later version":     {with(good, "Mcp-Protocol-Version", "2027-01-01"), replace(`"2026-07-28"`, `"2027-01-01"`).Replace(goodBody)},
		"modern, old header":        {with(good, "Mcp-Protocol-Version", "2025-11-25"), goodBody},
		"modern, no header":         {with(good, "Mcp-Protocol-Version", ""), goodBody},
		"modern, other name":        {with(good, "Mcp-Name", "list_snapshots"), goodBody},
		"modern, no name":           {with(good, "Mcp-Name", ""), goodBody},
		"modern, other method":      {with(good, "Mcp-Method", "tools/list"), goodBody},
		"modern, log level":         {good, replace(`"_meta":{`, `"_meta":{"io.modelcontextprotocol/logLevel":"debug",`).Replace(goodBody)},
		"modern, token":             {good, replace(`"_meta":{`, `"_meta":{"progressToken":"a",`).Replace(goodBody)},
		"modern, state":             {good, replace(`"_meta":{`, `"requestState":"x","_meta":{`).Replace(goodBody)},
		"modern, odd state":         {good, replace(`"_meta":{`, `"requestState":5,"_meta":{`).Replace(goodBody)},
		"modern, more members":      {good, replace(`"_meta":{`, `"more":5,"_meta":{`).Replace(goodBody)},
		"modern, last event":        {with(good, "Last-Event-Id", "a_1"), goodBody},
		"modern, string id":         {good, replace(`"id":7`, `"id":"ü<\u0041"`).Replace(goodBody)},
		"modern, bad argument":      {good, replace(`"arguments":{}`, `"arguments":{"nope":1}`).Replace(goodBody)},
		"modern, null arguments":    {good, replace(`"arguments":{}`, `"arguments":null`).Replace(goodBody)},
		"modern, no arguments":      {good, replace(`"arguments":{},`, ``).Replace(goodBody)},
		"modern, list arguments":    {good, replace(`"arguments":{}`, `"arguments":[]`).Replace(goodBody)},
		"modern, input":             {asks, asksBody},
		"modern, capability":        {needs, needsBody},
		"modern, own meta":          {notes, notesBody},
		"modern, upper case":        {good, replace(`"arguments":{}`, `"Arguments":{"nope":1}`).Replace(goodBody)},

		"bare":               {bare, bareBody},
		"bare, JSON only":    {header{"Accept": "application/json"}, bareBody},
		"bare, nothing":      {header{}, bareBody},
		"bare, version":      {with(bare, "Mcp-Protocol-Version", "2025-06-18"), bareBody},
		"bare, bad version":  {with(bare, "Mcp-Protocol-Version", "2020-01-01"), bareBody},
		"bare, meta version": {bare, replace(`"arguments":{}`, `"_meta":{"io.modelcontextprotocol/protocolVersion":"2025-11-25"}`).Replace(bareBody)},
		"bare, unknown tool": {bare, toolCall(7, "list_context", "{}")},
		"bare, no tool":      {bare, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{}}`},
		"bare, odd tool":     {bare, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":5}}`},
		"bare, no context":   {bare, toolCall(7, "run_code", `{"code":"1 < 2 & \"é\u2028\"","context_id":"<nope>"}`)},
		"bare, no code":      {bare, toolCall(7, "run_code", `{}`)},
		"bare, capability":   {bare, toolCall(7, "needs", `{}`)},
		"bare, own meta":     {bare, toolCall(7, "notes", `{}`)},
		"bare, no session":   {bare, toolCall(7, "stop_session", `{"session_id":"nope"}`)},
		"bare, wrong type":   {bare, toolCall(7, "execute_code", `{"code":5}`)},
		"bare, id of a half": {bare, replace(`"id":7`, `"id":7.0`).Replace(bareBody)},

		"session":                     {own, bareBody},
		"session, older":              {with(own, headerVersion, "2025-03-26"), bareBody},
		"session, no version":         {with(own, headerVersion, ""), bareBody},
		"session, bad version":        {with(own, headerVersion, "2020-01-01"), bareBody},
		"session, newest":             {with(good, headerSession, "own"), goodBody},
		"session, newest, no header":  {own, goodBody},
		"session, unknown":            {with(own, headerSession, "nope"), bareBody},
		"session, JSON only":          {with(own, "Accept", "application/json"), bareBody},
		"session, unknown tool":       {own, toolCall(7, "list_context", "{}")},
		"session, last event":         {with(own, headerLastEvent, "a_1"), bareBody},
		"session, string id":          {own, replace(`"id":7`, `"id":"ü<\u0041"`).Replace(bareBody)},
		"session, bad argument":       {own, replace(`"arguments":{}`, `"arguments":{"nope":1}`).Replace(bareBody)},
		"session, token":              {own, replace(`"arguments":{}`, `"_meta":{"progressToken":1}`).Replace(bareBody)},
		"session, no context":         {own, toolCall(7, "run_code", `{"code":"1","context_id":"nope"}`)},
		"session, capability":         {own, toolCall(7, "needs", `{}`)},
		"session, own meta":           {own, toolCall(7, "notes", `{}`)},
		"session, input is asked for": {own, toolCall(7, "asks", `{}`)},
	} {
		t.Run(name, func(t *testing.T) {
			h := [2]header{c.h, c.h}
			if c.h[headerSession] == "own" {
				h[0] = with(c.h, headerSession, session(t, direct)[headerSession])
				h[1] = with(c.h, headerSession, session(t, sdk)[headerSession])
			}
			res, out := do(t, "POST", direct, h[0], c.body)
			want, wantOut := do(t, "POST", sdk, h[1], c.body)
			wantOut = strings.Replace(wantOut, `"content":null,`, "", 1) // beside inputRequests, where there is none
			if res.StatusCode != want.StatusCode || !reflect.DeepEqual(message(t, out), message(t, wantOut)) {
				t.Errorf("got  %s %s\nwant %s %s", res.Status, out, want.Status, wantOut)
			}
		})
	}
}

// odd are tools of an extension with answers that the catalogue has none like.
func odd() []Tool {
	all := []Tool{
		extra("asks", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			ask := mcp.InputRequestMap{"name": &mcp.ElicitParams{Message: "Who?", RequestedSchema: json.RawMessage(`{"type":"object"}`)}}
			return &mcp.CallToolResult{InputRequests: ask, RequestState: "s"}, nil
		}),
		extra("needs", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return nil, &jsonrpc.Error{Code: mcp.CodeMissingRequiredClientCapabilities, Message: "needs sampling", Data: json.RawMessage(`{"a":1}`)}
		}),
		extra("notes", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Meta: mcp.Meta{"note": 1}}, nil
		}),
	}
	for i := range all {
		all[i].Direct = true
	}
	return all
}

// TestDirect_ServesPlainCallsOnly: plain calls bypass the SDK, and all other calls do
// not.
func TestDirect_ServesPlainCallsOnly(t *testing.T) {
	late := extra("late", nil)
	s := New(Options{
		Tools:  tools.Deps{Boxes: box.New(box.DefaultConfig(), box.Parts{})},
		Extend: Extension{Tools: append(odd(), late)},
	})
	modern, body := modernCall(1, "run_code", `{"code":"1"}`)
	for _, c := range []struct {
		h    header
		body string
		want bool
	}{
		{modern, body, true},
		{header{}, toolCall(1, "run_code", `{"code":"1"}`), true},
		{header{}, toolCall(1, "notes", `{}`), true},
		{header{}, toolCall(1, "late", `{}`), false},
		{header{"Mcp-Session-Id": "x"}, toolCall(1, "run_code", `{"code":"1"}`), false},
		{header{}, "[" + toolCall(1, "run_code", `{"code":"1"}`) + "]", false},
		{modern, strings.Replace(body, `"_meta":{`, `"_meta":{"progressToken":null,`, 1), false},
		{header{}, `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"run_code"}}`, false},
		{header{}, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, false},
	} {
		r := httptest.NewRequest("POST", "/mcp", nil)
		for k, v := range c.h {
			r.Header.Set(k, v)
		}
		m, refused := classify([]byte(c.body))
		if refused != nil {
			t.Fatalf("%s: %v", c.body, refused)
		}
		if _, ok := s.direct(r, &m); ok != c.want {
			t.Errorf("%v %s: got %v", c.h, c.body, ok)
		}
	}
}

// TestDirect_LifeOfCall: a direct call is kept alive, ends when its modern client goes
// away and only then, holds up a shutdown, and may panic.
func TestDirect_LifeOfCall(t *testing.T) {
	s := New(Options{Limits: Limits{Heartbeat: 20 * time.Millisecond, Grace: 5 * time.Second}})
	started, release, ended := make(chan bool, 1), make(chan bool), make(chan error, 1)
	s.handlers["slow"] = func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		started <- true
		select {
		case <-release:
		case <-ctx.Done():
		}
		ended <- ctx.Err()
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, ctx.Err()
	}
	s.handlers["panic"] = func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { panic("oops") }
	s.names = append(s.names, "panic", "slow")
	slices.Sort(s.names)
	srv := httptest.NewServer(s.Handler())
	defer srv.Close()
	url := srv.URL + "/mcp"

	h, body := modernCall(1, "slow", "{}")
	out := doAfterBeats(t, url, h, body, func() { release <- true })
	if !strings.Contains(out, "event: message\ndata: {") || !strings.HasSuffix(out, "\n\n") || !strings.Contains(out, `"text":"done"`) {
		t.Errorf("heartbeat: got %q", out)
	}
	<-started
	<-ended

	gone := func(h header, body string) {
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range h {
			req.Header.Set(k, v)
		}
		req.Header.Set("Content-Type", "application/json")
		failed := make(chan error, 1)
		go func() {
			_, err := http.DefaultClient.Do(req)
			failed <- err
		}()
		<-started
		cancel()
		<-failed
	}
	gone(h, body)
	if err := <-ended; err == nil {
		t.Error("the call did not end when its modern client disconnected")
	}
	gone(header{"Accept": "application/json"}, toolCall(1, "slow", "{}"))
	select {
	case err := <-ended:
		t.Errorf("an older client has gone, and its call ended: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	release <- true
	<-ended

	h, panics := modernCall(1, "panic", "{}")
	res, out := do(t, "POST", url, h, panics)
	if r := parse(t, out); res.StatusCode != 200 || r.Error == nil || r.Error.Code != -32603 || strings.Contains(out, "oops") {
		t.Errorf("panic: got %s %s", res.Status, out)
	}

	stopped := make(chan error, 1)
	go func() {
		<-started
		go func() {
			polltest.Soon(time.Minute, s.draining.Load)
			release <- true
		}()
		stopped <- s.Shutdown(t.Context())
	}()
	if _, out := do(t, "POST", url, nil, toolCall(1, "slow", "{}")); !strings.Contains(out, "done") {
		t.Errorf("drain: got %s", out)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if res, _ := do(t, "POST", url, nil, toolCall(1, "slow", "{}")); res.StatusCode != 503 {
		t.Errorf("after the shutdown: got %s", res.Status)
	}
}

// BenchmarkCall is a call that touches no box, over one connection, done by the
// front and by the SDK.
func BenchmarkCall(b *testing.B) {
	for _, who := range []string{"front", "SDK"} {
		s, url := serve(b, nil)
		if who == "SDK" {
			s.handlers = nil
		}
		h := session(b, url)
		modern, modernBody := modernCall(1, "list_contexts", "{}")
		for _, c := range []struct {
			name string
			h    header
			body string
		}{{"session", h, toolCall(1, "list_contexts", "{}")}, {"bare", header{}, toolCall(1, "list_contexts", "{}")}, {"modern", modern, modernBody}} {
			b.Run(c.name+"/"+who, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if res, body := do(b, "POST", url, c.h, c.body); res.StatusCode != 200 {
						b.Fatalf("%s %s", res.Status, body)
					}
				}
			})
		}
	}
}
