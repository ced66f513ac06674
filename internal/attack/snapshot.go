//go:build linux

package attack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

func snapshotClass() class {
	tampered := func(name, claim string, f func(*trial, string) error) Attack {
		return Attack{Name: name, Claim: claim, run: tamper(f)}
	}
	return class{
		name:  "snapshot",
		about: "Snapshots are damaged, exchanged and tampered with, with right checksums too, and restored.",
		attacks: []Attack{
			tampered("truncated", "a truncated snapshot is refused", truncateLargest),
			tampered("flipped-bit", "a snapshot with one flipped bit is refused", flipBit),
			tampered("no-manifest", "a snapshot without a manifest is refused", removeManifest),
			tampered("empty-manifest", "a snapshot with an empty manifest is refused", func(_ *trial, dir string) error { return editManifest(dir, func([]byte) []byte { return nil }) }),
			tampered("deep-manifest", "a manifest of deeply nested lists is refused", func(_ *trial, dir string) error {
				return editManifest(dir, func([]byte) []byte { return bytes.Repeat([]byte("["), 100_000) })
			}),
			tampered("huge-manifest", "a manifest of 256 MiB is refused without being read", func(_ *trial, dir string) error {
				path, err := manifestOf(dir)
				if err != nil {
					return err
				}
				return os.Truncate(path, 256<<20)
			}),
			tampered("other-version", "a snapshot of another version is refused", replaceVersions),
			tampered("symlink", "a link in place of a snapshot's file is not followed to a file of the host", linkToSecret),
			tampered("hard-link", "a file that is also linked elsewhere is verified like any other", hardLink),
			tampered("fifo", "a pipe in place of a snapshot's file does not block a restore", fifo),
			tampered("directory", "a directory in place of a snapshot's file is refused", directory),
			tampered("sparse", "a file that was extended by a terabyte of holes is refused quickly", extend),
			{Name: "right-checksums", Claim: "pages tampered with under right checksums harm at most the restored box", run: tamperSealed},
			{Name: "other-limits", Claim: "a snapshot cannot be restored with other limits", run: otherLimits},
			{Name: "id-in-use", Claim: "a restore cannot take the id of a living box", run: idInUse},
			{Name: "randomness", Claim: "two boxes from one snapshot share no random numbers", run: randomness},
			{Name: "full-disk", Claim: "a snapshot on a full file system fails, leaves nothing, and the box goes on", run: fullDisk},
			{Name: "incompressible", Claim: "a snapshot of random memory and files stays within the limits of the box", Alone: true, run: incompressible},
		},
	}
}

// stored boots a box with a Python interpreter and stores it in a new directory.
func (t *trial) stored(ctx context.Context) (*cell, string, error) {
	if !t.cfg.Maker.Snapshots() {
		return nil, "", skip("the engine has no snapshots")
	}
	c, err := t.boot(ctx, shape{})
	if err != nil {
		return nil, "", err
	}
	if err := c.m.Start(ctx, box.Python, nil); err != nil {
		return nil, "", err
	}
	dir, err := t.tempDir("stored")
	if err != nil {
		return nil, "", err
	}
	if err := c.m.Snapshot(ctx, dir); err != nil {
		return nil, "", fmt.Errorf("store the box: %w", err)
	}
	return c, dir, nil
}

// tempDir makes a directory that is removed with the run.
func (t *trial) tempDir(name string) (string, error) {
	dir := filepath.Join(t.cfg.Dir, name+"-"+t.nonce)
	return dir, os.Mkdir(dir, 0o700)
}

// restoreTime bounds the refusal or the restore of a small snapshot.
const restoreTime = 10 * time.Second

// tamper stores a box, changes the snapshot with f, and restores it.
func tamper(f func(t *trial, dir string) error) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		_, dir, err := t.stored(ctx)
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if err := f(t, dir); err != nil {
			return fmt.Errorf("tamper with the snapshot: %w", err)
		}
		return t.refusesRestore(ctx, dir)
	}
}

// refusesRestore checks that a snapshot is refused as invalid, in time.
func (t *trial) refusesRestore(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*restoreTime)
	defer cancel()
	start := time.Now()
	m, err := t.maker(shape{}).Restore(ctx, "attack-"+t.nonce+"-restored", small, dir, true)
	took := time.Since(start)
	if err == nil {
		t.adopt(m, small)
		t.broke("the snapshot was restored")
		return nil
	}
	t.check(took < restoreTime, "the snapshot was refused after %v", took)
	t.check(errors.Is(err, engine.ErrInvalid), "the error does not say that the snapshot is invalid: %v", err)
	t.bait.checkText(t, "the error", err.Error())
	return nil
}

