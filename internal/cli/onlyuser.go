package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/posture"
)

// isOnlyUser reports whether this is a container in which no user but root and this one
// has a process. Container platforms create volumes to which everybody, or a group, may
// write: there, that is this program. A process in a user namespace sees the processes of
// all other users as those of one, and gets the answer of the process that started it.
var isOnlyUser = sync.OnceValue(func() bool {
	only := onlyUser(os.Getenv(config.OnlyUserEnv), os.Getppid(), func() bool {
		return posture.InContainer() && !othersRun(os.DirFS("/proc"), os.Geteuid())
	})
	if only {
		os.Setenv(config.OnlyUserEnv, onlyUserAnswer(os.Getpid())) // fails only for invalid names
	}
	return only
})

// onlyUser returns the answer of the parent if there is one, or what look returns.
func onlyUser(answer string, parent int, look func() bool) bool {
	switch answer {
	case "0":
		return false
	case onlyUserAnswer(parent):
		return true
	}
	return look()
}

// onlyUserAnswer returns the answer of a process for those that it starts. Its number is
// in it: the same text in a configuration would turn the checks off for good.
func onlyUserAnswer(pid int) string { return fmt.Sprintf("1:%d", pid) }

// othersRun reports whether a user other than root and uid has a process, or may have
// one. Sentries of another server that run as users without files do not count.
func othersRun(proc fs.FS, uid int) bool {
	entries, err := fs.ReadDir(proc, ".")
	if err != nil {
		return true
	}
	found := false
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		// The owner of the directory is root for processes that are not dumpable.
		b, err := fs.ReadFile(proc, e.Name()+"/status")
		if err != nil {
			continue // it has ended
		}
		users := statusField(b, "Uid")
		if len(users) != 4 {
			return true
		}
		for _, user := range users { // real, effective, saved and of the file system
			id, err := strconv.ParseUint(user, 10, 32)
			switch {
			case err != nil:
				return true
			case id == 0, int(id) == uid, posture.IsSentryUser(uint32(id)):
			case id == nobody && partOfSentry(proc, e.Name()):
			default:
				return true
			}
		}
		found = true
	}
	return !found
}

const (
	// nobody is the user of sentries where the server cannot give them one each.
	nobody = 65534
	// maxAncestors bounds the processes between a sentry and those of its guest.
	maxAncestors = 64
)

// partOfSentry reports whether a process is a sentry or gofer, by the name under which it
// was started, or descends from one.
func partOfSentry(proc fs.FS, pid string) bool {
	for range maxAncestors {
		line, err := fs.ReadFile(proc, pid+"/cmdline")
		if err != nil {
			return errors.Is(err, fs.ErrNotExist) // it has ended
		}
		if strings.HasPrefix(string(line), "runsc-") {
			return true
		}
		status, err := fs.ReadFile(proc, pid+"/status")
		if err != nil {
			return errors.Is(err, fs.ErrNotExist)
		}
		parent := statusField(status, "PPid")
		if len(parent) != 1 || parent[0] == "0" {
			return false
		}
		pid = parent[0]
	}
	return false
}

// statusField returns the values of a field of a process's status file.
func statusField(status []byte, name string) []string {
	_, rest, _ := strings.Cut(string(status), "\n"+name+":")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.Fields(line)
}
