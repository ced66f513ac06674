//go:build linux && (amd64 || arm64)

package gvisor

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/container"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// allIDs is the maximum number of ids in a user namespace.
	allIDs = 1<<32 - 1
	// rootOnDisk is the id on disk of the guest's root in an id-mapped volume. No user
	// has it, so that the agent cannot leave programs of the host's root in a volume:
	// a new file, briefly owned by root inside, is owned by nobody on disk.
	rootOnDisk = 1<<31 - 2
)

// ownerMapping is how the owners of files in a volume appear in a guest.
type ownerMapping int

const (
	// asIs leaves owners as they are.
	asIs ownerMapping = iota
	// mapped swaps the owner of the volume and the guest's user in the mount. It
	// requires real root, with power over the file system.
	mapped
	// nested runs the volume's gofer in a user namespace that maps the server's own user
	// to the guest's. It requires no privileges, but works only for files that the
	// server's user owns or creates.
	nested
)

// idOwner is the owner of a volume.
type idOwner struct{ uid, gid uint32 }

// volumes chooses for each volume how to map the owner of its files to the guest's
// user.
type volumes struct {
	log   *slog.Logger
	uids  []syscall.SysProcIDMap // of this process's user namespace
	gids  []syscall.SysProcIDMap
	nests func() error // returns, computed once, why a gofer cannot be nested

	mu     sync.Mutex
	warned map[string]bool // guarded by mu; volumes with a warning
}

func newVolumes(log *slog.Logger) *volumes {
	v := &volumes{
		log:    log,
		uids:   ownIDs("uid_map"),
		gids:   ownIDs("gid_map"),
		warned: make(map[string]bool),
	}
	v.nests = sync.OnceValue(func() error {
		f, err := userNamespace(v.guestUserIDs())
		if err != nil {
			return fmt.Errorf("make user namespace: %w", err)
		}
		return f.Close()
	})
	return v
}

// open prepares the volumes of a guest that boots. The caller closes them after the
// boot.
func (v *volumes) open(mounts []engine.Mount) (_ *guestVolumes, err error) {
	s := &guestVolumes{list: make([]volume, len(mounts))}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	spaces := make(spaces)
	defer spaces.close()
	for i, m := range mounts {
		if s.list[i], err = v.prepare(m, spaces); err != nil {
			return nil, fmt.Errorf("find volume %q: %w", m.Host, err)
		}
	}
	if s.nested() {
		// Not being root, a nested gofer would refuse to mount what it may not read.
		for i := range s.list {
			m := &s.list[i]
			if m.how != nested {
				continue
			}
			if m.tree, err = openTree(m.Host); err != nil {
				return nil, fmt.Errorf("find volume %q: %w", m.Host, err)
			}
		}
	}
	for i := range s.list {
		if v := &s.list[i]; v.Frozen && !v.ReadOnly {
			if err := v.freeze(); err != nil {
				return nil, fmt.Errorf("make volume %q read-only: %w", v.Host, err)
			}
		}
	}
	return s, nil
}

