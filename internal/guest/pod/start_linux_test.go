package pod

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/guest/podlink"
)

func TestWait_ReturnsTheMessageOnceTheHelperIsGone(t *testing.T) {
	dir := t.TempDir()
	life, message := filepath.Join(dir, "helper", "life"), filepath.Join(dir, "message")
	lock, err := lockLife(filepath.Dir(life), life)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockLife(filepath.Dir(life), life); err == nil || !strings.Contains(err.Error(), "another helper runs") {
		t.Errorf("a second helper: got %v", err)
	}
	var out bytes.Buffer
	done := make(chan error, 1)
	go func() {
		_, err := waitFor(life, message, &out)
		done <- err
	}()
	code := 7
	want, err := json.Marshal(podlink.Termination{Exited: &code})
	if err == nil {
		err = os.WriteFile(message, want, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		t.Fatalf("wait has returned %v while the helper lives", err)
	default:
	}
	lock.Close()
	if err := <-done; err != nil || out.String() != string(want) {
		t.Errorf("got %q, %v; want %q", out.String(), err, want)
	}
}

func TestWait_OfAHelperThatWasKilledIsSilent(t *testing.T) {
	dir := t.TempDir()
	life := filepath.Join(dir, "life")
	lock, err := lockLife(dir, life)
	if err != nil {
		t.Fatal(err)
	}
	lock.Close()
	var out bytes.Buffer
	if code, err := waitFor(life, filepath.Join(dir, "message"), &out); err != nil || code != 0 || out.Len() != 0 {
		t.Errorf("got %q, %d, %v", out.String(), code, err)
	}
	if _, err := waitFor(filepath.Join(dir, "none"), "", &out); err == nil {
		t.Error("a helper that was never started: no error")
	}
}

func TestEarlyEnd_TellsWhyTheHelperDoesNotListen(t *testing.T) {
	dir := t.TempDir()
	message, log := filepath.Join(dir, "message"), filepath.Join(dir, "log")
	if err := os.WriteFile(log, []byte(strings.Repeat("x", 2*maxWords)+"last words"), 0o600); err != nil {
		t.Fatal(err)
	}
	for content, want := range map[string]string{
		"":                          "last words",
		`{"error":"no namespaces"}`: "no namespaces",
		`{"exited":7}`:              "",
	} {
		if err := os.WriteFile(message, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		err := earlyEnd(os.ErrProcessDone, message, log)
		if got := ""; err != nil {
			if got = err.Error(); want == "" || !strings.HasSuffix(got, want) || len(got) > 2*maxWords {
				t.Errorf("%q: got %q, want %q", content, got, want)
			}
		} else if want != "" {
			t.Errorf("%q: no error, want %q", content, want)
		}
	}
}
