//go:build linux && (amd64 || arm64)

package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/hostdisk"
)

// stateRoom is the disk space of a snapshot beside the guest's pages: the state of a
// kernel with some hundred processes.
const stateRoom = 16 << 20

// settleTime bounds the wait for the guest to read its input; a busy guest does not
// wait for input either.
const settleTime = 100 * time.Millisecond

// maxStaged is the largest snapshot, in bytes of pages, that is staged in memory. The
// copy counts as the guest's memory and has to fit into memoryOverhead.
const maxStaged = 96 << 20

// maxInMemory is the largest snapshot, in bytes of pages, that is written to a tmpfs: the
// host's kernel counts its pages as the memory of the guest, whose sentry writes them.
const maxInMemory = 160 << 20

// snapshot writes the guest into dir. See engine.Snapshotter.
func (g *guest) snapshot(ctx context.Context, dir string) error {
	err := g.trySnapshot(ctx, dir)
	switch {
	case err == nil:
		return nil
	case exhausted(err, "") && !errors.Is(err, engine.ErrExhausted):
		return fmt.Errorf("%w: %w", err, engine.ErrExhausted)
	case !isSentinel(err) && context.Cause(ctx) == nil:
		return fmt.Errorf("%w: %w", err, engine.ErrUnavailable)
	}
	return err
}

func (g *guest) trySnapshot(ctx context.Context, dir string) error {
	if err := g.enter(ctx); err != nil {
		return err
	}
	pages, memory := g.pages(), inMemory(dir)
	err := g.e.checkRoom(dir, pages)
	if err == nil && memory && pages > maxInMemory {
		err = fmt.Errorf("%q is in memory, where a guest's snapshot may take %d MiB; it needs %d: %w", dir, maxInMemory>>20, pages>>20, engine.ErrExhausted)
	}
	if err != nil {
		g.leave()
		return err
	}
	limit := g.e.hangLimit + time.Duration(pages/slowestDisk)*time.Second
	return g.write(ctx, dir, pages <= maxStaged && !memory, limit)
}

// slowestDisk is the rate, in bytes a second, at which a disk that other guests use too
// must take the pages of one snapshot for the sentry not to be considered hung.
const slowestDisk = 256 << 10

// inMemory reports whether a directory is on a tmpfs.
func inMemory(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.TMPFS_MAGIC
}

// pages returns an upper bound of a snapshot's pages in bytes.
func (g *guest) pages() uint64 {
	n := allocated(memoryFile(g.sentry.Process.Pid))
	if info, err := g.disk.Stat(); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			n += uint64(st.Blocks) * 512
		}
	}
	return n
}

// checkRoom returns ErrExhausted if the disk is too full for a snapshot, so that the
// guest does not stop for one that must fail. On the disk that guests write to, it
// leaves what is reserved.
func (e *Engine) checkRoom(dir string, pages uint64) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("find directory %q: %w: %w", dir, err, engine.ErrInvalid)
	}
	defer f.Close()
	free, err := hostdisk.Free(f)
	if err != nil {
		return err
	}
	need, have := pages+stateRoom, uint64(free)
	kept, err := e.disk.kept(dir)
	if err != nil {
		return err
	}
	have -= min(have, kept)
	if have < need {
		return fmt.Errorf("the disk has %d MiB left, up to %d MiB are needed: %w", have>>20, need>>20, engine.ErrExhausted)
	}
	return nil
}

// write writes the snapshot and leaves; the caller has called enter. After an error
// dir is empty. For limit see callSentry.
func (g *guest) write(ctx context.Context, dir string, stage bool, limit time.Duration) error {
	img, files, err := newImage(dir, stage)
	if err != nil {
		g.leave()
		return err
	}
	defer img.close()
	m := newManifest(g.made)
	m.Renewed = g.renewed
	m.Disk = fileBytes(g.disk)
	// The call owns the files, since it may outlive this function.
	err = g.callSentry(ctx, limit, func() error {
		defer closeAll(files)
		// The sentry saves the guest's unread input but does not wake a reader for it:
		// the reader would not see that input until more arrives.
		defer g.link.Hold(settleTime)()
		return g.still(func() error {
			if err := g.save(files); err != nil {
				return err
			}
			// By now the sentry has closed its cached files.
			m.HostFiles = g.hostFiles()
			return nil
		})
	})
	if err == nil {
		err = img.commit(ctx, m)
	}
	if err != nil {
		return errors.Join(err, img.remove())
	}
	return nil
}

// still calls do while the guest is paused.
func (g *guest) still(do func() error) error {
	if g.paused {
		return do()
	}
	if err := g.callPause(true); err != nil {
		return err
	}
	return errors.Join(do(), g.callPause(false))
}

// save makes the sentry write the guest into files. Compression would take longer
// than writing.
func (g *guest) save(files []*os.File) error {
	opts := &control.SaveOpts{
		Metadata:      statefile.CompressionLevelNone.ToMetadata(),
		HavePagesFile: true,
		FilePayload:   urpc.FilePayload{Files: files},
		Resume:        true,
	}
	return g.control(context.Background(), func(c *urpc.Client) error {
		return c.Call(boot.ContMgrCheckpoint, opts, nil)
	})
}

// Restore boots a guest from a snapshot. See engine.Snapshotter.
func (e *Engine) Restore(ctx context.Context, id string, spec *engine.Spec, s engine.Snapshot) (engine.Guest, error) {
	g, err := e.restore(ctx, id, spec, s)
	if err != nil {
		return nil, fmt.Errorf("restore guest %q: %w", id, err)
	}
	return g, nil
}