// freeze makes the mount that the gofer gets read-only. The host's kernel refuses writes,
// also those of a sentry that user code has taken over.
func (v *volume) freeze() (err error) {
	if v.tree == nil {
		if v.tree, err = openTree(v.Host); err != nil {
			return err
		}
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	return unix.MountSetattr(int(v.tree.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr)
}

// prepare chooses the mapping of a volume and opens its tree if that needs one.
func (v *volumes) prepare(m engine.Mount, spaces spaces) (volume, error) {
	if m.ReadOnly {
		return volume{Mount: m}, nil
	}
	var st unix.Stat_t
	if err := unix.Stat(m.Host, &st); errors.Is(err, fs.ErrNotExist) {
		return volume{}, fmt.Errorf("%w: %w", err, engine.ErrInvalid)
	} else if err != nil {
		return volume{}, err
	}
	vol := volume{Mount: m, how: mapped}
	var err error
	if vol.tree, err = v.mapOwner(m.Host, spaces); err != nil && st.Uid == 0 {
		vol.how, err = nested, v.nests()
	}
	// Files that code creates in a volume that is open to all belong to the server's user.
	// Where no file can belong to the guest's user, a nested gofer maps the server's user to it.
	mayWrite := userMayWrite(&st)
	if err != nil && mayWrite && st.Mode&unix.S_IFMT == unix.S_IFDIR && !holds(v.uids, engine.UserID) {
		vol.how, err = nested, v.nests()
		mayWrite = err == nil
		if mayWrite {
			message, fix := "code in boxes has the access of the server's user to that user's files in volume, which belongs to another user", ""
			if !ignoresSetuid(m.Host) {
				message += ", and programs that it leaves there can run as the server's user"
				fix = ", or mount its file system nosuid"
			}
			v.warnOnce(m.Host, message, logkey.Fix, fmt.Sprintf("share a directory of the server's user, closed to others, instead of %s, or share it with :ro%s", m.Host, fix))
		}
	}
	if err != nil {
		if !mayWrite {
			owner := "user " + strconv.Itoa(engine.UserID)
			if !holdsAll(v.uids) {
				owner = "the user that runs the server"
			}
			v.warnOnce(m.Host, "code in boxes cannot write to volume", logkey.Mode, fmt.Sprintf("%#o", st.Mode&0o7777), logkey.Error, err,
				logkey.Fix, fmt.Sprintf("make %s the owner of %s, or chmod o+rwX it, or share it with :ro", owner, m.Host))
		}
		return volume{Mount: m}, nil
	}
	if st.Uid == 0 && st.Mode&0o011 != 0 && holdsAll(v.uids) && !ignoresSetuid(m.Host) && !m.Frozen {
		v.warnOnce(m.Host, "programs that code in boxes leaves in volume can run as root",
			logkey.Fix, fmt.Sprintf("make another user the owner of %s, or keep other users out of the directory that it is in, or mount its file system nosuid", m.Host))
	}
	return vol, nil
}

// openTree returns a detached mount of the host path.
func openTree(host string) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, host, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return nil, fmt.Errorf("open mount: %w", err)
	}
	return os.NewFile(uintptr(fd), host), nil
}

