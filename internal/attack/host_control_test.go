//go:build linux

package attack

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// The traces that the attacks "volume/read-only" and "volume/setuid" would leave are noticed.
func TestControl_VolumesThatWereBrokenOutOf(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"v", "ro", "outside"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"ro/file", "ro/new", "outside/new", "v/one", "outside/secret"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("changed\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(dir, "v/one"), filepath.Join(dir, "v/two")); err != nil {
		t.Fatal(err)
	}
	want := []string{"the read-only volume was changed", "the read-only volume has 2 files", "new appeared outside", "is a link to a file elsewhere"}
	if os.Geteuid() == 0 {
		if err := os.Chmod(filepath.Join(dir, "v/one"), 0o755|os.ModeSetuid); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mknod(filepath.Join(dir, "v/device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err == nil {
			want = append(want, "is a device node")
		}
		if hostRoot() {
			want = append(want, "is a setuid file of root")
		}
	}
	r := judged(t, func(_ context.Context, tr *trial) error {
		tr.checkVolumes(dir)
		return nil
	})
	for _, w := range want {
		expectBroken(t, r, w)
	}
}

// A server that starts although it must not ("local-user/open-state-directory" and
// others) is noticed.
func TestControl_ServerThatStarts(t *testing.T) {
	program := filepath.Join(t.TempDir(), "glovebox")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexit 0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"local-user/open-state-directory", "local-user/squatted-port"} {
		cfg := unisolated(t, nil)
		cfg.Program = program
		expectBroken(t, run(t, cfg, id), "the server starts")
	}
}