// tamperSealed changes pages and repairs every checksum of the manifest, as somebody
// with access to the state directory could. The restored box may die.
func tamperSealed(ctx context.Context, t *trial) error {
	_, dir, err := t.stored(ctx)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	list, err := files(dir)
	if err != nil {
		return err
	}
	old, err := sums(list)
	if err != nil {
		return err
	}
	if err := change(list[0], func(b []byte) {
		for i := range b {
			if i%3 == 0 {
				b[i] ^= 0x5a
			}
		}
	}); err != nil {
		return err
	}
	now, err := sums(list)
	if err != nil {
		return err
	}
	if err := editManifest(dir, func(b []byte) []byte {
		for path, sum := range old {
			b = bytes.ReplaceAll(b, []byte(sum), []byte(now[path]))
		}
		return reseal(b)
	}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*restoreTime)
	defer cancel()
	start := time.Now()
	m, err := t.maker(shape{}).Restore(ctx, "attack-"+t.nonce+"-restored", small, dir, true)
	t.check(time.Since(start) < 2*restoreTime, "the restore took %v", time.Since(start))
	if err == nil {
		t.adopt(m, small)
	} else if strings.Contains(err.Error(), "damaged") || strings.Contains(err.Error(), "checksum") {
		return fmt.Errorf("the checksums were not repaired: %w", err)
	}
	return nil
}

func sums(paths []string) (map[string]string, error) {
	list := map[string]string{}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		list[path] = sumOf(b)
	}
	return list, nil
}

func otherLimits(ctx context.Context, t *trial) error {
	_, dir, err := t.stored(ctx)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	larger := small
	larger.MemoryMB *= 4
	larger.DiskMB *= 4
	m, err := t.maker(shape{}).Restore(ctx, "attack-"+t.nonce+"-restored", larger, dir, true)
	if err == nil {
		t.adopt(m, larger)
		t.broke("a snapshot of a small box was restored with four times its limits")
	}
	t.check(errors.Is(err, engine.ErrInvalid), "the error does not say that the snapshot is invalid: %v", err)
	return nil
}

func idInUse(ctx context.Context, t *trial) error {
	c, dir, err := t.stored(ctx)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	m, err := t.maker(shape{}).Restore(ctx, c.m.ID, small, dir, true)
	if err == nil {
		t.adopt(m, small)
		t.broke("a second box has the id of a living one")
	}
	t.check(errors.Is(err, engine.ErrExists), "the error does not say that the id is in use: %v", err)
	return nil
}

// randomCode prints random numbers of every generator of Python.
const randomCode = `
import os, random, uuid, secrets
r = [str(random.random()), str(uuid.uuid4()), os.urandom(16).hex(), secrets.token_hex(16)]
try:
    import numpy
    r.append(str(numpy.random.random()))
except ImportError:
    pass
print(" ".join(r))
`

// randomness compares random numbers of two copies.
func randomness(ctx context.Context, t *trial) error {
	_, dir, err := t.stored(ctx)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var seen [][]string
	for i := range 2 {
		m, err := t.maker(shape{}).Restore(ctx, fmt.Sprintf("attack-%s-copy%d", t.nonce, i), small, dir, true)
		if err != nil {
			return fmt.Errorf("restore a copy: %w", err)
		}
		t.adopt(m, small)
		var out output
		res, err := m.Agent.Run(ctx, protocol.Run{Kernel: box.Python, Language: box.Python, TimeoutMS: 10_000}, []byte(randomCode), &out)
		if err != nil || !res.OK {
			return fmt.Errorf("run code in a copy: %v, %w", res.Error, err)
		}
		seen = append(seen, strings.Fields(out.String()))
	}
	for _, number := range seen[0] {
		t.check(!slices.Contains(seen[1], number), "both copies drew %s", number)
	}
	return nil
}

// fullDisk stores a box on a small file system.
func fullDisk(ctx context.Context, t *trial) error {
	c, dir, err := t.stored(ctx)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("attack", dir, "tmpfs", 0, "size=4m"); err != nil {
		return skip("no tmpfs can be mounted: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	err = c.m.Snapshot(ctx, dir)
	t.check(errors.Is(err, engine.ErrExhausted), "storing a box on a full file system: %v", err)
	left, err := os.ReadDir(dir)
	t.check(err == nil && len(left) == 0, "a failed snapshot left %v, %v", left, err)
	return nil
}

// incompressible fills memory and disk with random bytes and measures the snapshot.
func incompressible(ctx context.Context, t *trial) error {
	if !t.cfg.Maker.Snapshots() {
		return skip("the engine has no snapshots")
	}
	c, err := t.boot(ctx, shape{})
	if err != nil {
		return err
	}
	// The memory is kept by a process in the background.
	e := c.exec(ctx, protocol.Exec{Shell: t.python() + ` -c 'import os,time
x=os.urandom(64<<20); f=open("r","wb"); f.write(x)
try:
    f.write(x)
except OSError: pass
print("filled",flush=True); time.sleep(100)' & sleep 5`}, nil, 0, nil)
	if e.err != nil {
		return e.err
	}
	dir, err := t.tempDir("stored")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := c.m.Snapshot(ctx, dir); err != nil {
		return fmt.Errorf("store the box: %w", err)
	}
	var size int64
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if info, ierr := d.Info(); err == nil && ierr == nil && info.Mode().IsRegular() {
			size += info.Size()
		}
		return err
	})
	const agentAndState = 64 + 64
	bound := int64(small.MemoryMB+small.DiskMB+agentAndState) << 20
	t.check(size <= bound, "the snapshot has %d MiB, more than %d", size>>20, bound>>20)
	return err
}