// mapOwner returns a mount of the host path in which its owner is the guest's
// user.
func (v *volumes) mapOwner(host string, spaces spaces) (_ *os.File, err error) {
	if !holdsAll(v.uids) || !holdsAll(v.gids) {
		return nil, errors.New("only root can map owners")
	}
	tree, err := openTree(host)
	if err != nil {
		return nil, err
	}
	fd := int(tree.Fd())
	defer func() {
		if err != nil {
			tree.Close()
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstatat(fd, "", &st, unix.AT_EMPTY_PATH); err != nil {
		return nil, fmt.Errorf("find owner: %w", err)
	}
	space, err := spaces.of(idOwner{st.Uid, st.Gid}, v.gids)
	if err != nil {
		return nil, err
	}
	attr := unix.MountAttr{
		Attr_set:  unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV,
		Userns_fd: uint64(space.Fd()),
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		return nil, fmt.Errorf("the file system does not let owners be mapped: %w", err)
	}
	return tree, nil
}

// spaces are user namespaces that map owners.
type spaces map[idOwner]*os.File

// of returns the namespace for volumes of o. It maps all groups, since a file of the
// owner may be in any.
func (s spaces) of(o idOwner, gids []syscall.SysProcIDMap) (*os.File, error) {
	if f := s[o]; f != nil {
		return f, nil
	}
	f, err := userNamespace([]syscall.SysProcIDMap{
		{ContainerID: int(o.uid), HostID: engine.UserID, Size: 1},
		{ContainerID: rootOnDisk, HostID: 0, Size: 1},
	}, swapIDs(gids, int(o.gid), engine.UserID))
	if err != nil {
		return nil, fmt.Errorf("make user namespace: %w", err)
	}
	s[o] = f
	return f, nil
}

func (s spaces) close() {
	for _, f := range s {
		f.Close()
	}
}

// runAsGuestUser makes the gofer run in a user namespace that maps this namespace's root to the
// guest's user.
func (v *volumes) runAsGuestUser(cmd *exec.Cmd) {
	cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
	cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = v.guestUserIDs()
	// It is not root there, and would lose the capabilities that its setup needs. It
	// keeps the first six of these.
	cmd.SysProcAttr.AmbientCaps = []uintptr{
		unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_SYS_CHROOT,
		unix.CAP_SYS_ADMIN, unix.CAP_SETPCAP,
	}
}

// runAsRoot makes the gofer run in a user namespace with all users of this one, so that its
// power over files is no power over the host.
func (v *volumes) runAsRoot(cmd *exec.Cmd) {
	attr := cmd.SysProcAttr
	attr.Cloneflags |= unix.CLONE_NEWUSER
	attr.UidMappings, attr.GidMappings = v.uids, v.gids
	if holdsAll(v.gids) {
		attr.GidMappingsEnableSetgroups = true
		attr.Credential = &syscall.Credential{Uid: 0, Gid: 0} // and no supplementary groups
	}
}

// guestUserIDs returns the ids of that namespace.
func (v *volumes) guestUserIDs() (uids, gids []syscall.SysProcIDMap) {
	return swapIDs(v.uids, 0, engine.UserID), swapIDs(v.gids, 0, engine.UserID)
}

// warnOnce logs a warning about a volume, unless it has logged one before.
func (v *volumes) warnOnce(host, message string, args ...any) {
	v.mu.Lock()
	warned := v.warned[host]
	v.warned[host] = true
	v.mu.Unlock()
	if !warned {
		v.log.Warn(message, append([]any{logkey.Volume, host}, args...)...)
	}
}

// ignoresSetuid reports whether set-user-ID bits do nothing at the host path.
func ignoresSetuid(host string) bool {
	var st unix.Statfs_t
	return unix.Statfs(host, &st) == nil && st.Flags&unix.ST_NOSUID != 0
}

// userMayWrite reports whether the guest's user can write to a volume whose owners are
// not mapped.
func userMayWrite(st *unix.Stat_t) bool {
	want := uint32(0o2)
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		want = 0o3
	}
	switch {
	case st.Uid == engine.UserID:
		want <<= 6
	case st.Gid == engine.UserID:
		want <<= 3
	}
	return st.Mode&want == want
}

// userNamespace returns a user namespace with the given ids.
func userNamespace(uids, gids []syscall.SysProcIDMap) (*os.File, error) {
	// A namespace comes with a process; this one waits for the pipe and is killed.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	defer w.Close()
	cmd := &exec.Cmd{
		Path:       selfExe,
		Args:       []string{selfExe, "umount", "--sync-fd=3", "/nonexistent"},
		Env:        []string{},
		ExtraFiles: []*os.File{r},
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: uids,
			GidMappings: gids,
		},
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer cmd.Wait() // its error is that it was killed
	defer cmd.Process.Kill()
	return os.Open("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/ns/user")
}

// ownIDs returns the ids of this process's user namespace, each mapped to itself.
func ownIDs(name string) []syscall.SysProcIDMap {
	f, err := os.Open("/proc/self/" + name)
	if err != nil {
		return nil // no /proc, no guests
	}
	defer f.Close()
	var ids []syscall.SysProcIDMap
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var first, outside, n int
		if _, err := fmt.Sscan(lines.Text(), &first, &outside, &n); err == nil {
			ids = append(ids, syscall.SysProcIDMap{ContainerID: first, HostID: first, Size: n})
		}
	}
	return ids
}

// holdsAll reports whether ids are all possible ids, as in the initial user namespace.
func holdsAll(ids []syscall.SysProcIDMap) bool {
	return len(ids) == 1 && ids[0].Size == allIDs
}

