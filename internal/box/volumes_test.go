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
			if got := b.goneLocked("test"); got.Context["limit"] != "volume_quota" || !strings.Contains(got.Hint, "it wakes") || !strings.Contains(got.Hint, "write below the home directory") {
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
			<-b.terminated
			f.reg.mu.Lock()
			defer f.reg.mu.Unlock()
			got := b.goneLocked("test")
			text := got.Msg + " " + got.Hint
			for _, want := range []string{"the volume /shared is over its quota", "The files in the volume stay", "write below the home directory"} {
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

// Memory that cannot be restored while a volume is over its quota names the volume.
func TestExplainFrozen(t *testing.T) {
	cause := fmt.Errorf("restore guest \"g\": open /shared/x: read-only file system: %w", engine.ErrInvalid)
	got := explainFrozen(cause, []engine.Mount{{Guest: "/other"}, {Guest: "/shared", Frozen: true}})
	if !unusable(got) || !strings.HasPrefix(mismatch(got), "the volume /shared is over its quota") || !strings.Contains(mismatch(got), "open /shared/x: read-only file system") {
		t.Errorf("got %v", got)
	}
	if got := explainFrozen(cause, []engine.Mount{{Guest: "/shared"}}); got != cause {
		t.Errorf("within the quota: got %v, want the error as it is", got)
	}
	if got := explainFrozen(engine.ErrExhausted, []engine.Mount{{Guest: "/shared", Frozen: true}}); got != engine.ErrExhausted {
		t.Errorf("of another kind: got %v, want the error as it is", got)
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

	b := f.life.newBox(spec{key: key{"bob", KindSession, "y"}, template: "python", flavor: "small"})
	f.reg.mu.Lock()
	defer f.reg.mu.Unlock()
	failed := fmt.Errorf("mount %s: %w", gone, os.ErrNotExist)
	check(f.life.startErrorLocked("test", b, explainVolumes(failed, []engine.Mount{{Host: t.TempDir(), Guest: "/there"}, {Host: gone, Guest: "/mine"}})), "is not there")
	if err := explainVolumes(failed, []engine.Mount{{Host: t.TempDir(), Guest: "/there"}, {Guest: "/elsewhere"}}); err != failed {
		t.Errorf("with all volumes there: got %v, want the error as it is", err)
	}
}
