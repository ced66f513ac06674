//go:build linux && (amd64 || arm64)

package gvisor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// A sweep removes the files of dead instances, and nothing of a living one.
func TestSweep_DeadInstances(t *testing.T) {
	parent := t.TempDir()
	e, err := Open(t.Context(), Config{StateDir: parent, SweepEvery: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	living := openIn(t, parent)
	dead := filepath.Join(parent, "gvisor", "1-dead")
	if err := os.Mkdir(dead, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dead, "lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	polltest.Until(t, 20*time.Second, "the dead instance is removed", func() bool {
		_, err := os.Stat(dead)
		return errors.Is(err, fs.ErrNotExist)
	})
	if _, err := os.Stat(living.dir.root); err != nil {
		t.Errorf("the directory of a living instance: %v", err)
	}
}
