package box

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/engine"
)

// A box that leaves memory since its volume is over the quota says so, with what to do, also if
// it breaks on the way to the disk.
func TestGone_OverQuota(t *testing.T) {
	frozen := []engine.Mount{{Guest: "/shared", Frozen: true}}
	for name, breaks := range map[string]bool{"ended": false, "broken": true} {
		t.Run(name, func(t *testing.T) {
			f, snaps := newSnapFixture(t, nil)
			b := f.session(t, "bob", "x")
			f.reg.mu.Lock()
			b.maker = b.maker.WithVolumes([]engine.Mount{{Guest: "/shared"}})
			f.reg.mu.Unlock()
			hold := make(chan struct{})
			snaps.mu.Lock()
			snaps.failWrite, snaps.hold = true, hold
			snaps.mu.Unlock()
			revise := func() {
				f.reg.mu.Lock()
				defer f.reg.mu.Unlock()
				f.life.reviseVolumesLocked(b, frozen)
			}
			revise()
			f.reg.mu.Lock()
			if got := b.goneLocked("test"); !strings.HasPrefix(got.Msg, "The call was interrupted: session x was hibernated ") || strings.Contains(got.Msg, "ended") || got.Context["limit"] != "volume_quota" || !strings.Contains(got.Hint, "with its variables and files or, if a program had a file of the volume open, with the files that the disk had room to store") || !strings.Contains(got.Hint, "write below the home directory") {
				t.Errorf("a call under way: got %v, hint %q, %v", got, got.Hint, got.Context)
			}
			f.reg.mu.Unlock()
			if breaks {
				f.life.terminate(b, ReasonCrashed, "its isolation ended")
			}
			close(hold)
			if !breaks {
				eventually(t, "the box stays in memory", func() bool {
					f.reg.mu.Lock()
					defer f.reg.mu.Unlock()
					return b.state == stateReady
				})
				revise() // the next scan
			}
			<-b.aborted
			f.reg.mu.Lock()
			defer f.reg.mu.Unlock()
			got := b.goneLocked("test")
			text := got.Msg + " " + got.Hint
			for _, want := range []string{"the volume /shared is over its quota", "The files in the volume stay", "shortened or removed", "write below the home directory"} {
				if !strings.Contains(text, want) {
					t.Errorf("got %q, want %q in it", text, want)
				}
			}
			reason := ReasonEvicted
			if breaks {
				reason = ReasonCrashed
			}
			if got.Context["reason"] != string(reason) || got.Context["limit"] != "volume_quota" {
				t.Errorf("got %v, want the reason %s and the limit volume_quota", got.Context, reason)
			}
		})
	}
}

// loadFailure is the error of an engine that cannot load a snapshot.
type loadFailure struct{ error }

func (loadFailure) Public() string { return "its memory cannot be loaded" }

// Memory that cannot be restored while a volume is over its quota names the volume and what helps;
// the engine's words are for the operator.
func TestExplainFrozen(t *testing.T) {
	load := loadFailure{errors.New("vfs.CompleteRestore() failed")}
	cause := fmt.Errorf("restore guest \"g\": %w: %w", load, engine.ErrInvalid)
	over := []engine.Mount{{Guest: "/other"}, {Guest: "/shared", Frozen: true}}
	got := explainFrozen(cause, over)
	if !unusable(got) || !strings.HasPrefix(mismatch(got), "the volume /shared is over its quota") || strings.Contains(mismatch(got), "CompleteRestore") || !strings.Contains(got.Error(), "CompleteRestore") {
		t.Errorf("got %v, for clients %q", got, mismatch(got))
	}
	if got := mismatch(cause); got != load.Public() {
		t.Errorf("within the quota, clients get %q", got)
	}
	for what, err := range map[string]error{
		"within the quota": cause, "of another kind": engine.ErrExhausted, "another snapshot": fmt.Errorf("the snapshot is of other limits: %w", engine.ErrInvalid),
	} {
		volumes := over
		if err == cause {
			volumes = []engine.Mount{{Guest: "/shared"}}
		}
		if got := explainFrozen(err, volumes); got != err {
			t.Errorf("%s: got %v, want the error as it is", what, got)
		}
	}
	frozen, _ := errors.AsType[*frozenError](got)
	r := Rescue{Why: mismatch(got), SnapshotID: "snap-1", Remedy: frozen.remedy(KindContext)}
	if text := r.Explain(); !strings.Contains(text, "snapshot snap-1: once the volume /shared is within its quota again, restore_context (toolset snapshots) brings") ||
		!strings.Contains(text, "shorten it instead of removing it. delete_snapshot (toolset snapshots) deletes it.") {
		t.Errorf("got %q", text)
	}
}

// brokenVolumes are those of an owner whose directory cannot be used.
type brokenVolumes struct{ err error }

func (v brokenVolumes) Of(Owner) ([]engine.Mount, error) { return nil, v.err }
func (v brokenVolumes) Peek(Owner) []engine.Mount        { return nil }

