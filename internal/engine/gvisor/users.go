//go:build linux && (amd64 || arm64)

package gvisor

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
)

const (
	// firstUser is the first of the host's user and group ids that sentries run as,
	// each as another one. systemd's table of ids lists them as unused.
	firstUser = 0x70000000
	// maxUsers is the number of these ids.
	maxUsers = 1 << 16
	// nobody is the id of sentries in a user namespace without these ids.
	nobody = 65534
)

// users gives each sentry a user of the host that owns no files and no other
// processes. Only a server that can map any id has such users to give. The sentries of
// an ordinary user run as that user.
type users struct {
	ids idMaps // of this process's user namespace

	mu    sync.Mutex
	next  uint32          // guarded by mu; an offset from firstUser
	taken map[uint32]bool // guarded by mu; ids of living sentries
}

// idMaps are the ids of a user namespace, each mapped to itself.
type idMaps struct{ uids, gids []syscall.SysProcIDMap }

func newUsers() *users {
	return &users{
		ids: idMaps{ownIDs("uid_map"), ownIDs("gid_map")},
		// Another server on the machine begins elsewhere.
		next:  rand.Uint32N(maxUsers),
		taken: make(map[uint32]bool),
	}
}

// user is the user of one sentry; its group has the same id.
type user struct {
	id     uint32 // in this process's user namespace
	shared bool   // others run as it too
}

// take returns the user for a new sentry. The caller returns it with give.
func (u *users) take() (user, error) {
	switch {
	case !u.ids.have(firstUser) && u.ids.have(nobody):
		return user{id: nobody, shared: true}, nil
	case !u.ids.have(firstUser):
		return user{id: uint32(os.Geteuid()), shared: true}, nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for range maxUsers {
		id := firstUser + u.next
		u.next = (u.next + 1) % maxUsers
		if !u.taken[id] {
			u.taken[id] = true
			return user{id: id}, nil
		}
	}
	return user{}, fmt.Errorf("find a user for the sentry: all %d are taken: %w", maxUsers, engine.ErrExhausted)
}

func (u *users) give(who user) {
	if who.shared {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.taken, who.id)
}

// confine makes cmd, a sentry, start as a user in a user namespace of its own, in which
// it is root. The namespace has two of the host's users: the sentry's own, and the
// guest's, so that a guest can change files of its user in the root. Every other
// file appears to belong to nobody, so that even all capabilities of the namespace
// give no more than the file's mode gives to everyone.
func (u *users) confine(cmd *exec.Cmd, who user) {
	attr := cmd.SysProcAttr
	attr.Cloneflags |= unix.CLONE_NEWUSER
	id := int(who.id)
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: id, Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: id, Size: 1}}
	if id == os.Geteuid() {
		return
	}
	if u.ids.have(engine.UserID) {
		guest := syscall.SysProcIDMap{ContainerID: engine.UserID, HostID: engine.UserID, Size: 1}
		attr.UidMappings = append(attr.UidMappings, guest)
		attr.GidMappings = append(attr.GidMappings, guest)
	}
	attr.GidMappingsEnableSetgroups = true
	attr.Credential = &syscall.Credential{Uid: 0, Gid: 0} // and no supplementary groups
}

// have reports whether id is a user and a group of the namespace.
func (m idMaps) have(id int) bool { return holds(m.uids, id) && holds(m.gids, id) }

func holds(ids []syscall.SysProcIDMap, id int) bool {
	for _, r := range ids {
		if id >= r.ContainerID && id < r.ContainerID+r.Size {
			return true
		}
	}
	return false
}

// explainStart returns the error of a sentry that could not be started, with a remedy
// if the host forbids what its confinement needs.
func explainStart(err error) error {
	fix := ""
	switch {
	case errors.Is(err, unix.EACCES):
		fix = "boxes run as users without rights: let every user execute the program"
		if path, err := os.Readlink(selfExe); err == nil {
			fix += "; type: chmod a+rx " + path
		}
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EUSERS):
		fix = fixFor(err)
	default:
		return fmt.Errorf("start sentry: %w", err)
	}
	return &engine.HostError{Op: "start sentry in a user namespace", Cause: err, Fix: fix}
}