// swapIDs returns the mapping of ids that swaps a and b. Ids without a counterpart are
// omitted.
func swapIDs(ids []syscall.SysProcIDMap, a, b int) []syscall.SysProcIDMap {
	low, high := min(a, b), max(a, b)
	var list []syscall.SysProcIDMap
	add := func(inside, outside, n int) {
		if n > 0 {
			list = append(list, syscall.SysProcIDMap{ContainerID: inside, HostID: outside, Size: n})
		}
	}
	for _, r := range ids {
		first, end := r.ContainerID, r.ContainerID+r.Size
		for _, id := range []int{low, high} {
			if id < first || id >= end {
				continue
			}
			add(first, first, id-first)
			add(low+high-id, id, 1)
			first = id + 1
			if low == high {
				break
			}
		}
		add(first, first, end-first)
	}
	return list
}

// guestVolumes are the volumes of one guest.
type guestVolumes struct {
	list    []volume       // one for each mount
	servers []*urpc.Server // hand out their trees, one to each gofer that needs them
}

// volume is one mount of a guest.
type volume struct {
	engine.Mount
	how  ownerMapping
	tree *os.File // the mount, which the gofer attaches; nil: the gofer makes the mount
}

// nested reports whether the gofer needs a user namespace.
func (s *guestVolumes) nested() bool {
	return slices.ContainsFunc(s.list, func(v volume) bool { return v.how == nested })
}

// beside reports whether v needs another gofer than the nested volumes of the guest.
func (s *guestVolumes) beside(v volume) bool { return v.how != nested && s.nested() }

// annotations returns gVisor's annotations that make the sentry ask the gofer for
// everything in the volumes instead of opening files itself.
func (s *guestVolumes) annotations() map[string]string {
	hints := make(map[string]string)
	seen := make(map[string]bool) // gVisor identifies volumes by host path
	for i, v := range s.list {
		if seen[v.Host] {
			continue
		}
		seen[v.Host] = true
		prefix := fmt.Sprintf("dev.gvisor.spec.mount.v%d.", i)
		hints[prefix+"source"] = v.Host
		hints[prefix+"type"] = "bind"
		hints[prefix+"share"] = "shared"
		hints[prefix+"directfs"] = "off"
	}
	return hints
}

// answer hands the trees of the volumes that it serves to the gofer at the other end of
// conn at its requests, until close.
func (s *guestVolumes) answer(conn *os.File, serves func(int) bool) error {
	h := &goferToHostRPC{trees: make(map[string]*os.File)}
	for i, v := range s.list {
		if v.tree != nil && serves(i) {
			h.trees[v.Guest] = v.tree
		}
	}
	if len(h.trees) == 0 {
		return nil
	}
	fd, err := unix.FcntlInt(conn.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("serve volumes: %w", err)
	}
	socket, err := unet.NewSocket(fd)
	if err != nil {
		unix.Close(fd)
		return fmt.Errorf("serve volumes: %w", err)
	}
	server := urpc.NewServer()
	server.Register(h)
	server.StartHandling(socket)
	s.servers = append(s.servers, server)
	return nil
}

// close frees the resources that only the gofer's boot needs.
func (s *guestVolumes) close() {
	for _, server := range s.servers {
		server.Stop(0)
	}
	for _, v := range s.list {
		if v.tree != nil {
			v.tree.Close()
		}
	}
}

// goferToHostRPC answers the gofer's requests for mounts that the server made; the name
// is gVisor's. It hands out only the prepared trees.
type goferToHostRPC struct {
	trees map[string]*os.File // by path in the guest
}

// OpenMount is called by the gofer.
func (h *goferToHostRPC) OpenMount(args *container.OpenMountArgs, result *container.OpenMountResult) error {
	if args.Mount == nil || h.trees[args.Mount.Destination] == nil {
		return errors.New("no such mount")
	}
	result.Files = []*os.File{h.trees[args.Mount.Destination]}
	return nil
}