// A box that does not start for want of a volume names the volume as boxes know it, and no path
// of the host.
func TestStart_WithoutVolume(t *testing.T) {
	gone := filepath.Join(t.TempDir(), "secret")
	unsafe := &VolumeError{Guest: "/mine", Why: "its directory on the server is not safe", Err: errors.New("the directory " + gone + " is open to other users")}
	f := newFixtureWith(t, nil, func(_ *fixture, parts *Parts) { parts.Volumes = brokenVolumes{unsafe} })
	check := func(err error, want ...string) {
		t.Helper()
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Code != CodeStartFailed {
			t.Fatalf("got %v, want an error with CodeStartFailed", err)
		}
		text := e.Msg + " " + e.Hint
		for _, w := range append(want, "operator", "/mine") {
			if !strings.Contains(text, w) {
				t.Errorf("got %q, want %q in it", text, w)
			}
		}
		if strings.Contains(text, gone) {
			t.Errorf("%q has a path of the host", text)
		}
	}
	_, _, err := f.Manager.Session(t.Context(), "bob", SessionOptions{ID: "x"})
	check(err, unsafe.Why)

	b := f.life.newBox(spec{key: key{"bob", KindSession, "y"}, interpreter: "python", flavor: "small"})
	f.reg.mu.Lock()
	defer f.reg.mu.Unlock()
	failed := fmt.Errorf("mount %s: %w", gone, os.ErrNotExist)
	check(f.life.startErrorLocked("test", b, f.machines.volumeChecks.explain(t.Context(), failed, []engine.Mount{{Host: t.TempDir(), Guest: "/there"}, {Host: gone, Guest: "/mine"}})), "is not there")
	if err := f.machines.volumeChecks.explain(t.Context(), failed, []engine.Mount{{Host: t.TempDir(), Guest: "/there"}, {Guest: "/elsewhere"}}); err != failed {
		t.Errorf("with all volumes there: got %v, want the error as it is", err)
	}
}

// fixedVolumes are those of all owners.
type fixedVolumes []engine.Mount

func (v fixedVolumes) Of(Owner) ([]engine.Mount, error) { return v, nil }
func (v fixedVolumes) Peek(Owner) []engine.Mount        { return v }

// A volume whose directory is gone keeps boxes from starting and from waking, and harms neither:
// its engine is not asked, so that no template or stored memory counts as unusable.
func TestStart_VolumeGone(t *testing.T) {
	f, _ := newSnapFixture(t, nil)
	b := f.session(t, "bob", "x")
	f.evict(t, b)
	created, _, _ := f.engine.counts()
	gone := filepath.Join(t.TempDir(), "gone")
	f.env.parts.Volumes = fixedVolumes{{Host: gone, Guest: "/mine"}}
	for _, id := range []string{"x", "new"} {
		_, _, err := f.Session(t.Context(), "bob", SessionOptions{ID: id})
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Code != CodeStartFailed || !strings.Contains(e.Msg, "the volume /mine cannot be used, since its directory on the server is not there") || strings.Contains(e.Msg+e.Hint, gone) {
			t.Errorf("session %s: got %v", id, err)
		}
	}
	if now, _, _ := f.engine.counts(); now != created {
		t.Errorf("the engine was asked for %d machines", now-created)
	}
	f.env.parts.Volumes = nil
	b = f.session(t, "bob", "x")
	f.reg.mu.Lock()
	defer f.reg.mu.Unlock()
	if b.source != SourceWoken || b.rescued != nil {
		t.Errorf("after that, the box came from %s without %+v", b.source, b.rescued)
	}
}

// A program whose box leaves memory under it, for the quota of a volume, has put something out
// before: the error has it.
func TestGone_PartialOutput(t *testing.T) {
	for name, call := range map[string]func(*Box, func(Chunk)) error{
		"code": func(b *Box, progress func(Chunk)) error {
			_, err := b.Run(t.Context(), RunRequest{Code: "import sys, time\nprint('step 1 done', flush=True)\nprint('row', file=sys.stderr, flush=True)\ntime.sleep(600)", Progress: progress})
			return err
		},
		"command": func(b *Box, progress func(Chunk)) error {
			_, err := b.Exec(t.Context(), ExecRequest{Shell: "echo step 1 done; echo row >&2; sleep 600", Progress: progress})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, _ := newSnapFixture(t, nil)
			b := f.session(t, "bob", "x")
			seen := 0
			err := call(b, func(Chunk) {
				if seen++; seen < 2 {
					return
				}
				f.reg.mu.Lock()
				defer f.reg.mu.Unlock()
				b.maker = b.maker.WithVolumes([]engine.Mount{{Guest: "/shared"}})
				f.life.reviseVolumesLocked(b, []engine.Mount{{Guest: "/shared", Frozen: true}})
			})
			e, ok := errors.AsType[*Error](err)
			if !ok || e.Code != CodeGone || e.Partial == nil || e.Partial.Stdout != "step 1 done\n" || e.Partial.Stderr != "row\n" || e.Partial.Duration <= 0 {
				t.Fatalf("got %+v", err)
			}
		})
	}
}
