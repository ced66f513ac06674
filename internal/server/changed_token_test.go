package server

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/server/auth"
)

// TestChangedToken_EndsStreamsAndCalls: a change of a token's scopes ends its streams and running calls, and
// counts for later requests.
func TestChangedToken_EndsStreamsAndCalls(t *testing.T) {
	p := newPeople(t)
	release, started := make(chan struct{}), make(chan struct{}, 1)
	defer close(release)
	_, url := serve(t, p.options(func(o *Options) {
		announcesTools(o)
		o.Extend.Tools = append(o.Extend.Tools, slow(release, started)...)
	}))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	res, _ := do(t, "POST", url, p.as("carol"), initBody)
	session := res.Header.Get(headerSession)
	streams := map[string]io.Reader{
		"of a session":           listenTo(t, ctx, url, with(p.as("carol"), headerSession, session)).Body,
		"of the modern revision": p.modernListen(t, ctx, url, "carol").Body,
	}
	answer := make(chan string, 1)
	go func() {
		_, body := do(t, "POST", url, p.as("carol"), toolCall(8, "slow", "{}"))
		answer <- body
	}()
	<-started
	var changed auth.Token
	if _, err := auth.RemoveTokens(p.path, func(token *auth.Token) bool {
		if token.Name == "carol" {
			changed = *token
		}
		return token.Name == "carol"
	}); err != nil {
		t.Fatal(err)
	}
	changed.Scopes = auth.Scopes{auth.Read}
	if err := errors.Join(auth.AddToken(p.path, &changed), p.v.Reload()); err != nil {
		t.Fatal(err)
	}
	for name, stream := range streams {
		if _, err := io.Copy(io.Discard, stream); ctx.Err() != nil || err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("the stream %s, whose token has other scopes now: %v", name, err)
		}
	}
	select {
	case body := <-answer:
		if strings.Contains(body, "done") {
			t.Errorf("the call, whose token has other scopes now: %s", body)
		}
	case <-ctx.Done():
		t.Error("the call, whose token has other scopes now, did not end")
	}
	if res, body := do(t, "POST", url, p.as("carol"), toolCall(7, "list_contexts", "{}")); res.StatusCode != 200 {
		t.Errorf("a call that the new scopes allow: %s %s", res.Status, body)
	}
	if res, body := do(t, "POST", url, p.as("carol"), toolCall(7, "run_code", `{"code":"1"}`)); res.StatusCode != 403 || !strings.Contains(body, "scope") {
		t.Errorf("a call that they do not allow: %s %s", res.Status, body)
	}
}
