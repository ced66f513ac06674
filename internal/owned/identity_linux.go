package owned

import (
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"
)

// identity tells a file from all others that were ever at its path. A file system may give the
// number of a removed file to the next one at once, so the time of birth, which no program can set,
// is a part; it is zero where the file system has none.
type identity struct {
	major, minor uint32
	inode        uint64
	born         unix.StatxTimestamp
}

// identify returns the identity of the entry at path; false if it cannot be read, or is not that
// of info any more.
func identify(path string, info fs.FileInfo) (identity, bool) {
	var x unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_BTIME, &x)
	st, ok := info.Sys().(*syscall.Stat_t)
	if err != nil || !ok || x.Ino != st.Ino || unix.Mkdev(x.Dev_major, x.Dev_minor) != st.Dev {
		return identity{}, false
	}
	id := identity{major: x.Dev_major, minor: x.Dev_minor, inode: x.Ino}
	if x.Mask&unix.STATX_BTIME != 0 {
		id.born = x.Btime
	}
	return id, true
}
