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
	// allIDs is how many ids a user namespace has at most.
	allIDs = 1<<32 - 1
	// rootOnDisk is the user that, in an id-mapped volume, the guest's root is on
	// disk. It is nobody's, so that the agent cannot leave programs of the host's
	// root in a volume, and a new file, which for a moment is its own, nobody's.
	rootOnDisk = 1<<31 - 2
)

// showing is how a volume is shown to a guest.
type showing int

const (
	// asIs leaves owners as they are.
	asIs showing = iota
	// mapped swaps the owner of the volume and the guest's user in the mount. It
	// takes power over the file system: that of real root.
	mapped
	// nested has the gofer in a user namespace in which the server's own user is
	// the guest's, and the sentry ask the gofer for everything in the volume
	// instead of looking by itself. It takes no power, but serves only what the
	// server's user owns.
	nested
)

// idOwner is who owns a volume.
type idOwner struct{ uid, gid uint32 }

// volumes finds out for each volume how the guest's user can be made to own what
// the owner of the volume owns.
type volumes struct {
	log   *slog.Logger
	uids  []syscall.SysProcIDMap // of this process's user namespace
	gids  []syscall.SysProcIDMap
	nests func() error // says, once found out, why a gofer cannot be nested

	mu   sync.Mutex
	told map[string]bool // guarded by mu; volumes that were complained of
}

func newVolumes(log *slog.Logger) *volumes {
	v := &volumes{
		log:  log,
		uids: ownIDs("uid_map"),
		gids: ownIDs("gid_map"),
		told: make(map[string]bool),
	}
	v.nests = sync.OnceValue(func() error {
		f, err := userNamespace(v.nestedIDs())
		if err != nil {
			return fmt.Errorf("make user namespace: %w", err)
		}
		return f.Close()
	})
	return v
}

// open prepares the volumes of a guest that boots. The caller closes them when it
// has booted.
func (v *volumes) open(mounts []engine.Mount) (_ *shown, err error) {
	s := &shown{list: make([]volume, len(mounts))}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	spaces := make(spaces)
	defer spaces.close()
	for i, m := range mounts {
		if s.list[i], err = v.show(m, spaces); err != nil {
			return nil, fmt.Errorf("find volume %q: %w", m.Host, err)
		}
	}
	if !s.nested() {
		return s, nil
	}
	// Not being root, the gofer would refuse to mount what it may not read.
	for i := range s.list {
		if m := &s.list[i]; m.tree == nil {
			if m.tree, err = openTree(m.Host); err != nil {
				return nil, fmt.Errorf("find volume %q: %w", m.Host, err)
			}
		}
	}
	return s, nil
}

// show decides how a volume is shown.
func (v *volumes) show(m engine.Mount, spaces spaces) (volume, error) {
	if m.ReadOnly {
		return volume{Mount: m}, nil
	}
	var st unix.Stat_t
	if err := unix.Stat(m.Host, &st); errors.Is(err, fs.ErrNotExist) {
		return volume{}, fmt.Errorf("%w: %w", err, engine.ErrInvalid)
	} else if err != nil {
		return volume{}, err
	}
	shown := volume{Mount: m, how: mapped}
	var err error
	if shown.tree, err = v.mapOwner(m.Host, spaces); err != nil && st.Uid == 0 {
		shown.how, err = nested, v.nests()
	}
	if err != nil {
		if !userMayWrite(&st) {
			owner := "user " + strconv.Itoa(engine.UserID)
			if !holdsAll(v.uids) {
				owner = "the user that runs the server"
			}
			v.tell(m.Host, "code in boxes cannot write to volume", logkey.Mode, fmt.Sprintf("%#o", st.Mode&0o7777), logkey.Error, err,
				logkey.Fix, fmt.Sprintf("make %s the owner of %s, or chmod o+rwX it, or share it with :ro", owner, m.Host))
		}
		return volume{Mount: m}, nil
	}
	if st.Uid == 0 && holdsAll(v.uids) && !ignoresSetuid(m.Host) {
		v.tell(m.Host, "programs that code in boxes leaves in volume can run as root",
			logkey.Fix, fmt.Sprintf("make another user the owner of %s, or keep other users out of the directory that it is in, or mount its file system nosuid", m.Host))
	}
	return shown, nil
}

