package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/syncfile"
)

// referenceName is the file in a snapshot's directory with the reference of an
// engine that keeps the snapshot itself.
const referenceName = "engine-reference"

// maxReference is the contract's bound of a reference.
const maxReference = 1 << 10

// Snapshot stores the machine in dir, an existing, empty directory; see
// engine.Snapshotter. Operations on the agent connection continue here, and are ended in
// machines restored from the snapshot.
func (m *Machine) Snapshot(ctx context.Context, dir string) error {
	s, err := ability[engine.Snapshotter](m, "snapshot")
	if err != nil {
		return err
	}
	ref, err := s.Snapshot(ctx, m.ID, dir)
	if err != nil || ref == "" {
		return err
	}
	if err := writeReference(dir, ref); err != nil {
		freeing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		return errors.Join(fmt.Errorf("snapshot machine %q: %w", m.ID, err), s.RemoveSnapshot(freeing, engine.Snapshot{Dir: dir, Ref: ref}))
	}
	return nil
}

// writeReference makes dir refer to a snapshot that the engine keeps. After an
// error dir is empty.
func writeReference(dir, ref string) error {
	if len(ref) > maxReference {
		return fmt.Errorf("the engine's reference has %d bytes, more than %d", len(ref), maxReference)
	}
	return syncfile.Create(filepath.Join(dir, referenceName), []byte(ref))
}

// locate returns the snapshot in dir.
func locate(dir string) (engine.Snapshot, error) {
	s := engine.Snapshot{Dir: dir}
	path := filepath.Join(dir, referenceName)
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return s, nil // the engine finds out what the directory holds
	}
	if err != nil {
		return s, fmt.Errorf("read snapshot: %w", err)
	}
	if info.Size() > maxReference {
		return s, fmt.Errorf("read snapshot: the file %q has %d bytes, more than %d: %w", referenceName, info.Size(), maxReference, engine.ErrInvalid)
	}
	ref, err := os.ReadFile(path)
	if err != nil {
		return s, fmt.Errorf("read snapshot: %w", err)
	}
	s.Ref = string(ref)
	return s, nil
}

// snapshotter returns the ability of the engine and the snapshot in dir.
func (k *Maker) snapshotter(dir string) (engine.Snapshotter, engine.Snapshot, error) {
	s, ok := engine.As[engine.Snapshotter](k.Engine)
	if !ok {
		return nil, engine.Snapshot{}, fmt.Errorf("the engine has no snapshots: %w", engine.ErrUnsupported)
	}
	at, err := locate(dir)
	return s, at, err
}

// Restore makes a machine that continues from the snapshot in dir, including
// kernels and files. limits are those of the snapshot's machine. copied says that
// another machine continues from the snapshot as well: the agent then reseeds the
// kernels before they run anything. Errors: those of engine.Snapshotter and Boot.
func (k *Maker) Restore(ctx context.Context, id string, limits engine.Limits, dir string, copied bool) (*Machine, error) {
	s, at, err := k.snapshotter(dir)
	if err != nil {
		return nil, fmt.Errorf("restore machine %q: %w", id, err)
	}
	spec := k.Spec(limits)
	guest, err := s.Restore(ctx, id, &spec, at)
	if err != nil {
		return nil, err
	}
	return k.greet(ctx, id, guest, limits, copied, client.Resume)
}

// InspectSnapshot returns what is needed to restore the snapshot in dir.
func (k *Maker) InspectSnapshot(ctx context.Context, dir string) (engine.SnapshotInfo, error) {
	s, at, err := k.snapshotter(dir)
	if err != nil {
		return engine.SnapshotInfo{}, fmt.Errorf("inspect snapshot: %w", err)
	}
	return s.InspectSnapshot(ctx, at)
}

// CheckSnapshot returns the error with which Restore would reject the snapshot in
// dir, without reading large files.
func (k *Maker) CheckSnapshot(ctx context.Context, limits engine.Limits, dir string) error {
	s, at, err := k.snapshotter(dir)
	if err != nil {
		return fmt.Errorf("check snapshot: %w", err)
	}
	spec := k.Spec(limits)
	return s.CheckSnapshot(ctx, &spec, at)
}

// RemoveSnapshot frees what the engine keeps of the snapshot in dir, if there is
// one. The caller removes dir.
func (k *Maker) RemoveSnapshot(ctx context.Context, dir string) error {
	s, at, err := k.snapshotter(dir)
	if err != nil {
		return fmt.Errorf("remove snapshot: %w", err)
	}
	if at.Ref == "" {
		return nil
	}
	return s.RemoveSnapshot(ctx, at)
}
