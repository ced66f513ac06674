//go:build linux

package snapshot

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

// TestSweep_KeepsBoxesWhenTheDiskIsReserved: a sweep removes no hibernated box for what
// living boxes may still write, nor for a large MinFree.
func TestSweep_KeepsBoxesWhenTheDiskIsReserved(t *testing.T) {
	s := open(t, Config{})
	c := create(t, s, Meta{Class: Box, Owner: "a"})
	err := c.Write(t.Context(), Meta{Class: Box, Owner: "a"}, 1<<20, func(_ context.Context, dir string) error {
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
