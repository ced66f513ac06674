//go:build linux && (amd64 || arm64)

package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/hostdisk"
)

// smallDisk returns a directory with a file system of its own.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// openDisk opens an engine whose guests write to dir.
func openDisk(t *testing.T, dir string, policy hostdisk.Policy) *Engine {
	t.Helper()
	e, err := Open(t.Context(), Config{StateDir: dir, Disk: policy})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return e
}

func diskUse(t *testing.T, e *Engine) hostdisk.Use {
	t.Helper()
	use, err := e.Disk()
	if err != nil {
		t.Fatal(err)
	}
	return use
}

// TestDisk_AGuestCannotFillTheDisk: a guest that may write more than the file system
// holds is ended before it is full, and another guest can write what is guaranteed.
func TestDisk_AGuestCannotFillTheDisk(t *testing.T) {
	const reserve = 96 << 20
	e := openDisk(t, smallDisk(t, "384m"), hostdisk.Policy{Guaranteed: 0.1, Reserve: reserve})
	spec := newSpec(t)
	spec.Limits.DiskMB = 512 // of which 51 are guaranteed
	greedy, neighbour := create(t, e, "greedy", spec), create(t, e, "neighbour", spec)
	neighbour.ask(t, "shu head -c 4194304 /dev/zero > /tmp/early")
	greedy.send(t, "shu head -c 500000000 /dev/zero > /tmp/file")
	exit := wait(t, greedy)
	if exit.Reason != engine.ExitDisk || !strings.Contains(exit.Detail, "51 MiB were guaranteed") {
		t.Errorf("the guest that filled the disk ended with %+v, want %s with its guarantee", exit, engine.ExitDisk)
	}
	if got := neighbour.ask(t, "shu head -c 41943040 /dev/zero > /tmp/file; stat -c %s /tmp/file"); !strings.Contains(got, "41943040") {
		t.Errorf("the neighbour wrote within its guarantee: %q", got)
	}
	if use := diskUse(t, e); use.Room < 0 || use.Free < reserve {
		t.Errorf("after the end of the guest: %+v", use)
	}
}

// TestDisk_AGuestMayUseWhatIsFree: without shortage, only the guest's own limit counts.
func TestDisk_AGuestMayUseWhatIsFree(t *testing.T) {
	e := openDisk(t, smallDisk(t, "256m"), hostdisk.Policy{Guaranteed: 0.1, Reserve: 16 << 20})
	spec := newSpec(t)
	spec.Limits.DiskMB = 100
	b := create(t, e, "one", spec)
	if got := b.ask(t, "shu head -c 90000000 /dev/zero > /tmp/file; stat -c %s /tmp/file"); !strings.Contains(got, "90000000") {
		t.Errorf("a guest below its limit: %q", got)
	}
	if got := b.ask(t, "shu head -c 90000000 /dev/zero > /tmp/more"); !strings.Contains(got, "No space left") {
		t.Errorf("a guest over its limit: %q, want an error of its program", got)
	}
}

