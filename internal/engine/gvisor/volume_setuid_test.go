//go:build linux && (amd64 || arm64)

package gvisor

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
)

// TestVolumes_WarnOfSetuidOfTheServer: in a volume of another user to which everybody may write,
// programs of code in boxes belong to an ordinary user's server. The log says that others can
// run them as that user, unless the file system ignores set-user-ID bits.
func TestVolumes_WarnOfSetuidOfTheServer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make directories of other users")
	}
	dir := t.TempDir()
	if err := os.Chown(dir, 54321, 54321); err != nil {
		t.Skipf("this user namespace has no other users: %v", err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	const text = "programs that it leaves there can run as the server's user"
	check := func(want bool) {
		t.Helper()
		var log bytes.Buffer
		v := newVolumes(slog.New(slog.NewTextHandler(&log, nil)))
		v.uids = []syscall.SysProcIDMap{{Size: 1}} // as in the namespace of an ordinary user's server
		v.nests = func() error { return nil }
		vol, err := v.prepare(engine.Mount{Host: dir, Guest: "/shared"}, make(spaces))
		if err != nil || vol.how != nested {
			t.Fatalf("prepare: %v, the mapping %v; want %v", err, vol.how, nested)
		}
		if got := strings.Contains(log.String(), text); got != want || !strings.Contains(log.String(), "belongs to another user") {
			t.Errorf("set-user-ID ignored: %v; the log:\n%s", ignoresSetuid(dir), log.String())
		}
	}
	check(!ignoresSetuid(dir))
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=1m,mode=777,uid=54321"); err != nil {
		t.Skipf("mount a file system that ignores set-user-ID: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	check(false)
}
