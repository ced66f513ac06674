package hostdisk

import (
	"fmt"
	"os"
	"syscall"
)

// Free returns how many bytes this user can still write to the file system of f.
func Free(f *os.File) (int64, error) {
	var st syscall.Statfs_t
	for {
		err := syscall.Fstatfs(int(f.Fd()), &st)
		if err == nil {
			break
		}
		if err != syscall.EINTR {
			return 0, fmt.Errorf("query the free space of %q: %w", f.Name(), err)
		}
	}
	// Blocks are counted in units of Frsize. Bsize is the preferred size of a write,
	// which differs on network and FUSE file systems.
	return int64(min(st.Bavail*uint64(st.Frsize), 1<<62)), nil
}
