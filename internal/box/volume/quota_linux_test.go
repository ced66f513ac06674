package volume

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fill writes a file of n KiB.
func fill(t *testing.T, path string, n int) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, make([]byte, n<<10), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestMeasure(t *testing.T) {
	root, outside := dir(t), dir(t)
	fill(t, filepath.Join(outside, "large"), 4096)
	fill(t, filepath.Join(root, "a"), 100)
	fill(t, filepath.Join(root, "d/e/b"), 200)
	if err := errors.Join(
		os.Link(filepath.Join(root, "a"), filepath.Join(root, "d/again")),
		os.Symlink(outside, filepath.Join(root, "link")), os.Symlink(".", filepath.Join(root, "d/loop")),
		os.Truncate(filepath.Join(root, "a"), 1<<30), // a hole
	); err != nil {
		t.Fatal(err)
	}
	got, err := measure(t.Context(), root, 1<<40, scanLimits)
	if err != nil || got < 300<<10 || got > 400<<10 {
		t.Errorf("got %d KiB, %v, want 300 and the directories", got>>10, err)
	}
	if got, err := measure(t.Context(), root, 150<<10, scanLimits); err != nil || got <= 150<<10 {
		t.Errorf("with less allowed: got %d KiB, %v", got>>10, err)
	}
}

// A scan that reaches a limit says which; it is never taken for a complete one.
func TestMeasure_Unfinished(t *testing.T) {
	root := dir(t)
	for _, name := range []string{"a", "b", "c", "d/e/f/g"} {
		fill(t, filepath.Join(root, name), 1)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx  context.Context
		dir  string
		l    limits
		want string
	}{
		"names":   {t.Context(), root, limits{3, 10, time.Minute}, "more than 3 files"},
		"depth":   {t.Context(), root, limits{100, 3, time.Minute}, "more than 3 directories"},
		"time":    {t.Context(), root, limits{100, 10, 0}, "longer than"},
		"ended":   {ended, root, scanLimits, "canceled"},
		"missing": {t.Context(), filepath.Join(root, "missing"), scanLimits, "no such file"},
		"link":    {t.Context(), "/proc/self/cwd", scanLimits, "cannot finish"},
	} {
		if _, err := measure(c.ctx, c.dir, 1<<40, c.l); !errors.Is(err, errUnfinished) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	before := openFiles(t)
	for range 20 {
		measure(t.Context(), root, 1<<40, limits{100, 3, time.Minute})
	}
	if after := openFiles(t); after > before {
		t.Errorf("leak: %d descriptors before the scans, %d after", before, after)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// Code that moves a file between directories all the time is found out.
func TestMeasure_Renames(t *testing.T) {
	root := dir(t)
	fill(t, filepath.Join(root, "a/file"), 1024)
	for _, name := range []string{"b", "c", "d"} {
		fill(t, filepath.Join(root, name, "small"), 1)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		names := []string{"a", "b", "c", "d"}
		for i := 0; ctx.Err() == nil; i++ {
			os.Rename(filepath.Join(root, names[i%4], "file"), filepath.Join(root, names[(i+1)%4], "file"))
		}
	}()
	found := false
	for i := 0; i < 1000 && !found; i++ {
		got, err := measure(t.Context(), root, 512<<10, scanLimits)
		if err != nil {
			t.Fatal(err)
		}
		found = got > 512<<10
	}
	stop()
	<-ended
	if !found {
		t.Error("1,000 scans have not seen the file that is moved")
	}
}

func TestSet_Quota(t *testing.T) {
	parent, shared := dir(t), dir(t)
	s, err := Open([]Volume{
		{Host: parent, Guest: "/own", PerOwner: true, Quota: 1 << 20}, {Host: shared, Guest: "/all", Quota: 8 << 20},
	}, filepath.Join(dir(t), "empty"))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1e9, 0)
	frozen := func(owner string) (own, all bool) {
		t.Helper()
		m, err := s.Of(owner)
		if err != nil {
			t.Fatal(err)
		}
		return m[0].Frozen, m[1].Frozen
	}
	round := func() bool {
		now = now.Add(time.Hour)
		return s.round(t.Context(), slog.New(slog.DiscardHandler), func() time.Time { return now })
	}
	frozen("alice")
	frozen("bob")
	if round() {
		t.Error("empty directories are over their quota")
	}
	large := filepath.Join(parent, "alice", "large")
	fill(t, large, 2048)
	if !round() {
		t.Error("the round does not say that a directory is over its quota")
	}
	if own, all := frozen("alice"); !own || all {
		t.Errorf("alice, over the quota: %t, %t", own, all)
	}
	if own, all := frozen("bob"); own || all {
		t.Errorf("bob, within it: %t, %t", own, all)
	}
	if st := s.Stats(); st.Over != 1 || st.Scans[Over] != 1 || st.Scans[OK] != 5 {
		t.Errorf("got %+v", st)
	}
	if err := os.Remove(large); err != nil {
		t.Fatal(err)
	}
	if !round() {
		t.Error("the round does not say that a directory is within its quota again")
	}
	if own, _ := frozen("alice"); own {
		t.Error("alice is within the quota again, and the directory is frozen")
	}
	for _, m := range s.Ownerless() {
		if !m.Frozen {
			t.Errorf("a machine without an owner can write to %s", m.Guest)
		}
	}

	// A tree that cannot be scanned has no quota for a moment only.
	deep := filepath.Join(parent, "bob")
	for range scanLimits.depth {
		deep = filepath.Join(deep, "d")
	}
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	round()
	if own, _ := frozen("bob"); own {
		t.Error("frozen after one unfinished scan")
	}
	round()
	if own, _ := frozen("bob"); !own {
		t.Error("not frozen after two unfinished scans")
	}
}
