//go:build linux && (amd64 || arm64)

package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/owned"
)

// checkVolumes makes volumes of root read-only, unless :rw was said, since files that code
// in boxes creates there belong to root. It refuses writable ones in which code could leave a
// program that other users of this machine can run as root: it may set set-user-ID bits.
// Directories of owners are closed to other users.
func checkVolumes(cfg *config.Config) error {
	if os.Geteuid() != 0 || !owned.MapsAllUsers() {
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
