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

// TestChangedToken_EndsStreams: a change of a token's scopes ends its streams, and counts for
// later requests.
func TestChangedToken_EndsStreams(t *testing.T) {
	p := newPeople(t)
	_, url := serve(t, p.options(announcesTools))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	res, _ := do(t, "POST", url, p.as("carol"), initBody)
	session := res.Header.Get(headerSession)
	streams := map[string]io.Reader{
		"of a session":           listenTo(t, ctx, url, with(p.as("carol"), headerSession, session)).Body,
		"of the modern revision": p.modernListen(t, ctx, url, "carol").Body,
	}
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
	if res, body := do(t, "POST", url, p.as("carol"), toolCall(7, "list_contexts", "{}")); res.StatusCode != 200 {
		t.Errorf("a call that the new scopes allow: %s %s", res.Status, body)
	}
	if res, body := do(t, "POST", url, p.as("carol"), toolCall(7, "run_code", `{"code":"1"}`)); res.StatusCode != 403 || !strings.Contains(body, "scope") {
		t.Errorf("a call that they do not allow: %s %s", res.Status, body)
	}
}
