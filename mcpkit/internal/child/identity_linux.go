package child

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// asUser makes a program run under the id of the user if this process is root in name
// only: in a user namespace that has just the user, as root. Otherwise the program would
// take itself for root: npm, git and browsers then behave differently. The program gets a
// user namespace in which the user has its own id, and no capabilities over any
// namespace. asUser reports whether it has changed cmd.
func asUser(cmd *exec.Cmd) bool {
	uid, okUID := outerID("/proc/self/uid_map", os.Geteuid())
	gid, okGID := outerID("/proc/self/gid_map", os.Getegid())
	if !okUID || !okGID {
		return false
	}
	attr := cmd.SysProcAttr
	attr.Cloneflags |= syscall.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: os.Geteuid(), Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: os.Getegid(), Size: 1}}
	return true
}

// outerID returns the id that root of this user namespace has outside of it, if it has
// another one there and the namespace has no other ids. own is the caller's id.
func outerID(file string, own int) (id int, ok bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	f := strings.Fields(string(b)) // inside, outside, length of each range
	if own != 0 || len(f) != 3 || f[0] != "0" || f[2] != "1" {
		return 0, false
	}
	id, err = strconv.Atoi(f[1])
	return id, err == nil && id > 0
}

// noNamespace reports whether a start failed because the host allows no further user
// namespace.
func noNamespace(err error) bool {
	for _, errno := range []syscall.Errno{syscall.EPERM, syscall.ENOSPC, syscall.EUSERS, syscall.EINVAL, syscall.ENOSYS} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}