// openTree returns a mount of the host path that is nowhere yet.
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

// spaces are user namespaces that say how owners are shown.
type spaces map[idOwner]*os.File

// of returns the namespace for volumes of o. Groups are all shown, since a file of
// the owner's may be in any.
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

// nest makes the gofer run in a user namespace in which the guest's user is what
// root is here.
func (v *volumes) nest(cmd *exec.Cmd) {
	cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
	cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = v.nestedIDs()
	// It is not root there, and would lose what it needs to set itself up. Of
	// these it keeps the first six.
	cmd.SysProcAttr.AmbientCaps = []uintptr{
		unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_SYS_CHROOT,
		unix.CAP_SYS_ADMIN, unix.CAP_SETPCAP,
	}
}

// nestedIDs returns the ids of that namespace.
func (v *volumes) nestedIDs() (uids, gids []syscall.SysProcIDMap) {
	return swapIDs(v.uids, 0, engine.UserID), swapIDs(v.gids, 0, engine.UserID)
}

// tell warns of a volume, once.
func (v *volumes) tell(host, message string, args ...any) {
	v.mu.Lock()
	told := v.told[host]
	v.told[host] = true
	v.mu.Unlock()
	if !told {
		v.log.Warn(message, append([]any{logkey.Volume, host}, args...)...)
	}
}

// ignoresSetuid reports whether set-user-ID bits do nothing at the host path.
func ignoresSetuid(host string) bool {
	var st unix.Statfs_t
	return unix.Statfs(host, &st) == nil && st.Flags&unix.ST_NOSUID != 0
}

// userMayWrite reports whether the guest's user can write to a volume that is
// shown as it is.
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
	defer cmd.Wait() // says that it was killed
	defer cmd.Process.Kill()
	return os.Open("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/ns/user")
}

// ownIDs returns the ids that there are in this process's user namespace, each
// mapped to itself.
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

// holdsAll reports whether ids are all that there are, as outside of any user
// namespace.
func holdsAll(ids []syscall.SysProcIDMap) bool {
	return len(ids) == 1 && ids[0].Size == allIDs
}

// swapIDs returns the mapping of ids in which a and b have changed places. What
// would have to change places with an id that there is not is left out.
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

// shown are the volumes of one guest.
type shown struct {
	list   []volume     // one for each mount
	server *urpc.Server // of their trees; may be nil
}

// volume is one mount of a guest.
type volume struct {
	engine.Mount
	how  showing
	tree *os.File // the mount, for the gofer to put in place; nil: it makes it itself
}

// nested reports whether the gofer needs a user namespace.
func (s *shown) nested() bool {
	return slices.ContainsFunc(s.list, func(v volume) bool { return v.how == nested })
}

// annotations tells gVisor of the volumes that the gofer serves alone.
func (s *shown) annotations() map[string]string {
	hints := make(map[string]string)
	seen := make(map[string]bool) // gVisor goes by the host's path
	for i, v := range s.list {
		if v.how != nested || seen[v.Host] {
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

// answer gives the trees to the gofer at the other end of conn when it
// asks, until close.
func (s *shown) answer(conn *os.File) error {
	h := &goferToHostRPC{trees: make(map[string]*os.File)}
	for _, v := range s.list {
		if v.tree != nil {
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
	s.server = urpc.NewServer()
	s.server.Register(h)
	s.server.StartHandling(socket)
	return nil
}

// close ends what the gofer needs during its boot.
func (s *shown) close() {
	if s.server != nil {
		s.server.Stop(0)
	}
	for _, v := range s.list {
		if v.tree != nil {
			v.tree.Close()
		}
	}
}

// goferToHostRPC answers the gofer's requests for mounts that it is not to make
// itself; the name is gVisor's. It hands out what was prepared and nothing else.
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
