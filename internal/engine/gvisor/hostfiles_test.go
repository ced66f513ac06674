//go:build linux && (amd64 || arm64)

package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

// A library that was upgraded after a snapshot would be mapped into old memory, so the
// snapshot is refused.
func TestRestore_AfterUpgradeOfLibrary(t *testing.T) {
	t.Run("with a volume", func(t *testing.T) { testUpgrade(t, true) })
	t.Run("without", func(t *testing.T) { testUpgrade(t, false) })
}

func testUpgrade(t *testing.T, withVolume bool) {
	data := t.TempDir()
	for _, name := range []string{"library", "other"} {
		if err := os.WriteFile(filepath.Join(data, name), []byte("version 1"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	volume := t.TempDir()
	if err := os.WriteFile(filepath.Join(volume, "notes"), []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	e := open(t)
	spec := newSpec(t)
	if err := os.MkdirAll(filepath.Join(spec.Root.Tree.Dir, "opt/lib"), 0o755); err != nil {
		t.Fatal(err)
	}
	spec.Root.Tree.Binds = append(spec.Root.Tree.Binds, engine.Mount{Host: data, Guest: "/opt/lib"})
	notes := "/etc/passwd"
	if withVolume {
		notes = "/mnt/volume/notes"
		spec.Mounts = []engine.Mount{{Host: volume, Guest: "/mnt/volume", ReadOnly: true}}
	}
	b := create(t, e, "original", spec)
	b.ask(t, "write /etc/passwd own")
	if got := b.ask(t, "sh (exec 3</opt/lib/library 4<"+notes+"; exec sleep 1000) >/dev/null 2>&1 & echo on"); strings.TrimSpace(got) != "on" {
		t.Fatal(got)
	}
	var has []string
	for end := time.Now().Add(10 * time.Second); !slices.Contains(has, "/opt/lib/library"); {
		if time.Now().After(end) {
			t.Fatalf("files that are open: %q", has)
		}
		has = nil
		for _, f := range b.Guest.(*guest).hostFiles() {
			has = append(has, f.Path)
		}
	}
	if !slices.ContainsFunc(has, func(path string) bool { return strings.HasPrefix(path, "/usr/") }) {
		t.Errorf("no file of the system is open: %q", has)
	}
	if slices.Contains(has, notes) || slices.Contains(has, agentPath) {
		t.Errorf("files of volumes or the agent are among those of the root: %q", has)
	}
	dir := snapshotOf(t, e, b)

	// Others may change, and so may volumes.
	for _, path := range []string{filepath.Join(data, "other"), filepath.Join(volume, "notes")} {
		if err := os.WriteFile(path, []byte("version 2, longer"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	restore(t, e, "same", spec, dir).Destroy(t.Context())

	// As package managers do it.
	library := filepath.Join(data, "library")
	if err := os.WriteFile(library+".new", []byte("version 2"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(library+".new", library); err != nil {
		t.Fatal(err)
	}
	_, err := e.Restore(t.Context(), "upgraded", spec, engine.Snapshot{Dir: dir})
	if !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), "/opt/lib/library") {
		t.Errorf("restore after an upgrade: %v", err)
	}
	if err := os.Remove(library); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Restore(t.Context(), "removed", spec, engine.Snapshot{Dir: dir}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("restore after a removal: %v", err)
	}
}
