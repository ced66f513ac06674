package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/posture"
)

// isOnlyUser reports whether this is a container in which no user but root and this one
// has a process now. Container platforms create volumes to which everybody, or a group,
// may write: there, that is this program. The state directory as a whole is checked at the
// start only; each check of a file in it asks again.
//
// A process in a user namespace of its own sees the processes of all other users as those
// of one. It uses the answer that its parent had when it started it.
var isOnlyUser = (&onlyUserAnswers{look: answerOf(os.Getenv(config.OnlyUserEnv), os.Getppid()), now: time.Now}).current

// answerOf returns a function that returns the answer for this moment, given the one that
// the parent had, and leaves it to processes that this one starts.
func answerOf(inherited string, parent int) func() bool {
	return func() bool {
		namespace, _ := os.Readlink("/proc/self/ns/user") // empty without user namespaces
		only, seen := onlyUser(inherited, onlyUserAnswer(parent, ""), namespace, lookForOthers)
		switch {
		case only:
			os.Setenv(config.OnlyUserEnv, onlyUserAnswer(os.Getpid(), seen)) // fails only for invalid names
		case inherited != "0":
			os.Unsetenv(config.OnlyUserEnv)
		}
		return only
	}
}

// lookForOthers reports whether this is a container in which no other user has a process.
func lookForOthers() bool {
	if !posture.InContainer() {
		return false
	}
	// The process of a box that is about to end may look like a stranger's.
	for n := range 3 {
		if n > 0 {
			time.Sleep(50 * time.Millisecond)
		}
		if !othersRun(os.DirFS("/proc"), os.Geteuid()) {
			return true
		}
	}
	return false
}

// onlyUserFor is how long an answer holds: checks of many files look once.
const onlyUserFor = time.Second

// onlyUserAnswers repeats an answer for a moment.
type onlyUserAnswers struct {
	look func() bool
	now  func() time.Time

	mu   sync.Mutex
	only bool      // guarded by mu
	at   time.Time // guarded by mu: when look returned it; zero before
}

func (a *onlyUserAnswers) current() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at.IsZero() || a.now().Sub(a.at) >= onlyUserFor {
		a.only = a.look()
		a.at = a.now()
	}
	return a.only
}

// onlyUser returns the answer of the parent if somebody looked in another user namespace
// than this process's, or what look returns, and the namespace of that. parent is how
// answers of the parent begin.
func onlyUser(answer, parent, namespace string, look func() bool) (only bool, seen string) {
	if answer == "0" {
		return false, namespace
	}
	if seen, ok := strings.CutPrefix(answer, parent); ok && seen != namespace {
		return true, seen
	}
	return look(), namespace
}

// onlyUserAnswer returns the answer of a process for those that it starts, as seen in a
// user namespace. Its number is in it: the same text in a configuration would turn the
// checks off for good.
func onlyUserAnswer(pid int, seen string) string { return fmt.Sprintf("1:%d:%s", pid, seen) }

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
		if state := statusField(b, "State"); len(state) > 0 && state[0] == "Z" {
			found = true
			continue // it has ended, and has lost its name
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
