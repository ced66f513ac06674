package enginetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

// The tests of this file end without a snapshot or without a guest.

func testSnapshotDir(t *tester) {
	b := t.create(t.probeSpec("echo"))
	full := t.TempDir()
	other := filepath.Join(full, "other")
	t.must("write", os.WriteFile(other, []byte("other"), 0o644))
	for what, dir := range map[string]string{"of others": full, "that is missing": filepath.Join(full, "missing"), "that is a file": other} {
		_, err := b.trySnapshot(dir)
		t.wantErr("snapshot into a directory "+what, err, engine.ErrInvalid)
	}
	t.checkDir("directory of others", full, "other")
	b.echoes()
}

// checkDir fails the test if dir has other entries.
func (t *tester) checkDir(what, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	t.must("read directory", err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("%s has %q, want %q", what, got, want)
	}
}

func testSnapshotGone(t *tester) {
	b := t.create(t.probeSpec("echo"))
	t.destroy(b)
	dir := t.TempDir()
	_, err := b.trySnapshot(dir)
	t.wantErr("snapshot after destroy", err, engine.ErrGone)
	t.checkDir("directory", dir)
}

func testSnapshotWhileDestroyed(t *tester) {
	for i := range 6 {
		b := t.create(t.probeSpec("echo"))
		s := ability[engine.Snapshotter](t)
		dir := t.TempDir()
		done := make(chan error, 1)
		go func() {
			ref, err := s.Snapshot(t.Context(), b.ID(), dir)
			if err == nil {
				err = s.RemoveSnapshot(t.Context(), engine.Snapshot{Dir: dir, Ref: ref})
			}
			done <- err
		}()
		time.Sleep(time.Duration(i) * 6 * time.Millisecond)
		t.destroy(b)
		t.inTime("snapshot while the guest is destroyed", t.h.Timeout, func() {
			if err := <-done; err != nil {
				t.wantErr("snapshot while the guest is destroyed", err, engine.ErrGone)
				t.checkDir("directory", dir)
			}
		})
	}
}

func testSnapshotAtOnce(t *tester) {
	b := t.create(t.probeSpec("echo"))
	s := ability[engine.Snapshotter](t)
	p, pauses := engine.As[engine.Pauser](t.e)
	errs := make(chan error)
	taken := make([]engine.Snapshot, 4)
	for i := range taken {
		taken[i].Dir = t.TempDir()
		go func() {
			var err error
			taken[i].Ref, err = s.Snapshot(t.Context(), b.ID(), taken[i].Dir)
			errs <- err
		}()
		go func() {
			if !pauses {
				errs <- nil
				return
			}
			errs <- errors.Join(p.Pause(t.Context(), b.ID()), p.Resume(t.Context(), b.ID()))
		}()
	}
	for range 2 * len(taken) {
		t.inTime("snapshots at once", t.h.Timeout, func() { t.must("snapshots and pauses at once", <-errs) })
	}
	b.echoes()
	for _, s := range taken {
		t.removeLater(s)
		t.restore(t.probeSpec("echo"), s)
	}
}

// testSnapshotCancelled cancels at moments all over the time a snapshot takes.
func testSnapshotCancelled(t *tester) {
	b := t.create(t.spec()).talk()
	b.sh("head -c 33554432 /dev/urandom > file")
	s := ability[engine.Snapshotter](t)
	start := time.Now()
	b.snapshot()
	whole := time.Since(start)
	const steps = 12
	for i := range steps {
		ctx, cancel := context.WithCancelCause(t.Context())
		if i == 0 {
			cancel(errStop)
		}
		timer := time.AfterFunc(whole*time.Duration(i)/steps, func() { cancel(errStop) })
		dir := t.TempDir()
		t.inTime("cancelled snapshot", t.h.Timeout, func() {
			if ref, err := s.Snapshot(ctx, b.ID(), dir); err == nil {
				t.removeLater(engine.Snapshot{Dir: dir, Ref: ref})
				return // it was quicker
			} else if !errors.Is(err, errStop) {
				t.Errorf("cancelled snapshot: got error %v, want its cause", err)
			}
			t.checkDir("directory of a cancelled snapshot", dir)
		})
		timer.Stop()
		cancel(nil)
		b.ping()
	}
	if r := t.restore(t.spec(), b.snapshot()).wake(); r.sh("stat -c %s file") != "33554432\n" {
		t.Error("the file of a guest is not whole after cancelled snapshots")
	}
}

func testSnapshotNoRoom(t *tester) {
	if t.h.SmallDir == nil {
		t.Skip("the harness has no directory without room")
	}
	b := t.create(t.spec()).talk().install()
	b.look("fill", "file", "16")
	dir := t.h.SmallDir(t)
	_, err := b.trySnapshot(dir)
	if err == nil {
		t.Skip("the engine does not write to the directory")
	}
	t.wantErr("snapshot without room", err, engine.ErrExhausted)
	t.checkDir("directory without room", dir)
	b.ping()
	t.restore(t.spec(), b.snapshot()).wake().ping()
}

