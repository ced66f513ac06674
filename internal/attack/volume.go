//go:build linux

package attack

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/volume"
)

func volumeClass() class {
	return class{
		name:  "volume",
		about: "Code in a box attacks the host through volumes, one writable and one read-only.",
		attacks: []Attack{
			{Name: "read-only", Claim: "a read-only volume cannot be changed", run: onVolume("read_only")},
			{Name: "read-only-in-namespace", Claim: "a read-only volume cannot be changed after a remount in a user namespace", run: onVolume("read_only_in_namespace")},
			{Name: "parents", Claim: "parents of a volume's directory cannot be reached", run: onVolume("parents")},
			{Name: "links", Claim: "links in a volume lead to nothing of the host", run: onVolume("links")},
			{Name: "setuid", Claim: "user code makes no setuid file of root and none with capabilities", run: onVolume("setuid")},
			{Name: "devices", Claim: "no device node appears on the host", run: onVolume("devices")},
			{Name: "moved-directory", Claim: "a directory that is moved out of the volume gives no access outside of it", run: onVolume("moved")},
			{Name: "owner-mode", Claim: "user code does not open its owner's directory to other users of the host", run: ownerMode},
			{Name: "quota-race", Claim: "two boxes of an owner that fill a volume together do not write to it for long after it is over its quota, and change nothing then", run: overQuota("quota_fill")},
			{Name: "quota-hidden", Claim: "files that are moved between directories, linked and renamed all the time count towards the quota", run: overQuota("quota_hidden")},
			{Name: "quota-deep", Claim: "files below more directories than a scan enters do not stay out of the quota", run: overQuota("quota_deep")},
			{Name: "owner-names", Claim: "owners whose names are paths, or look like those of others, share no directory and get none elsewhere", run: ownersApart},
			{Name: "swapped-directory", Claim: "swapping a directory for a link leads nowhere (CVE-2021-25741)", run: onVolume("swapped")},
		},
	}
}

// onVolume boots a box with two volumes, runs a function of the class's script, and
// examines the volumes and the directory beside them.
func onVolume(function string) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		dir, err := t.tempDir("volumes")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		for _, d := range []string{"v", "ro", "outside"} {
			if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
				return err
			}
		}
		for name, text := range map[string]string{"ro/file": "unchanged\n", "outside/secret": t.bait.secret + "\n"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				return err
			}
		}
		if dir, err = filepath.EvalSymlinks(dir); err != nil {
			return err
		}
		// User code owns the writable volume as far as the host allows.
		if os.Geteuid() == 0 && hostRoot() {
			if err := os.Chown(filepath.Join(dir, "v"), engine.UserID, engine.UserID); err != nil {
				return err
			}
		}
		c, err := t.boot(ctx, shape{volumes: []engine.Mount{
			{Host: filepath.Join(dir, "v"), Guest: "/v"}, {Host: filepath.Join(dir, "ro"), Guest: "/ro", ReadOnly: true},
		}})
		if err != nil {
			return err
		}
		moving, stop := context.WithCancel(ctx)
		moved := make(chan struct{})
		go func() {
			defer close(moved)
			moveOut(moving, dir)
		}()
		err = c.attack(ctx, call{function: function})
		stop()
		<-moved
		t.checkVolumes(dir)
		return err
	}
}

// ownerMode boots a box with an owner's directory, which the box tries to open to other
// users with a setuid program in it.
func ownerMode(ctx context.Context, t *trial) error {
	dir, err := t.tempDir("owners")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return err
	}
	parent := filepath.Join(dir, "parent")
	if err := os.Mkdir(parent, 0o755); err != nil {
		return err
	}
	set, err := volume.Open([]volume.Volume{{Host: parent, Guest: "/v", PerOwner: true}}, filepath.Join(dir, "empty"))
	if err != nil {
		return err
	}
	mounts, err := set.Of("attacker")
	if err != nil {
		return err
	}
	c, err := t.boot(ctx, shape{volumes: mounts})
	if err != nil {
		return err
	}
	err = c.attack(ctx, call{function: "owner_mode"})
	t.checkOwners(parent)
	return err
}

// checkOwners examines whether other users of the host can enter a directory in parent.
func (t *trial) checkOwners(parent string) {
	entries, err := os.ReadDir(parent)
	if err != nil || len(entries) == 0 {
		t.broke("list the directories of owners: %d, %v", len(entries), err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.broke("examine the directory of %s: %v", e.Name(), err)
			continue
		}
		t.check(info.IsDir() && info.Mode().Perm()&0o077 == 0, "the directory of %s is open to other users: %v", e.Name(), info.Mode())
	}
}

// moveOut moves a directory out of the writable volume once the script is in it.
func moveOut(ctx context.Context, dir string) {
	for ctx.Err() == nil {
		if _, err := os.Stat(filepath.Join(dir, "v", "ready")); err == nil {
			os.Rename(filepath.Join(dir, "v", "move"), filepath.Join(dir, "outside", "move")) // the script goes on in any case
			os.WriteFile(filepath.Join(dir, "v", "moved"), nil, 0o644)
			return
		}
		if sleep(ctx, 20*time.Millisecond) != nil {
			return
		}
	}
}

// checkVolumes examines what the box left in and beside the volumes.
func (t *trial) checkVolumes(dir string) {
	b, err := os.ReadFile(filepath.Join(dir, "ro", "file"))
	t.check(err == nil && string(b) == "unchanged\n", "the read-only volume was changed: %q, %v", b, err)
	entries, err := os.ReadDir(filepath.Join(dir, "ro"))
	t.check(err == nil && len(entries) == 1, "the read-only volume has %d files, %v", len(entries), err)
	entries, err = os.ReadDir(filepath.Join(dir, "outside"))
	for _, e := range entries {
		t.check(e.Name() == "secret" || e.Name() == "move", "%s appeared outside of the volume", e.Name())
	}
	if err != nil {
		t.broke("list the directory beside the volume: %v", err)
	}
	filepath.WalkDir(filepath.Join(dir, "v"), func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return nil // not readable: nothing that the host would use
		}
		t.checkFile(path, d)
		return nil
	})
}

// checkFile records a file that gives somebody on the host privileges.
func (t *trial) checkFile(path string, d os.DirEntry) {
	info, err := d.Info()
	if err != nil {
		return
	}
	name := strings.TrimPrefix(path, t.cfg.Dir)
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		t.broke("%s cannot be examined", name)
		return
	}
	isDevice := st.Mode&unix.S_IFMT == unix.S_IFBLK || st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev != 0
	t.check(!isDevice, "%s is a device node on the host", name)
	ofRoot := hostRoot() && st.Uid == 0
	t.check(!ofRoot || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&(unix.S_ISUID|unix.S_ISGID) == 0, "%s is a setuid file of root on the host", name)
	n, err := unix.Lgetxattr(path, "security.capability", make([]byte, 64))
	t.check(err != nil || n == 0, "%s has capabilities on the host", name)
	if info.Mode().IsRegular() && st.Nlink > 1 {
		t.broke("%s is a link to a file elsewhere", name)
	}
}
