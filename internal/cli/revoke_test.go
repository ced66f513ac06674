//go:build linux

package cli

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/polltest"
	"github.com/glovebox-dev/glovebox/internal/server/auth"
)

// TestServe_RevokesTokens: a running server cancels the calls of a token that is removed from its
// file, and no other calls. It reports a file with a mistake, on SIGHUP and without, and keeps the
// tokens from before. It accepts a token that is added.
func TestServe_RevokesTokens(t *testing.T) {
	k, log := newTokens(t), filepath.Join(t.TempDir(), "log")
	s := startServer(t, t.TempDir(), append([]string{"--tokens-file", k.file, "--log-file", log}, plain...)...)
	alice, bob := s.as(t, k.alice), s.as(t, k.bob)
	const long = "import time\nopen('began', 'w').close()\ntime.sleep(120)"
	calls, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := map[string]chan error{}
	for name, b := range map[string]boxes{"alice": alice, "bob": bob} {
		ch := make(chan error, 1)
		ended[name] = ch
		b.execute(name, "print(1)")
		go func() {
			_, _, _, err := b.call(calls, "execute_code", args{"session_id": name, "code": long})
			ch <- err
		}()
		if !polltest.Soon(20*time.Second, func() bool {
			out := b.must("list_files", args{"session_id": name})
			return strings.Contains(fmt.Sprint(out), "began")
		}) {
			t.Fatalf("the program of %s does not begin", name)
		}
	}
	if _, err := auth.RemoveTokens(k.file, func(t *auth.Token) bool { return t.Name == "alice" }); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended["alice"]:
		if err == nil {
			t.Error("alice's call has a result after her token was removed")
		}
	case <-time.After(30 * time.Second): // of the 120 of her program
		t.Fatal("alice's call goes on after her token was removed")
	}
	if status := s.ping(k.alice); status != http.StatusUnauthorized {
		t.Errorf("a request with the removed token: status %d", status)
	}
	select {
	case err := <-ended["bob"]:
		t.Errorf("bob's call ended, too: %v", err)
	default:
		cancel()
		<-ended["bob"]
	}

	valid, err := os.ReadFile(k.file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(k.file, append(valid, "[[token]]\nname = 7\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	s.hup(log, `level=ERROR msg="reload: file unchanged" file="tokens file"`)
	if !polltest.Soon(20*time.Second, func() bool { // of the watch of the file
		text, _ := os.ReadFile(log)
		return strings.Contains(string(text), "tokens not reloaded; the previous ones stay valid")
	}) {
		t.Error("a mistake in the file is reported only after SIGHUP")
	}
	if status := s.ping(k.bob); status != http.StatusOK {
		t.Errorf("bob after a mistake in the file: status %d", status)
	}
	if err := os.WriteFile(k.file, valid, 0o600); err != nil {
		t.Fatal(err)
	}
	secret, token, err := auth.NewToken("alice", time.Time{}, auth.Scopes{auth.Use})
	if err == nil {
		err = auth.AddToken(k.file, &token)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !polltest.Soon(30*time.Second, func() bool { return s.ping(secret) == http.StatusOK }) {
		t.Error("a new token is not accepted")
	}
}

// ping returns the status of a request with a token.
func (s *serverProcess) ping(token string) int {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.endpoint, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	res, err := (&http.Client{Transport: bearing(token)}).Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	res.Body.Close()
	return res.StatusCode
}