// TestDisk_Admission: no guest starts without room for what is guaranteed to it, counted
// with the guests of all engines on the state directory.
func TestDisk_Admission(t *testing.T) {
	dir := smallDisk(t, "256m")
	policy := hostdisk.Policy{Guaranteed: 1, Reserve: 32 << 20}
	one, two := openDisk(t, dir, policy), openDisk(t, dir, policy)
	spec := newSpec(t)
	spec.Limits.DiskMB = 100
	first := create(t, one, "first", spec)
	second := create(t, two, "second", spec)
	refused := func(e *Engine, when string) {
		t.Helper()
		_, err := e.Create(t.Context(), "third", spec)
		if !errors.Is(err, hostdisk.ErrFull) || !errors.Is(err, engine.ErrExhausted) {
			t.Fatalf("a third guest %s: %v, want %v", when, err, hostdisk.ErrFull)
		}
	}
	refused(one, "beside two")
	refused(two, "beside two")

	// Written bytes do not count as reserved any more.
	reserved := diskUse(t, one).Reserved
	first.ask(t, "shu head -c 50000000 /dev/zero > /tmp/file")
	if got := diskUse(t, one).Reserved; got > reserved-50_000_000 {
		t.Errorf("%d bytes are reserved after a guest wrote 50,000,000, %d before", got, reserved)
	}
	refused(one, "beside two that write")

	if err := second.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	third := create(t, two, "third", spec)
	if err := third.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}

	// The reservation of a killed process does not count.
	dead := filepath.Join(dir, "gvisor", "1-dead")
	if err := os.Mkdir(dead, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lock", reservedName} {
		if err := os.WriteFile(filepath.Join(dead, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(filepath.Join(dead, reservedName), 1<<40); err != nil {
		t.Fatal(err)
	}
	create(t, one, "third", spec)
}

// TestDisk_Others: what the policy leaves to others is no room for guests.
func TestDisk_Others(t *testing.T) {
	var left atomic.Int64
	e := openDisk(t, smallDisk(t, "256m"), hostdisk.Policy{Guaranteed: 0.5, Others: func(free int64) int64 { return left.Load() }})
	spec := newSpec(t)
	spec.Limits.DiskMB = 100
	left.Store(230 << 20)
	if _, err := e.Create(t.Context(), "one", spec); !errors.Is(err, hostdisk.ErrFull) {
		t.Errorf("got %v, want %v", err, hostdisk.ErrFull)
	}
	if use := diskUse(t, e); use.Reserved != 0 {
		t.Errorf("%d bytes are reserved for a guest that was refused", use.Reserved)
	}
	left.Store(100 << 20)
	create(t, e, "one", spec)
}

// TestDisk_SnapshotsLeaveWhatIsReserved: a snapshot on the disk that guests write to does
// not take what is guaranteed to them, and a restored guest needs room for its files.
func TestDisk_SnapshotsLeaveWhatIsReserved(t *testing.T) {
	dir := smallDisk(t, "384m")
	e := openDisk(t, dir, hostdisk.Policy{Guaranteed: 0.5, Reserve: 32 << 20})
	spec := newSpec(t)
	spec.Limits.DiskMB = 200
	b := create(t, e, "one", spec)
	b.ask(t, "shu head -c 140000000 /dev/urandom > /tmp/file")
	if err := os.Mkdir(filepath.Join(dir, "snapshot"), 0o700); err != nil {
		t.Fatal(err)
	}
	other := create(t, e, "other", spec) // 100 of about 220 MiB
	if _, err := e.Snapshot(t.Context(), "one", filepath.Join(dir, "snapshot")); !errors.Is(err, engine.ErrExhausted) {
		t.Errorf("a snapshot into reserved space: %v, want %v", err, engine.ErrExhausted)
	}
	if got := b.ask(t, "echo alive"); got != "alive" {
		t.Errorf("after a snapshot without room: %q", got)
	}
	if err := other.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	elsewhere := snapshotOf(t, e, b)
	if err := b.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	restore(t, e, "again", spec, elsewhere)
	if use := diskUse(t, e); use.Free+140_000_000 > 384<<20 || use.Reserved < 60<<20 {
		t.Errorf("with a restored guest of 140,000,000 bytes: %+v", use)
	}
}

// TestDisk_OthersKeepTheirShare: the policy learns the same free space however much of it
// guests have written. Otherwise others' share would shrink as guests write.
func TestDisk_OthersKeepTheirShare(t *testing.T) {
	var free atomic.Int64
	policy := hostdisk.Policy{Guaranteed: 0.1, Others: func(n int64) int64 { free.Store(n); return 0 }}
	e := openDisk(t, smallDisk(t, "256m"), policy)
	b := create(t, e, "one", newSpec(t))
	diskUse(t, e)
	before := free.Load()
	b.ask(t, "shu head -c 100000000 /dev/zero > /tmp/file")
	use := diskUse(t, e)
	if use.Free > before-100_000_000 {
		t.Fatalf("%d bytes are free after a write of 100,000,000, %d before", use.Free, before)
	}
	if got := free.Load(); got < before-1<<20 || got > before {
		t.Errorf("the policy divides %d bytes after a guest wrote, %d before", got, before)
	}
}
