//go:build linux && (amd64 || arm64)

package gvisor

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/polltest"
)

func snapshotOf(t testing.TB, e *Engine, b *box) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := e.Snapshot(t.Context(), b.ID(), dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func restore(t testing.TB, e *Engine, id string, spec *engine.Spec, dir string) *box {
	t.Helper()
	g, err := e.Restore(t.Context(), id, spec, engine.Snapshot{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := g.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return &box{g, conn, bufio.NewReader(conn)}
}

func checkEmpty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > 0 {
		t.Errorf("left in the directory: %v, %v", entries, err)
	}
}

// TestManifest_Invalid checks valid manifests, and invalid ones, which are refused.
func TestManifest_Invalid(t *testing.T) {
	good := func() *manifest {
		m := newManifest(fixedSpec{RootKey: "r", AgentArgs: []string{}, Mounts: []string{}})
		for _, name := range imageFiles {
			m.Files = append(m.Files, fileEntry{Name: name, Size: 1, Sum: "crc32c:00000000"})
		}
		return m
	}
	for what, c := range map[string]struct {
		change func(m *manifest)
		want   string
	}{
		"good":          {func(*manifest) {}, ""},
		"older":         {func(m *manifest) { m.Format = imageFormat - 1 }, "format 2"},
		"newer":         {func(m *manifest) { m.Format = imageFormat + 1 }, "format 4"},
		"other engine":  {func(m *manifest) { m.Engine = "microvm" }, `"microvm"`},
		"other gVisor":  {func(m *manifest) { m.GVisor = "v0.0.0-20200101000000-000000000000" }, "v0.0.0-20200101000000"},
		"other machine": {func(m *manifest) { m.Arch = "s390x" }, "s390x"},
		"better CPU":    {func(m *manifest) { m.CPU = append(m.CPU, "zz_wonder") }, "zz_wonder"},
		"lesser CPU":    {func(m *manifest) { m.CPU = m.CPU[1:] }, ""},
		"file less":     {func(m *manifest) { m.Files = m.Files[:2] }, "other files"},
		"file outside":  {func(m *manifest) { m.Files[0].Name = "../state.img" }, "other files"},
	} {
		m := good()
		c.change(m)
		b, err := m.encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err = decodeManifest(b); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %q", what, err, c.want)
		}
	}
	b, _ := good().encode()
	for i := range b {
		bad := append([]byte(nil), b...)
		bad[i] ^= 1
		if m, err := decodeManifest(bad); err == nil {
			t.Fatalf("with byte %d changed it is taken: %+v", i, m)
		}
		if _, err := decodeManifest(b[:i]); err == nil {
			t.Fatalf("cut to %d bytes it is taken", i)
		}
	}
}

// TestSnapshot_RecordsEveryFieldOfSpec fails if a spec has a field that a snapshot does
// not record.
func TestSnapshot_RecordsEveryFieldOfSpec(t *testing.T) {
	for typ, want := range map[reflect.Type]int{
		reflect.TypeFor[engine.Spec]():   5, // Root by its key, Hostname left free
		reflect.TypeFor[engine.Limits](): 4,
		reflect.TypeFor[engine.Mount]():  5, // Host and Frozen left free, Volume not supported
	} {
		if got := typ.NumField(); got != want {
			t.Errorf("%v has %d fields, not %d: does a restored guest need the new one to be the same?", typ, got, want)
		}
	}
}

// TestSnapshot_DiskFull: the disk fills up while the sentry writes, after the check of
// free space.
func TestSnapshot_DiskFull(t *testing.T) {
	e := open(t)
	spec := newSpec(t)
	b := create(t, e, "full", spec)
	b.ask(t, "shu head -c 25165824 /dev/urandom > /tmp/file")
	for i, size := range []string{
		"size=64k", "size=512k", "size=8m", "nr_inodes=3", // with the pages staged in memory
		"size=64k", "size=512k", "size=8m", "nr_inodes=4",
	} {
		dir := t.TempDir()
		if err := unix.Mount("small", dir, "tmpfs", 0, size); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
		g := b.Guest.(*guest)
		if err := g.enter(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := g.write(t.Context(), dir, i < 4, hangTimeout); err == nil || !exhausted(err, "") {
			t.Errorf("snapshot into %s: %v", size, err)
		}
		checkEmpty(t, dir)
		if got := b.ask(t, "echo alive"); got != "alive" {
			t.Errorf("after a disk of %s: %q", size, got)
		}
	}
	r := restore(t, e, "restored", spec, snapshotOf(t, e, b))
	if got := r.ask(t, "shu stat -c %s /tmp/file"); !strings.Contains(got, "25165824") {
		t.Errorf("file in the restored guest: %q", got)
	}
}

// TestSnapshot_Killed kills a guest's processes, on the host and the first inside, while
// a snapshot is written.
func TestSnapshot_Killed(t *testing.T) {
	e := open(t)
	spec := withVolume(t, newSpec(t))
	for who, c := range map[string]struct {
		end  func(b *box)
		want engine.ExitReason
	}{
		"sentry": {func(b *box) { b.Guest.(*guest).sentry.Process.Kill() }, engine.ExitCrashed},
		"gofer":  {func(b *box) { b.Guest.(*guest).gofers[0].Process.Kill() }, engine.ExitCrashed},
		"agent":  {func(b *box) { b.send(t, "exit 3") }, engine.ExitExited},
	} {
		for _, after := range []time.Duration{0, 5 * time.Millisecond, 15 * time.Millisecond} {
			b := create(t, e, "killed", spec)
			dir := t.TempDir()
			done := make(chan error, 1)
			go func() {
				_, err := e.Snapshot(t.Context(), b.ID(), dir)
				done <- err
			}()
			time.Sleep(after)
			c.end(b)
			if err := <-done; err != nil {
				if !errors.Is(err, engine.ErrGone) {
					t.Errorf("%s after %v: %v", who, after, err)
				}
				checkEmpty(t, dir)
			}
			if exit := wait(t, b); exit.Reason != c.want {
				t.Errorf("%s after %v: exit %+v", who, after, exit)
			}
		}
	}
}

// TestRestore_Volumes: a volume has moved when the guest is restored.
func TestRestore_Volumes(t *testing.T) {
	e := open(t)
	spec := newSpec(t)
	volume := func(content string) []engine.Mount {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "file"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return []engine.Mount{{Host: dir, Guest: "/volume"}}
	}
	spec.Mounts = volume("first")
	b := create(t, e, "first", spec)
	if got := b.ask(t, "read /volume/file"); got != "first" {
		t.Errorf("volume: %q", got)
	}
	dir := snapshotOf(t, e, b)
	spec.Mounts = volume("second")
	r := restore(t, e, "second", spec, dir)
	if got := r.ask(t, "read /volume/file"); got != "second" {
		t.Errorf("volume of the restored guest: %q", got)
	}
	for _, x := range []*box{b, r} {
		if got := x.ask(t, "shu echo x > /volume/new && cat /volume/new"); got != "x\n" {
			t.Errorf("%s writes to its volume: %q", x.ID(), got)
		}
	}
	spec.Mounts[0].ReadOnly = true
	if _, err := e.Restore(t.Context(), "third", spec, engine.Snapshot{Dir: dir}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("restore with the volume read-only: %v", err)
	}
	// A root that has lost what the guest has open.
	spec.Mounts[0].ReadOnly = false
	spec.Mounts[0].Host = t.TempDir()
	if g, err := e.Restore(t.Context(), "fourth", spec, engine.Snapshot{Dir: dir}); err == nil {
		g.Destroy(t.Context())
	}
	// An earlier version opened volumes in another way, which only the sentry can detect.
	if err := os.WriteFile(filepath.Join(dir, imageFiles[0]), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	reseal(t, dir, func(*manifest) {})
	_, err := e.Restore(t.Context(), "fifth", spec, engine.Snapshot{Dir: dir})
	if !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), "an earlier version of Glovebox opened volumes in another way") {
		t.Errorf("restore of what cannot be loaded: %v, want %v in plain words", err, engine.ErrInvalid)
	}
}

// TestSnapshot_InMemory: the pages of a snapshot on a tmpfs count towards the guest's
// limit, so a large guest must not be written there.
func TestSnapshot_InMemory(t *testing.T) {
	e := open(t)
	spec := newSpec(t)
	spec.Limits.MemoryMB = 512
	b := create(t, e, "large", spec)
	dir := t.TempDir()
	if err := unix.Mount("memory", dir, "tmpfs", 0, "size=1g"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	if _, err := e.Snapshot(t.Context(), b.ID(), dir); err != nil {
		t.Errorf("snapshot of a small guest: %v", err)
	}
	large := filepath.Join(dir, "large")
	if err := os.Mkdir(large, 0o700); err != nil {
		t.Fatal(err)
	}
	b.ask(t, "eat 450")
	if _, err := e.Snapshot(t.Context(), b.ID(), large); !errors.Is(err, engine.ErrExhausted) {
		t.Errorf("snapshot of a large guest: got error %v, want ErrExhausted", err)
	}
	if got := b.ask(t, "echo alive"); got != "alive" {
		t.Errorf("after the snapshot: %q", got)
	}
}

// stopped reports whether a signal has stopped each thread of a process. A thread that is
// still on its way to the stop may answer.
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(stats) == 0 {
		t.Fatalf("list threads of process %d: %d, %v", pid, len(stats), err)
	}
	return !slices.ContainsFunc(stats, func(path string) bool {
		stat, err := os.ReadFile(path)
		end := bytes.LastIndexByte(stat, ')') // of the name, which may hold anything
		return err == nil && !bytes.HasPrefix(stat[end+1:], []byte(" T"))
	})
}

// TestHang_EndsTheGuest stops a sentry, which then neither pauses nor stores its guest.
// The guest ends with the reason, so that its owner gets another one.
func TestHang_EndsTheGuest(t *testing.T) {
	e := open(t)
	e.hangLimit = 200 * time.Millisecond
	for what, call := range map[string]func(b *box) error{
		"pause": func(b *box) error { return e.Pause(t.Context(), b.ID()) },
		"store": func(b *box) error {
			_, err := e.Snapshot(t.Context(), b.ID(), t.TempDir())
			return err
		},
	} {
		b := create(t, e, "hangs", newSpec(t))
		sentry := b.Guest.(*guest).sentry.Process
		if err := sentry.Signal(unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		polltest.Until(t, 20*time.Second, "all threads of the sentry have stopped", func() bool { return stopped(t, sentry.Pid) })
		if err := call(b); !errors.Is(err, engine.ErrGone) {
			t.Errorf("%s: %v, want %v", what, err, engine.ErrGone)
		}
		if exit := wait(t, b); exit.Reason != engine.ExitCrashed || !strings.Contains(exit.Detail, "did not answer within") {
			t.Errorf("%s: exit %+v", what, exit)
		}
	}
}
