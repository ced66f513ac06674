package cli

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// freeSpace returns the bytes that are available to this user on the file system of dir.
func freeSpace(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("query the free space of %q: %w", dir, err)
	}
	return int64(min(st.Bavail*uint64(st.Bsize), 1<<62)), nil
}
