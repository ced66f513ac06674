//go:build linux && (amd64 || arm64)

package gvisor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// reseal makes a snapshot whole again by its checksums, of which change may alter
// the manifest first.
func reseal(t *testing.T, dir string, change func(m *manifest)) {
	t.Helper()
	path := filepath.Join(dir, manifestName)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := decodeManifest(b)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range imageFiles {
		if m.Files[i], err = commitFile(t.Context(), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	change(m)
	if b, err = m.encode(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func copyOf(t *testing.T, dir string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

// settled returns what is held once that is as before, or for want of a before, once
// it stays the same.
func settled(t *testing.T, before map[string]int) map[string]int {
	t.Helper()
	last, now := before, held(t)
	same := 0
	polltest.Soon(5*time.Second, func() bool {
		now = held(t)
		if maps.Equal(now, last) {
			same++
		} else if before == nil {
			last, same = now, 0
		}
		return same > 0 && before != nil || same >= 5 // 30 ms
	})
	return now
}

// TestRestore_Foreign: snapshots with valid checksums that cannot be restored here are
// refused.
func TestRestore_Foreign(t *testing.T) {
	e := open(t)
	spec := newSpec(t)
	b := create(t, e, "original", spec)
	b.ask(t, "echo up") // it has all its processes then
	whole := snapshotOf(t, e, b)
	restore(t, e, "warm", spec, copyOf(t, whole)).Destroy(t.Context())
	before := settled(t, nil)
	refused := func(what, dir string) string {
		t.Helper()
		g, err := e.Restore(t.Context(), "foreign", spec, engine.Snapshot{Dir: dir})
		if err == nil {
			g.Destroy(t.Context())
		}
		if !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("restore of a snapshot %s: %v", what, err)
		}
		if after := settled(t, before); !maps.Equal(after, before) {
			t.Errorf("restore of a snapshot %s: held %v before, %v after", what, before, after)
		}
		return fmt.Sprint(err)
	}
	for what, change := range map[string]func(m *manifest){
		"of an older format":      func(m *manifest) { m.Format-- },
		"of a newer format":       func(m *manifest) { m.Format++ },
		"of another engine":       func(m *manifest) { m.Engine = "microvm" },
		"of another gVisor":       func(m *manifest) { m.GVisor = "v0.0.0-20200101000000-000000000000" },
		"of another architecture": func(m *manifest) { m.Arch = "riscv64" },
		"of a better processor":   func(m *manifest) { m.CPU = append(m.CPU, "zz_wonder") },
		"with fewer files":        func(m *manifest) { m.Files = m.Files[:2] },
		"with files elsewhere":    func(m *manifest) { m.Files[0].Name = "../" + m.Files[0].Name },
	} {
		dir := copyOf(t, whole)
		reseal(t, dir, change)
		refused(what, dir)
	}
	// Damage that only the sentry can detect.
	for _, name := range imageFiles[:2] {
		content, err := os.ReadFile(filepath.Join(whole, name))
		if err != nil {
			t.Fatal(err)
		}
		for what, senseless := range map[string][]byte{
			"empty":       {},
			"cut in half": content[:len(content)/2],
			"zeros":       make([]byte, len(content)),
			"text":        bytes.Repeat([]byte("senseless "), len(content)/10),
		} {
			dir := copyOf(t, whole)
			if err := os.WriteFile(filepath.Join(dir, name), senseless, 0o600); err != nil {
				t.Fatal(err)
			}
			reseal(t, dir, func(*manifest) {})
			// Its owner reads plain words before the sentry's own.
			if err, want := refused(fmt.Sprintf("with a senseless %s: %s", name, what), dir), `restore guest "foreign": its stored memory cannot be loaded`; !strings.HasPrefix(err, want) {
				t.Errorf("a senseless %s: %s: the error is %q, want it to begin with %q", name, what, err, want)
			}
		}
	}
	if got := b.ask(t, "echo alive"); got != "alive" {
		t.Errorf("output of the original: %q", got)
	}
	restore(t, e, "restored", spec, whole)
}

// shiftTimes moves all times of a state that lie between two moments.
func shiftTimes(t *testing.T, state []byte, from, to time.Time, by time.Duration) {
	t.Helper()
	found := 0
	for i := range state {
		// Integers are written in varints of twice their value. Times of these
		// centuries are all equally long.
		n, size := binary.Uvarint(state[i:])
		at := time.Unix(0, int64(n>>1))
		if size <= 0 || n&1 != 0 || at.Before(from) || at.After(to) {
			continue
		}
		moved := binary.AppendUvarint(nil, uint64(at.Add(by).UnixNano())<<1)
		if len(moved) != size {
			t.Fatalf("time of %d bytes does not fit into %d", len(moved), size)
		}
		copy(state[i:], moved)
		found++
	}
	if found == 0 {
		t.Fatal("the snapshot has no time")
	}
}

// TestRestore_Clocks restores snapshots from the past, and from the future if the host's
// clock was set back.
func TestRestore_Clocks(t *testing.T) {
	e := open(t)
	spec := newSpec(t)
	b := create(t, e, "original", spec)
	b.ask(t, "echo up") // it has all its processes then
	clocks := func(b *box) (wall time.Time, monotonic, vdso time.Duration) {
		t.Helper()
		var ns int64
		if _, err := fmt.Sscan(b.ask(t, "clocks"), &ns, &monotonic, &vdso); err != nil {
			t.Fatal(err)
		}
		return time.Unix(0, ns), monotonic, vdso
	}
	from := time.Now()
	_, least, leastVDSO := clocks(b)
	whole := snapshotOf(t, e, b)
	to := time.Now()
	const year = 365 * 24 * time.Hour
	for what, c := range map[string]struct{ age, passes time.Duration }{
		"new":           {0, 0},
		"old":           {year, year},
		"of the future": {-year, 0}, // time passes, it never goes back
	} {
		dir := copyOf(t, whole)
		path := filepath.Join(dir, imageFiles[0])
		state, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		shiftTimes(t, state, from, to, -c.age)
		if err := os.WriteFile(path, state, 0o600); err != nil {
			t.Fatal(err)
		}
		reseal(t, dir, func(*manifest) {})
		r := restore(t, e, strings.ReplaceAll(what, " ", "-"), spec, dir)
		before := time.Now()
		wall, monotonic, vdso := clocks(r)
		if wall.Before(before.Add(-time.Second)) || wall.After(time.Now().Add(time.Second)) {
			t.Errorf("%s: wall clock: got %v, want %v", what, wall, time.Now())
		}
		// Loading and asking takes time, too.
		slack := time.Since(from) + 100*time.Millisecond
		if passed := monotonic - least - c.passes; passed < 0 || passed > slack {
			t.Errorf("%s: the monotonic clock has gone on by %v, which is %v more than it should", what, monotonic-least, passed)
		}
		if passed := vdso - leastVDSO - c.passes; passed < 0 || passed > slack {
			t.Errorf("%s: the vDSO's clock has gone on by %v, which is %v more than it should", what, vdso-leastVDSO, passed)
		}
		// A sleeping process wakes up.
		if got := r.ask(t, "sh sleep 0.1 && echo awake"); got != "awake\n" {
			t.Errorf("%s: after a sleep: got %q", what, got)
		}
	}
}

// child returns a process of this one that plays a part of gVisor and is younger
// than those in old.
func child(name string, old []int) int {
	for _, pid := range descendants(os.Getpid()) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || !strings.HasPrefix(string(b), name+"\x00") {
			continue
		}
		fresh := true
		for _, o := range old {
			fresh = fresh && o != pid
		}
		if fresh {
			return pid
		}
	}
	return 0
}

// TestRestore_Killed kills a guest's processes while it is being restored.
func TestRestore_Killed(t *testing.T) {
	e := open(t)
	spec := withVolume(t, newSpec(t))
	b := create(t, e, "original", spec)
	b.ask(t, "echo up") // it has all its processes then
	dir := snapshotOf(t, e, b)
	restore(t, e, "warm", spec, dir).Destroy(t.Context())
	before := settled(t, nil)
	for _, victim := range []string{sentryName, goferName} {
		for _, after := range []time.Duration{0, 15 * time.Millisecond, 40 * time.Millisecond, 80 * time.Millisecond} {
			what := fmt.Sprintf("restore whose %s is killed after %v", victim, after)
			old := descendants(os.Getpid())
			killed := make(chan struct{})
			go func() {
				defer close(killed)
				for start := time.Now(); time.Since(start) < 5*time.Second; time.Sleep(time.Millisecond) {
					if pid := child(victim, old); pid != 0 {
						time.Sleep(after)
						unix.Kill(pid, unix.SIGKILL)
						return
					}
				}
				t.Errorf("%s: there is none", what)
			}()
			g, err := e.Restore(t.Context(), "killed", spec, engine.Snapshot{Dir: dir})
			<-killed
			if err == nil {
				if exit := wait(t, g); exit.Reason != engine.ExitCrashed {
					t.Errorf("%s: exit %+v", what, exit)
				}
			} else if !errors.Is(err, engine.ErrUnavailable) {
				t.Errorf("%s: %v", what, err)
			}
			if after := settled(t, before); !maps.Equal(after, before) {
				t.Errorf("%s: held %v before, %v after", what, before, after)
			}
		}
	}
	if got := b.ask(t, "echo alive"); got != "alive" {
		t.Errorf("output of the original: %q", got)
	}
	restore(t, e, "restored", spec, dir)
}
