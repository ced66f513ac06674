//go:build linux

package snapshot

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSweep_KeepsBoxesWhenTheDiskIsReserved: a sweep removes no hibernated box for what
// living boxes may still write, nor for a large MinFree.
func TestSweep_KeepsBoxesWhenTheDiskIsReserved(t *testing.T) {
	s := open(t, Config{})
	c := create(t, s, Meta{Purpose: Box, Owner: "a"})
	err := c.Write(t.Context(), Meta{Purpose: Box, Owner: "a"}, 1<<20, func(_ context.Context, dir string) error {
		return os.WriteFile(filepath.Join(dir, "x"), make([]byte, 1<<20), 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Release(); err != nil {
		t.Fatal(err)
	}
	free, err := s.free()
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name              string
		reserved, minFree int64
	}{
		{"all of the disk is reserved", 1 << 60, 0},
		{"MinFree is more than is free", 0, 1 << 60},
	} {
		s.cfg.Reserved, s.cfg.MinFree = func() int64 { return step.reserved }, step.minFree
		removed, err := s.Sweep(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(removed) != 0 {
			t.Fatalf("%s (%d bytes free): the sweep removed %+v", step.name, free, removed)
		}
	}
}

// TestWrite_NoEvictionForReservations: a write for which the disk has room, though others
// have reserved it, is refused. It destroys no hibernated box.
func TestWrite_NoEvictionForReservations(t *testing.T) {
	for _, class := range []Purpose{Box, Saved} {
		t.Run(string(class), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "snapshots")
			s := openBeforeRemove(t, Config{Dir: dir, free: func() int64 { return 1<<40 - diskUsage(t, dir) }}, func(r []Removal) ([]string, error) { t.Errorf("removing %+v", r); return nil, nil })
			old := stored(t, s, box("a"), blob(1<<20))
			m := box("a")
			m.Purpose = class
			c := create(t, s, m)
			free, err := s.free()
			if err != nil {
				t.Fatal(err)
			}
			var reserved int64
			s.cfg.Reserved = func() int64 { return reserved }
			reserved = free - 1<<19 // so that the eviction would be enough
			for _, estimate := range []int64{0, 1 << 20} {
				err = c.Write(t.Context(), m, estimate, fill(blob(1<<20)))
				if full, _ := errors.AsType[*FullError](err); full == nil || full.Missing <= 0 {
					t.Errorf("with an estimate of %d: %v, want that there is no room", estimate, err)
				}
			}
			if _, _, err := s.Peek(old); err != nil {
				t.Errorf("the hibernated box: %v", err)
			}
			reserved = 0
			write(t, c, m, blob(1<<20))
		})
	}
}

// diskUsage returns the bytes of disk that the files below a directory take. It lets a test
// measure a disk that no other process writes to.
func diskUsage(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return &os.PathError{Op: "lstat", Path: path, Err: err}
		}
		bytes += st.Blocks * 512
		return nil
	})
	if err != nil {
		t.Errorf("measure a directory: %v", err)
	}
	return bytes
}

// TestEvict_DoubtsAFullDisk: neither a sweep nor a write removes a hibernated box for a disk
// that is full for a while only.
func TestEvict_DoubtsAFullDisk(t *testing.T) {
	const mb = 1 << 20
	var free int64
	s := open(t, Config{MinFree: 8 * mb, DiskGrace: time.Hour, free: func() int64 { return free }})
	write := func(c *Lease, size int64) error {
		return c.Write(t.Context(), Meta{Purpose: Box, Owner: "a"}, size, func(_ context.Context, dir string) error {
			return os.WriteFile(filepath.Join(dir, "x"), make([]byte, size), 0o600)
		})
	}
	first := create(t, s, Meta{Purpose: Box, Owner: "a"})
	second := create(t, s, Meta{Purpose: Box, Owner: "a"})
	free = 1 << 40
	if err := write(first, 4*mb); err != nil {
		t.Fatal(err)
	}
	if err := first.Release(); err != nil {
		t.Fatal(err)
	}
	sweep := func(when string, want int) {
		t.Helper()
		removed, err := s.Sweep(t.Context())
		if err != nil || len(removed) != want {
			t.Fatalf("%s: the sweep removed %+v, %v; want %d records", when, removed, err, want)
		}
	}
	free = 7 * mb // the first record is large enough for what is missing
	sweep("the disk is full", 0)
	if err := write(second, mb); !errors.Is(err, ErrFull) {
		t.Errorf("write to a full disk: %v, want ErrFull", err)
	}
	sweep("a write to the full disk has failed", 0)
	if all, err := s.List(func(m *Meta) bool { return !m.Written.IsZero() }); err != nil || len(all) != 1 {
		t.Fatalf("a write to the full disk left %+v, %v; want the hibernated box", all, err)
	}
	s.cfg.DiskGrace = 0
	free = 1 << 40
	sweep("the disk is free again", 0)
	s.cfg.DiskGrace = time.Hour
	free = 7 * mb // the first record is large enough for what is missing
	sweep("the disk is full again", 0)
	s.cfg.DiskGrace = time.Nanosecond
	sweep("the disk has been full for long", 1)
}
