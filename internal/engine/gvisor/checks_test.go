//go:build linux && (amd64 || arm64)

package gvisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/crc32c"
)

// TestChecks_ReadFileOnce compares a file with its checksum repeatedly. A context that
// has ended shows whether the file is read.
func TestChecks_ReadFileOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pages.img")
	if err := os.WriteFile(path, []byte("pages"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	entry := fileEntry{Name: "pages.img", Size: 5, Sum: crc32c.Of([]byte("pages"))}
	ended, end := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	end(stop)

	now := time.Now()
	c := newChecks(func() time.Time { return now })
	reads := func(what string, want bool) {
		t.Helper()
		switch err := c.compare(ended, f, entry); {
		case want && !errors.Is(err, stop):
			t.Errorf("%s: got %v, want a read", what, err)
		case !want && err != nil:
			t.Errorf("%s: got %v, want no read", what, err)
		}
	}
	compare := func(what string) {
		t.Helper()
		if err := c.compare(t.Context(), f, entry); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	reads("never compared", true)
	compare("young")
	reads("compared when it was young", true)
	now = now.Add(2 * checkRest)
	compare("old")
	reads("compared", false)
	now = now.Add(checkAge)
	reads("compared long ago", true)
	compare("again")
	now = now.Add(-checkAge / 2)
	reads("compared in the future", true)
	now = now.Add(checkAge / 2)
	reads("compared again", false)
	other := entry
	other.Sum = "crc32c:00000001"
	if err := c.compare(t.Context(), f, other); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("another checksum: got %v, want that it is damaged", err)
	}
	if _, err := f.WriteAt([]byte("x"), 2); err != nil {
		t.Fatal(err)
	}
	reads("changed", true)
	if err := c.compare(t.Context(), f, entry); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("changed: got %v, want that it is damaged", err)
	}
}
