//go:build linux && (amd64 || arm64)

package gvisor

import (
	"errors"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"
)

// openBeneath returns a descriptor (O_PATH) of what is at path below the directory
// root. path is relative and without "." and ".." elements; a symbolic link
// anywhere in it is an error, so that nothing outside of root is ever reached.
func openBeneath(root int, path string) (int, error) {
	fd, err := unix.Openat2(root, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	// A filter of system calls cannot look into what openat2 is given, so those that
	// look at the flags of openat answer that there is no openat2: systemd does so
	// with RestrictSUIDSGID=yes, and older container profiles do not know the call.
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		return walkBeneath(root, path)
	}
	return fd, err
}

// walkBeneath is openBeneath without openat2: one element at a time, none of them a
// link.
func walkBeneath(root int, path string) (int, error) {
	if !fs.ValidPath(path) {
		return -1, unix.EXDEV // as openat2 answers what leads out
	}
	dir := root
	defer func() {
		if dir != root {
			unix.Close(dir)
		}
	}()
	for {
		name, rest, more := strings.Cut(path, "/")
		fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return -1, err
		}
		var st unix.Stat_t
		if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
			err = unix.ELOOP
		}
		if err != nil {
			unix.Close(fd)
			return -1, err
		}
		if !more {
			return fd, nil
		}
		if dir != root {
			unix.Close(dir)
		}
		dir, path = fd, rest
	}
}
