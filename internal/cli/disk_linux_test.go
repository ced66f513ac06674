package cli

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/config"
)

// TestDiskReserve_OfASmallDisk: without a setting, a quarter of a small disk is left free,
// so that a box can start there; a setting counts as it is.
func TestDiskReserve_OfASmallDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=400m"); err != nil {
		t.Skipf("mount a small file system: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	env := map[string]string{"GLOVEBOX_STATE_DIR": dir}
	c, _, err := config.Load(nil, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	if err != nil {
		t.Fatal(err)
	}
	if got := diskReserve(c); got != 100<<20 {
		t.Errorf("without a setting, %d bytes of 400 MiB are left free, want 100 MiB", got)
	}
	c.DiskReserveMB = 300
	if got := diskReserve(c); got != 300<<20 {
		t.Errorf("with a setting of 300, %d bytes are left free", got)
	}
}
