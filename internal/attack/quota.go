//go:build linux

package attack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/volume"
)

const (
	// quotaMB is the quota of an owner's directory under attack, and quotaWrites times as
	// much is what a box writes to it.
	quotaMB     = 8
	quotaWrites = 3
	// quotaTime bounds the time until the quota is enforced: two scans, and one more for a
	// box that hides files from a scan.
	quotaTime = 30 * time.Second
)

// weakVolumes is what the attacks on quotas meet in tests of the judge.
type weakVolumes struct {
	quota  int64                             // of an owner's directory, in place of the attack's
	shared func(host string) string          // makes a directory writable, and returns where boxes see it: they have no volumes
	time   time.Duration                     // in place of quotaTime
	of     func(parent, owner string) string // makes an owner's directory, in place of package volume
}

// overQuota has two boxes of an owner run a function of the class's script at a time, which
// writes more than the quota. Once the volume is frozen, a third box attacks it.
func overQuota(function string) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		weak := &t.cfg.volumes
		set, parent, err := t.owners(weak.quota)
		if err != nil {
			return err
		}
		defer os.RemoveAll(filepath.Dir(parent))
		mounts, err := set.Of(attacker)
		if err != nil {
			return err
		}
		at, dir := mounts[0].Guest, mounts[0].Host
		if weak.shared != nil {
			at, mounts = weak.shared(dir), []engine.Mount{}
		}
		call := func(name string) call {
			return call{function: name, args: map[string]any{"at": at, "mb": quotaMB * quotaWrites, "seconds": quotaTime.Seconds() / 2}}
		}
		var cells []*cell
		for range 2 {
			c, err := t.boot(ctx, shape{volumes: mounts})
			if err != nil {
				return err
			}
			cells = append(cells, c)
		}
		watching, stop := context.WithCancel(ctx)
		var watch sync.WaitGroup
		watch.Go(func() {
			set.Watch(watching, slog.New(slog.DiscardHandler), func() []string { return []string{attacker} }, func(string) {})
		})
		defer watch.Wait()
		defer stop()
		errs := make([]error, len(cells))
		var writes sync.WaitGroup
		for i, c := range cells {
			writes.Go(func() { errs[i] = c.attack(ctx, call(function)) })
		}
		frozen := t.frozen(ctx, set, weak.time)
		writes.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		if t.check(frozen, "an owner's directory of %d MiB has a quota of %d MiB, and boxes may still write to it", diskMB(dir), quotaMB); !frozen {
			return nil
		}
		for _, c := range cells { // as the manager of boxes does
			c.destroy(ctx)
		}
		if weak.shared == nil {
			mounts = set.Peek(attacker)
		}
		before := contents(dir)
		c, err := t.boot(ctx, shape{volumes: mounts})
		if err != nil {
			return err
		}
		err = c.attack(ctx, call("quota_frozen"))
		t.check(maps.Equal(contents(dir), before), "a box changed files of a volume that is over its quota")
		return err
	}
}

const attacker = "attacker" // the owner

// owners makes volumes with a directory for each owner, with a quota: quotaMB by default.
func (t *trial) owners(quota int64) (set *volume.Set, parent string, err error) {
	dir, err := t.tempDir("owners")
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return nil, "", err
	}
	parent = filepath.Join(dir, "parent")
	if err := os.Mkdir(parent, 0o755); err != nil {
		return nil, "", err
	}
	if quota == 0 {
		quota = quotaMB << 20
	}
	set, err = volume.Open([]volume.Volume{{Host: parent, Guest: "/v", PerOwner: true, Quota: quota}}, filepath.Join(dir, "empty"))
	return set, parent, err
}

// frozen waits until boxes may only read the attacker's directory, and reports whether they
// may in time.
func (t *trial) frozen(ctx context.Context, set *volume.Set, most time.Duration) bool {
	if most == 0 {
		most = quotaTime
	}
	for end := time.Now().Add(most); time.Now().Before(end); {
		if set.Peek(attacker)[0].Frozen {
			return true
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			return false
		}
	}
	return false
}

// diskMB returns the disk space of what is below a directory.
func diskMB(dir string) int {
	var blocks int64
	seen := make(map[uint64]bool)
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error { // what cannot be read takes no space that matters
		if err != nil {
			return nil
		}
		if info, err := d.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok && !seen[st.Ino] {
				seen[st.Ino] = true
				blocks += st.Blocks
			}
		}
		return nil
	})
	return int(blocks >> 11)
}

// contents describes each file below a directory, by its path.
func contents(dir string) map[string]string {
	all := make(map[string]string)
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error { // an error is part of the description
		if d == nil { // there is no such directory
			return err
		}
		info, infoErr := d.Info()
		if err = errors.Join(err, infoErr); err != nil {
			all[path] = err.Error()
			return nil
		}
		all[path] = fmt.Sprint(info.Mode(), info.Size(), info.ModTime())
		return nil
	})
	return all
}

// ownersApart has owners whose names are paths, or differ little from those of others, use
// a directory each.
func ownersApart(_ context.Context, t *trial) error {
	set, parent, err := t.owners(0)
	if err != nil {
		return err
	}
	defer os.RemoveAll(filepath.Dir(parent))
	of := t.cfg.volumes.of
	if of == nil {
		of = func(_, owner string) string {
			mounts, err := set.Of(owner)
			if err != nil {
				t.broke("the owner %.40q gets no directory: %v", owner, err)
				return ""
			}
			return mounts[0].Host
		}
	}
	owners := []string{
		"alice", "Alice", "alice.", "alice ", " alice", "alice/", "./alice", "alice/data", "../parent/alice", "alice/../bob", "..", ".", "", "/", "/etc", "../empty",
		"_local", "token alice", "token-alice", "issuer alice", "al\x00ice", "alice\n", "ａlice", "\u0430lice", strings.Repeat("a", 255), strings.Repeat("a", 256), "{owner}", "data",
	}
	for _, owner := range owners[:len(owners):len(owners)] { // names of directories as owners
		owners = append(owners, volume.DirName(owner))
	}
	users := make(map[string]string) // of directories
	for _, owner := range owners {
		dir := of(parent, owner)
		if dir == "" {
			continue
		}
		real, err := filepath.EvalSymlinks(dir)
		if err != nil {
			t.broke("the directory of the owner %.40q: %v", owner, err)
			continue
		}
		within := filepath.Dir(filepath.Dir(real)) == parent && filepath.Base(real) == "data"
		t.check(within, "the directory of the owner %.40q is %s", owner, strings.TrimPrefix(real, filepath.Dir(parent)))
		other, taken := users[strings.ToLower(real)]
		t.check(!taken || other == owner, "the owners %.40q and %.40q share a directory", owner, other)
		users[strings.ToLower(real)] = owner
	}
	entries, err := os.ReadDir(filepath.Dir(parent))
	for _, e := range entries {
		t.check(e.Name() == "parent" || e.Name() == "empty", "%s appeared beside the directories of owners", e.Name())
	}
	if err != nil {
		return fmt.Errorf("list the directory above: %w", err)
	}
	return nil
}
