//go:build linux && (amd64 || arm64)

package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// Guests are created, snapshotted and restored without openat2, as in a systemd unit with
// RestrictSUIDSGID=yes: the tests of the lifecycle and of snapshots pass under a filter
// that denies it.
func TestOpenat2_Denied(t *testing.T) {
	if os.Getenv(denyEnv) != "" {
		t.Skip("this is the inner run")
	}
	for _, answer := range []unix.Errno{unix.ENOSYS, unix.EPERM} {
		cmd := denied(t, unix.SYS_OPENAT2, answer, "-test.v", "-test.run", "^(TestOpenat2_FilterDeniesIt|TestGuest_Lifecycle|TestGuest_Isolation|TestRestore_AfterUpgradeOfLibrary|TestRestore_Volumes)$")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("with %v: %v\n%s", answer, err, out)
		}
	}
}

// The filter of TestOpenat2_Denied denies openat2.
func TestOpenat2_FilterDeniesIt(t *testing.T) {
	if os.Getenv(denyEnv) == "" {
		t.Skip("runs as a part of TestOpenat2_Denied")
	}
	if _, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH}); !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
		t.Fatalf("openat2: got %v, want it to be denied", err)
	}
}

// Both implementations open the same files, and neither leaves the directory.
func TestOpenBeneath(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	for _, d := range []string{"outside", "root/a/b"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"outside/secret", "root/a/b/file"} {
		if err := os.WriteFile(filepath.Join(dir, f), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{
		"absolute": filepath.Join(dir, "outside"), "up": "../outside", "inside": "a", "a/last": "b/file", "self": "/proc/self/root",
	} {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	at, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(at)
	for path, want := range map[string]error{
		"a": nil, "a/b": nil, "a/b/file": nil,
		"a/none": unix.ENOENT, "none/b": unix.ENOENT, "a/b/file/c": unix.ENOTDIR,
		"absolute": unix.ELOOP, "absolute/secret": unix.ELOOP, "up/secret": unix.ELOOP, "inside/b": unix.ELOOP,
		"a/last": unix.ELOOP, "self": unix.ELOOP, "self/etc": unix.ELOOP,
		"../outside": unix.EXDEV, "a/../../outside/secret": unix.EXDEV, "/": unix.EXDEV, "/etc": unix.EXDEV, "..": unix.EXDEV,
	} {
		for way, open := range map[string]func(int, string) (int, error){"openat2": openBeneath, "walk": walkBeneath} {
			fd, err := open(at, path)
			if !errors.Is(err, want) {
				t.Errorf("%s of %q: got %v, want %v", way, path, err, want)
			}
			if err != nil {
				continue
			}
			if got, err := os.Readlink(filepath.Join("/proc/self/fd", strconv.Itoa(fd))); err != nil || got != filepath.Join(resolved(t, root), path) {
				t.Errorf("%s of %q opened %q, %v", way, path, got, err)
			}
			unix.Close(fd)
		}
	}
}
