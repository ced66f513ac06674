package machine

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/engine"
)

// keeper is an engine that keeps snapshots itself and returns references.
type keeper struct {
	engine.Engine
	ref     string
	removed []string
	asked   []engine.Snapshot
}

func (k *keeper) Snapshot(context.Context, string, string) (string, error) { return k.ref, nil }
func (k *keeper) Restore(_ context.Context, _ string, _ *engine.Spec, s engine.Snapshot) (engine.Guest, error) {
	k.asked = append(k.asked, s)
	return nil, errRestore
}
func (k *keeper) InspectSnapshot(_ context.Context, s engine.Snapshot) (engine.SnapshotInfo, error) {
	k.asked = append(k.asked, s)
	return engine.SnapshotInfo{RootKey: "r"}, nil
}
func (k *keeper) CheckSnapshot(_ context.Context, _ *engine.Spec, s engine.Snapshot) error {
	k.asked = append(k.asked, s)
	return nil
}
func (k *keeper) RemoveSnapshot(_ context.Context, s engine.Snapshot) error {
	k.removed = append(k.removed, s.Ref)
	return nil
}

var errRestore = errors.New("restore was called")

// decorated is an engine whose abilities only As finds.
type decorated struct{ engine.Engine }

func (d decorated) Unwrap() engine.Engine { return d.Engine }

// still is a guest of which only the id counts.
type still struct{ engine.Guest }

func (still) Dial(context.Context) (io.ReadWriteCloser, error) { return nil, engine.ErrGone }

func TestSnapshot_ReferenceGoesBackToTheEngine(t *testing.T) {
	k := &keeper{ref: "vmm/snapshot-7"}
	maker := &Maker{Engine: decorated{decorated{k}}}
	if !maker.Snapshots() || maker.Pauses() {
		t.Fatalf("snapshots %t, pauses %t; want an engine behind decorators that has snapshots only", maker.Snapshots(), maker.Pauses())
	}
	m := &Machine{ID: "m", Guest: still{}, engine: maker.Engine}
	dir := t.TempDir()
	if err := m.Snapshot(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	moved := filepath.Join(t.TempDir(), "moved")
	if err := os.Rename(dir, moved); err != nil {
		t.Fatal(err)
	}
	want := engine.Snapshot{Dir: moved, Ref: k.ref}
	if _, err := maker.Restore(t.Context(), "m2", engine.Limits{}, moved, true); !errors.Is(err, errRestore) {
		t.Errorf("restore through decorators: %v", err)
	}
	if _, err := maker.InspectSnapshot(t.Context(), moved); err != nil {
		t.Error(err)
	}
	if err := maker.CheckSnapshot(t.Context(), engine.Limits{}, moved); err != nil {
		t.Error(err)
	}
	if len(k.asked) != 3 {
		t.Errorf("the engine was asked %d times, want 3", len(k.asked))
	}
	for _, got := range k.asked {
		if got != want {
			t.Errorf("the engine got %+v, want %+v", got, want)
		}
	}
	if err := maker.RemoveSnapshot(t.Context(), moved); err != nil {
		t.Error(err)
	}
	if err := maker.RemoveSnapshot(t.Context(), t.TempDir()); err != nil {
		t.Errorf("remove a snapshot without a reference: %v", err)
	}
	if len(k.removed) != 1 || k.removed[0] != k.ref {
		t.Errorf("the engine has removed %q, want %q", k.removed, k.ref)
	}
}

func TestSnapshot_LongReferenceIsRemoved(t *testing.T) {
	k := &keeper{ref: strings.Repeat("x", maxReference+1)}
	m := &Machine{ID: "m", Guest: still{}, engine: k}
	dir := t.TempDir()
	if err := m.Snapshot(t.Context(), dir); err == nil || len(k.removed) != 1 {
		t.Errorf("got error %v, %d removed; want an error and one removed", err, len(k.removed))
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("left in the directory: %v, %v", entries, err)
	}
}

func TestMachine_WithoutAbilitiesIsUnsupported(t *testing.T) {
	type plain struct{ engine.Engine }
	m := &Machine{ID: "m", Guest: still{}, engine: plain{}}
	maker := &Maker{Engine: plain{}}
	_, stats := m.Stats(t.Context())
	_, restore := maker.Restore(t.Context(), "m2", engine.Limits{}, t.TempDir(), false)
	for name, err := range map[string]error{
		"pause": m.Pause(t.Context()), "resume": m.Resume(t.Context()), "stats": stats,
		"snapshot": m.Snapshot(t.Context(), t.TempDir()), "restore": restore,
	} {
		if !errors.Is(err, engine.ErrUnsupported) {
			t.Errorf("%s: got %v, want ErrUnsupported", name, err)
		}
	}
}
