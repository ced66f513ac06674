package cli

import (
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
	switch os.Getenv(config.OnlyUserEnv) {
	case "0":
		return false
	case "1":
		return true
	}
	only := posture.InContainer() && !othersRun(os.DirFS("/proc"), os.Geteuid())
	if only {
		os.Setenv(config.OnlyUserEnv, "1") // fails only for invalid names
	}
	return only
})

// othersRun reports whether a user other than root and uid has a process, or may have
// one. Sentries of a server that runs as root do not count: they have no files.
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
		_, rest, ok := strings.Cut(string(b), "\nUid:")
		line, _, _ := strings.Cut(rest, "\n")
		users := strings.Fields(line)
		if !ok || len(users) != 4 {
			return true
		}
		for _, user := range users { // real, effective, saved and of the file system
			id, err := strconv.ParseUint(user, 10, 32)
			if err != nil || id != 0 && int(id) != uid && !posture.IsSentryUser(uint32(id)) {
				return true
			}
		}
		found = true
	}
	return !found
}