func testRestoreDamaged(t *tester) {
	b := t.create(t.spec()).talk()
	whole := b.snapshot()
	files, err := os.ReadDir(whole.Dir)
	t.must("read snapshot", err)
	if len(files) == 0 {
		t.Skip("the engine does not write to the directory")
	}
	type damage struct {
		what string
		do   func(b []byte) []byte // nil: remove the file
	}
	flip := func(at func(n int) int) func(b []byte) []byte {
		return func(b []byte) []byte {
			b = bytes.Clone(b)
			b[at(len(b))] ^= 0x10
			return b
		}
	}
	damages := []damage{
		{"that is missing", nil},
		{"that is empty", func([]byte) []byte { return []byte{} }},
		{"cut in half", func(b []byte) []byte { return b[:len(b)/2] }},
		{"without its last byte", func(b []byte) []byte { return b[:len(b)-1] }},
		{"with a byte more", func(b []byte) []byte { return append(bytes.Clone(b), ' ') }},
		{"with another first byte", flip(func(int) int { return 0 })},
		{"with another byte in the middle", flip(func(n int) int { return n / 2 })},
		{"with another last byte", flip(func(n int) int { return n - 1 })},
	}
	for _, f := range files {
		content, err := os.ReadFile(filepath.Join(whole.Dir, f.Name()))
		t.must("read snapshot", err)
		for _, d := range damages {
			dir := t.TempDir()
			t.must("copy snapshot", os.CopyFS(dir, os.DirFS(whole.Dir)))
			path := filepath.Join(dir, f.Name())
			if d.do == nil {
				t.must("remove", os.Remove(path))
			} else {
				t.must("damage", os.WriteFile(path, d.do(content), 0o600))
			}
			g, err := t.tryRestore(newID(), t.spec(), engine.Snapshot{Dir: dir, Ref: whole.Ref})
			if err == nil {
				t.own(g)
			}
			t.wantErr(fmt.Sprintf("restore with a file %s %s", f.Name(), d.what), err, engine.ErrInvalid)
		}
	}
	for _, dir := range []string{t.TempDir(), filepath.Join(t.TempDir(), "missing"), filepath.Join(whole.Dir, files[0].Name())} {
		_, err := t.tryRestore(newID(), t.spec(), engine.Snapshot{Dir: dir})
		t.wantErr("restore of what is no snapshot", err, engine.ErrInvalid)
	}
	t.restore(t.spec(), whole).wake().ping()
}

func testRestoreOther(t *tester) {
	b := t.create(t.spec())
	taken := b.snapshot()
	volume := t.TempDir()
	for what, change := range map[string]func(s *engine.Spec){
		"root":             func(s *engine.Spec) { s.Root.Key = "another" },
		"agent":            func(s *engine.Spec) { s.Agent = t.h.Program(t.TB, t.probe, s.Agent.Args) },
		"arguments":        func(s *engine.Spec) { s.Agent.Args = append(s.Agent.Args, "-x") },
		"limit of memory":  func(s *engine.Spec) { s.Limits.MemoryMB += 64 },
		"limit of disk":    func(s *engine.Spec) { s.Limits.DiskMB += 64 },
		"limit of pids":    func(s *engine.Spec) { s.Limits.PIDs += 64 },
		"limit of cpus":    func(s *engine.Spec) { s.Limits.CPUs += 0.5 },
		"number of mounts": func(s *engine.Spec) { s.Mounts = []engine.Mount{{Host: volume, Guest: "/volume"}} },
	} {
		spec := t.spec()
		change(spec)
		g, err := t.tryRestore(newID(), spec, taken)
		if err == nil {
			t.own(g)
		}
		t.wantErr("restore with another "+what, err, engine.ErrInvalid)
	}
	t.restore(t.spec(), taken)
}

func testRestoreLikeCreate(t *tester) {
	b := t.create(t.probeSpec("echo"))
	taken := b.snapshot()
	_, err := t.tryRestore(b.ID(), t.probeSpec("echo"), taken)
	t.wantErr("restore under a taken id", err, engine.ErrExists)
	_, err = t.tryRestore("No_Id", t.probeSpec("echo"), taken)
	t.wantErr("restore under what is no id", err, engine.ErrInvalid)
	_, err = t.tryRestore(newID(), nil, taken)
	t.wantErr("restore without a spec", err, engine.ErrInvalid)
	b.echoes()
	id := b.ID()
	t.destroy(b)
	g, err := t.tryRestore(id, t.probeSpec("echo"), taken)
	t.must("restore under the id of a guest that has ended", err)
	r := t.own(g)
	r.echoes()
	t.destroy(r)
	if exit := t.exit(r); exit.Reason != engine.ExitDestroyed {
		t.Errorf("exit of a restored guest is %+v", exit)
	}
}

func testRestoreCancelled(t *tester) {
	b := t.create(t.spec()).talk()
	taken := b.snapshot()
	r := ability[engine.Snapshotter](t)
	start := time.Now()
	t.restore(t.spec(), taken)
	whole := time.Since(start)
	const steps = 12
	for i := range steps {
		ctx, cancel := context.WithCancelCause(t.Context())
		if i == 0 {
			cancel(errStop)
		}
		timer := time.AfterFunc(whole*time.Duration(i)/steps, func() { cancel(errStop) })
		id := newID()
		t.inTime("cancelled restore", t.h.Timeout, func() {
			g, err := r.Restore(ctx, id, t.spec(), taken)
			if err == nil {
				t.own(g) // it was quicker
			} else if !errors.Is(err, errStop) {
				t.Errorf("cancelled restore: got error %v, want its cause", err)
			}
		})
		timer.Stop()
		cancel(nil)
	}
	t.restore(t.spec(), taken).wake().ping()
}
