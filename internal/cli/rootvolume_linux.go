//go:build linux && (amd64 || arm64)

package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/box/volume"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/owned"
)

// checkVolumes makes volumes of root read-only, unless :rw was said, since files that code
// in boxes creates there belong to root. It refuses writable ones in which code could leave a
// program that other users of this machine can run as root: it may set set-user-ID bits.
// Directories of owners are closed to other users.
//
// It also refuses volumes that the user who runs this program cannot use. That is known before
// the program enters a user namespace, in which other users have no numbers.
func checkVolumes(cfg *config.Config) error {
	if os.Geteuid() != 0 {
		return checkAccess(cfg)
	}
	if !owned.MapsAllUsers() {
		return nil // such files belong to an ordinary user
	}
	for i := range cfg.Volumes {
		v := &cfg.Volumes[i]
		if v.ReadOnly || v.PerOwner {
			continue
		}
		var st unix.Stat_t
		var fs unix.Statfs_t
		if unix.Stat(v.Host, &st) != nil || unix.Statfs(v.Host, &fs) != nil {
			continue // the start of a box reports it
		}
		if st.Uid != 0 {
			continue
		}
		if !v.Writable {
			v.ReadOnly, v.Defaulted = true, true
			continue
		}
		if fs.Flags&unix.ST_NOSUID != 0 || !reachable(v.Host) {
			continue
		}
		err := &config.Error{Text: fmt.Sprintf("refuse volume %s: it belongs to root, and code in boxes could leave programs there that other users run as root", v.Host)}
		return withHint(err, "make another user its owner (chown), or close it to other users (chmod go-rwx), or mount its file system nosuid, or share it with :ro")
	}
	return nil
}

// checkAccess returns an error that names a volume which this ordinary user cannot enter and
// list, or below which it cannot make directories for owners.
func checkAccess(cfg *config.Config) error {
	for _, v := range cfg.Volumes {
		if v.PerOwner {
			if err := volume.CheckParent(v.Host); err != nil {
				return withHint(err, parentHint)
			}
			continue
		}
		var st unix.Stat_t
		if unix.Access(v.Host, unix.R_OK|unix.X_OK) == nil || unix.Stat(v.Host, &st) != nil || int(st.Uid) == os.Geteuid() {
			continue
		}
		err := &config.Error{Text: fmt.Sprintf("refuse volume %s: it belongs to user %d and has mode %#o, so user %d, who runs this program, cannot enter and list it", v.Host, st.Uid, st.Mode&0o7777, os.Geteuid())}
		return withHint(err, "type: sudo chmod o+rx %s (for all users), or: sudo setfacl -m u:%d:rx %s", v.Host, os.Geteuid(), v.Host)
	}
	return nil
}

// reachable reports whether users other than root can open files in a directory.
func reachable(dir string) bool {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return true
	}
	for {
		info, err := os.Stat(real)
		if err != nil {
			return true
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		group := ok && st.Gid != 0 && info.Mode().Perm()&0o010 != 0
		if info.Mode().Perm()&0o001 == 0 && !group {
			return false
		}
		if real == "/" {
			return true
		}
		real = filepath.Dir(real)
	}
}