func (e *Engine) restore(ctx context.Context, id string, spec *engine.Spec, s engine.Snapshot) (*guest, error) {
	p, err := e.plan(ctx, id, spec)
	if err != nil {
		return nil, err
	}
	m, files, err := openImage(s.Dir)
	if err != nil {
		return nil, err
	}
	defer closeAll(files)
	if err := m.fits(p.made); err != nil {
		return nil, err
	}
	p.disk = max(m.Disk, 0)
	// Reading everything takes as long as the kernel's boot, so both run concurrently.
	checking, stop := context.WithCancelCause(ctx)
	checked := make(chan error, 1)
	go func() {
		if err := m.mapped(p.tree); err != nil {
			checked <- err
			return
		}
		checked <- m.check(checking, files, e.checks)
	}()
	done := false
	defer func() {
		stop(nil)
		if !done {
			<-checked
		}
	}()
	return e.bootPlan(ctx, id, p, func(g *guest, ctx context.Context) error {
		err := <-checked
		done = true
		if err != nil {
			return err
		}
		return g.load(ctx, m, files)
	})
}

// fits returns ErrInvalid if the snapshot is of another spec.
func (m *manifest) fits(made fixedSpec) error {
	if what := m.Spec.differs(made); what != "" {
		return fmt.Errorf("the snapshot is %s: %w", what, engine.ErrInvalid)
	}
	return nil
}

// mapped returns an error that names a file of the root which has changed since
// the guest opened it.
func (m *manifest) mapped(root *engine.Tree) error {
	if path := changed(m.HostFiles, root); path != "" {
		return fmt.Errorf("%s, which it had open, has changed or is gone: %w", path, engine.ErrInvalid)
	}
	return nil
}

// InspectSnapshot returns what Restore needs. See engine.Snapshotter.
func (e *Engine) InspectSnapshot(_ context.Context, s engine.Snapshot) (engine.SnapshotInfo, error) {
	m, files, err := openImage(s.Dir)
	if err != nil {
		return engine.SnapshotInfo{}, err
	}
	closeAll(files)
	return engine.SnapshotInfo{RootKey: m.Spec.RootKey, Agent: m.Spec.Agent}, nil
}

// CheckSnapshot returns why Restore would reject a snapshot. See
// engine.Snapshotter.
func (e *Engine) CheckSnapshot(ctx context.Context, spec *engine.Spec, s engine.Snapshot) error {
	p, err := e.plan(ctx, "check", spec)
	if err != nil {
		return err
	}
	m, files, err := openImage(s.Dir)
	if err != nil {
		return err
	}
	closeAll(files)
	if err := m.fits(p.made); err != nil {
		return err
	}
	return m.mapped(p.tree)
}

// RemoveSnapshot does nothing: the directory holds everything. See
// engine.Snapshotter.
func (e *Engine) RemoveSnapshot(context.Context, engine.Snapshot) error { return nil }

// load makes the sentry load a snapshot and run it, even if the guest was paused.
func (g *guest) load(ctx context.Context, m *manifest, files []*os.File) error {
	opts := &boot.RestoreOpts{
		FilePayload:   urpc.FilePayload{Files: files},
		HavePagesFile: true,
		// The guest runs as soon as its kernel is loaded; pages are read in the
		// background and on demand.
		Background: true,
	}
	err := g.control(ctx, func(c *urpc.Client) error {
		if err := setUpLoopback(c); err != nil {
			return err
		}
		if err := c.Call(boot.ContMgrRestore, opts, nil); err != nil {
			var remote urpc.RemoteError
			return &loadError{cause: err, answered: errors.As(err, &remote)}
		}
		return nil
	})
	if err != nil {
		return err
	}
	// A new connection: the first one is to the kernel before the restore.
	return g.control(ctx, func(c *urpc.Client) error { return g.renew(c, m.Renewed) })
}

// renew mounts a /proc that was not in the snapshot over the one that was: it has
// the identity of the boot, which copies of one guest must not share. Only one
// such mount is kept however often a guest comes back; the first /proc stays below
// it, so that there always is one.
func (g *guest) renew(c *urpc.Client, again bool) error {
	if again {
		opts := &control.UmountOpts{Target: "/proc", Flags: unix.MNT_DETACH}
		if err := c.Call("Fs.Umount", opts, nil); err != nil {
			return fmt.Errorf("unmount /proc: %w", err)
		}
	}
	opts := &control.MountOpts{
		Source: "proc", Target: "/proc", FSType: "proc",
		Flags: unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV,
	}
	if err := c.Call("Fs.Mount", opts, nil); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	g.renewed = true
	return nil
}

// notLoaded says in plain words why a sentry may not load a snapshot that fits in all
// that its manifest describes.
func notLoaded(made fixedSpec) string {
	if len(made.Mounts) > 0 {
		return "its stored memory cannot be loaded, perhaps because files of a volume that it had open are gone, or because an earlier version of Glovebox opened volumes in another way"
	}
	return "its stored memory cannot be loaded, perhaps because an earlier version of Glovebox wrote it"
}

// unloadable is the error of a snapshot that a sentry could not load, which is at fault.
type unloadable struct {
	why   string // of notLoaded
	cause error
}

// Error has the words of the sentry too.
func (e *unloadable) Error() string { return fmt.Sprintf("%s (%v)", e.why, e.cause) }
func (e *unloadable) Unwrap() error { return e.cause }

// Public is the clause for clients, who cannot use the message of the sentry.
func (e *unloadable) Public() string { return e.why }

// loadError is the error of a sentry that could not load a snapshot. The snapshot is
// at fault unless the sentry or the gofer was killed.
type loadError struct {
	cause    error
	answered bool // the sentry returned the error; otherwise it ended
}

func (e *loadError) Error() string { return "load snapshot: " + e.cause.Error() }
func (e *loadError) Unwrap() error { return e.cause }
