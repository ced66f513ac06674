package login

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/proctest"
)

const (
	refreshes  = 8 // of each process
	processes  = 4
	childStore = "LOGIN_TEST_STORE"
	childURL   = "LOGIN_TEST_URL"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childStore); dir != "" {
		if err := refreshAgain(dir, os.Getenv(childURL)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(proctest.Main(m))
}

// refreshAgain is the main function of a process that considers every token expired.
func refreshAgain(dir, url string) error {
	l := New(Options{Store: OpenStore(dir)})
	l.now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	h, err := l.Handler(Server{Name: "srv", URL: url}, nil)
	if err != nil {
		return err
	}
	defer h.Close()
	for range refreshes {
		src, err := h.TokenSource(context.Background())
		if err != nil || src == nil {
			return fmt.Errorf("no token: %v, %v", src, err)
		}
	}
	return nil
}

// Several processes share a login whose refresh tokens are valid once: none is used
// twice, and every process gets a token.
func TestRefresh_SeveralProcesses(t *testing.T) {
	s := start(t, nil)
	dir := filepath.Join(t.TempDir(), "logins")
	h := handler(t, s, Options{Store: OpenStore(dir), Authorize: approve(nil)}, nil)
	if err := h.Login(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := s.Count("/token")
	var all []*exec.Cmd
	var errs []*strings.Builder
	for range processes {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), childStore+"="+dir, childURL+"="+s.URL)
		text := new(strings.Builder)
		cmd.Stderr = text
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		all, errs = append(all, cmd), append(errs, text)
	}
	for i, cmd := range all {
		if err := cmd.Wait(); err != nil {
			t.Errorf("process %d: %v: %s", i, err, errs[i])
		}
	}
	if n := s.Count("/token") - before; n != processes*refreshes || s.Replays() != 0 {
		t.Errorf("%d refreshes, %d replays; want %d and none", n, s.Replays(), processes*refreshes)
	}
	if err := greet(t.Context(), h, "hello"); err != nil {
		t.Error("the login is lost:", err)
	}
}
