//go:build linux || darwin

package owned

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	openFlags = unix.O_NOFOLLOW | unix.O_NONBLOCK
	// maxLinks is the kernel's limit of symbolic links in a path.
	maxLinks = 40
	// unmapped is the owner that a user namespace shows for users that it does not map:
	// the kernel's default.
	unmapped = 65534
)

// check walks from the root to path as the kernel does.
func check(path string, want target, in place) error {
	abs, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	rest := split(abs)
	at, links := "/", 0
	info, err := os.Lstat(at)
	if err != nil {
		return err
	}
	for {
		last := len(rest) == 0
		if last && want == directory {
			return checkOwn(at, info, in)
		}
		if err := checkAbove(at, info, in); err != nil {
			return err
		}
		if last || len(rest) == 1 && want == nothing {
			return nil
		}
		next := filepath.Join(at, rest[0]) // ".." was removed by Abs, or leads to a parent that is checked again
		shared := rest[0] != ".." && info.Mode()&fs.ModeSticky != 0 && info.Mode()&0o022 != 0
		rest = rest[1:]
		if info, err = os.Lstat(next); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if shared && in == strict && foreign(ownerOf(info)) && newcomer(next, info) {
			return &unsafeError{next, "belongs to another user, and all users can make files in " + at, "use a directory of your own"}
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			if want == file && len(rest) == 0 && info.Mode().IsRegular() {
				return checkInfo(next, info, in)
			}
			if !info.IsDir() {
				return &fs.PathError{Op: "open", Path: next, Err: syscall.ENOTDIR}
			}
			at = next
			continue
		}
		if uid := ownerOf(info); !trusted(uid) {
			return &unsafeError{next, fmt.Sprintf("is a symbolic link of user %d, who could change where it leads", uid), ""}
		}
		if links++; links > maxLinks {
			return &fs.PathError{Op: "open", Path: path, Err: syscall.ELOOP}
		}
		to, err := os.Readlink(next)
		if err != nil {
			return err
		}
		if filepath.IsAbs(to) {
			at = "/"
		}
		rest = append(split(to), rest...)
		if info, err = os.Lstat(at); err != nil {
			return err
		}
	}
}

func split(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(s string) bool { return s == "" || s == "." })
}

// checkAbove checks a directory that leads to another one.
func checkAbove(path string, info fs.FileInfo, in place) error {
	uid := ownerOf(info)
	if !trusted(uid) {
		return &unsafeError{path, fmt.Sprintf("belongs to user %d, who could replace what is in it", uid), ""}
	}
	if info.Mode()&fs.ModeSticky == 0 && othersWrite(path, info) && !in.excepts() {
		return &unsafeError{path, fmt.Sprintf("has mode %#o: other users can replace what is in it", info.Mode().Perm()), "type: " + chmod(uid, "go-w", path)}
	}
	return nil
}

// checkOwn checks a directory of this user.
func checkOwn(path string, info fs.FileInfo, in place) error {
	uid, own := ownerOf(info), os.Geteuid()
	switch {
	case int(uid) == own:
	case !trusted(uid):
		return &unsafeError{path, fmt.Sprintf("belongs to user %d, not to user %d, who runs this program", uid, own), "choose another directory, or make this user its owner"}
	case in.excepts():
		return nil
	case info.Mode()&fs.ModeSticky != 0:
		return &unsafeError{path, fmt.Sprintf("belongs to root, not to user %d, who runs this program, and is shared with other users", own), "use a directory in it, such as " + filepath.Join(path, "glovebox")}
	default:
		return &unsafeError{path, fmt.Sprintf("belongs to root, not to user %d, who runs this program", own), fmt.Sprintf("type: sudo chown %d %s && sudo chmod 700 %s", own, path, path)}
	}
	if othersWrite(path, info) && !in.excepts() {
		return &unsafeError{path, fmt.Sprintf("has mode %#o: other users can write to it", info.Mode().Perm()), "remove what they may have left there, and type: " + chmod(uid, "go-w", path)}
	}
	return nil
}

// chmod returns the command that changes the mode of a file of user uid.
func chmod(uid uint32, mode, path string) string {
	text := "chmod " + mode + " " + path
	if int(uid) != os.Geteuid() {
		return "sudo " + text
	}
	return text
}

func checkInfo(path string, info fs.FileInfo, in place) error {
	uid := ownerOf(info)
	if !trusted(uid) {
		return &unsafeError{path, fmt.Sprintf("belongs to user %d", uid), ""}
	}
	if othersWrite(path, info) && !in.excepts() {
		return &unsafeError{path, fmt.Sprintf("has mode %#o: other users can write to it", info.Mode().Perm()), "type: " + chmod(uid, "go-w", path)}
	}
	return nil
}

func ownerOf(info fs.FileInfo) uint32 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Uid
	}
	return unmapped // never: the file system is the kernel's
}

// trusted reports whether a file's owner is root or this user.
func trusted(uid uint32) bool {
	return uid == 0 || int(uid) == os.Geteuid() || foreign(uid)
}

// foreign reports whether a file's owner is one that this user namespace does not map: root, or
// anybody else.
func foreign(uid uint32) bool {
	return uid == unmapped && int(uid) != os.Geteuid() && !MapsAllUsers()
}

// MapsAllUsers reports whether this user namespace maps all users, so that its root is
// the machine's.
func MapsAllUsers() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return true // no user namespaces
	}
	f := strings.Fields(string(b))
	return len(f) == 3 && f[0] == "0" && f[1] == "0" && f[2] == "4294967295"
}

// othersWrite reports whether somebody else but root can write. Members of the owner's
// private group are nobody else: many systems give each user such a group, and make
// directories writable for it.
func othersWrite(path string, info fs.FileInfo) bool {
	mode := info.Mode().Perm()
	return mode&0o022 != 0 && (mode&0o002 != 0 || groupWrites(path, info))
}

// groupWrites reports whether the group of a file, to which it may write, has members
// other than root and the owner.
func groupWrites(path string, info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return true
	}
	// With an access control list, the group's bits are those of everybody in it.
	if n, err := unix.Lgetxattr(path, "system.posix_acl_access", nil); err == nil && n > 0 {
		return true
	}
	return !private(int(st.Uid), int(st.Gid))
}

// firstPerson is the least id of users who are people, on all common systems.
const firstPerson = 1000

// private reports whether a group has no member but the user, according to the files of
// the system.
//
// They do not list users of a directory service. For the user who runs this program, it
// is then private if it is that user's primary group and has the same number, as services
// number private groups. Other groups that the files do not list may have any members.
func private(uid, gid int) bool {
	name, primary := "", false
	for f := range entries("/etc/passwd", 7) {
		switch {
		case f[2] == strconv.Itoa(uid):
			name, primary = f[0], f[3] == strconv.Itoa(gid)
		case f[3] == strconv.Itoa(gid):
			return false
		}
	}
	found := false
	for f := range entries("/etc/group", 4) {
		if f[2] != strconv.Itoa(gid) {
			continue
		}
		found = true
		if f[3] != "" && f[3] != name {
			return false
		}
	}
	if name == "" {
		return uid >= firstPerson && uid == gid && uid == os.Geteuid() && gid == os.Getegid()
	}
	return found && primary
}

// entries yields the lines of a system file with n fields.
func entries(path string, n int) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		f, err := os.Open(path)
		if err != nil {
			return
		}
		defer f.Close()
		for lines := bufio.NewScanner(io.LimitReader(f, 8<<20)); lines.Scan(); {
			if fields := strings.Split(lines.Text(), ":"); len(fields) == n && !yield(fields) {
				return
			}
		}
	}
}
