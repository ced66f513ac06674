//go:build linux && (amd64 || arm64)

package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/hostdisk"
	"github.com/glovebox-dev/glovebox/internal/polltest"
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

// TestDisk_GuestCannotFillIt: a guest that may write more than the file system holds is
// ended before it is full, and another guest can write its guaranteed part.
func TestDisk_GuestCannotFillIt(t *testing.T) {
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

// TestDisk_GuestMayUseFreeSpace: without shortage, only the guest's own limit counts.
func TestDisk_GuestMayUseFreeSpace(t *testing.T) {
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

// TestDisk_Admission: a guest starts only with room for its guaranteed part, counted with
// the guests of all engines on the state directory.
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
	deadInstance(t, dir)
	create(t, one, "third", spec)
}

// TestDisk_PolicyReservesForOthers: the space that the policy leaves to others is no room
// for guests, except for the only one, and the space to leave free not even for that.
func TestDisk_PolicyReservesForOthers(t *testing.T) {
	var left atomic.Int64
	left.Store(230 << 20)
	policy := hostdisk.Policy{Guaranteed: 0.5, Reserve: 32 << 20, Others: func(free int64) int64 { return left.Load() }}
	dir := smallDisk(t, "256m")
	e := openDisk(t, dir, policy)
	spec := newSpec(t)
	spec.Limits.DiskMB = 100
	one := create(t, e, "one", spec)
	use := diskUse(t, e)
	if _, err := e.Create(t.Context(), "two", spec); !errors.Is(err, hostdisk.ErrFull) {
		t.Errorf("a second guest: got %v, want %v", err, hostdisk.ErrFull)
	}
	if got := diskUse(t, e); got.Reserved > use.Reserved {
		t.Errorf("%d bytes are reserved after a guest was refused, %d before", got.Reserved, use.Reserved)
	}
	left.Store(100 << 20)
	two := create(t, e, "two", spec)
	for _, b := range []*box{one, two} {
		if err := b.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	policy.Reserve = 220 << 20
	if _, err := openDisk(t, dir, policy).Create(t.Context(), "one", spec); !errors.Is(err, hostdisk.ErrFull) {
		t.Errorf("the only guest, which would write into the reserve: got %v, want %v", err, hostdisk.ErrFull)
	}
}

// TestDisk_RefusedGuestReservesNothing: other instances do not see the reservation of a
// refused guest, which could end their guests.
func TestDisk_RefusedGuestReservesNothing(t *testing.T) {
	dir := smallDisk(t, "256m")
	var most atomic.Int64
	e := openDisk(t, dir, hostdisk.Policy{Guaranteed: 1, Others: func(int64) int64 { // called while the guest is admitted
		names, err := filepath.Glob(filepath.Join(dir, "gvisor", "*", reservedName))
		if err != nil || len(names) != 1 {
			t.Errorf("reservations: %v, %v", names, err)
			return 0
		}
		if info, err := os.Stat(names[0]); err == nil {
			most.Store(max(most.Load(), info.Size()))
		}
		return 0
	}})
	spec := newSpec(t)
	spec.Limits.DiskMB = 300
	if _, err := e.Create(t.Context(), "one", spec); !errors.Is(err, hostdisk.ErrFull) {
		t.Fatalf("got %v, want %v", err, hostdisk.ErrFull)
	}
	if got := most.Load(); got != 0 {
		t.Errorf("%d bytes were reserved for a guest that was refused", got)
	}
}

// TestDisk_KilledInstanceEndsNoGuest: the reservations of a killed process do not count
// against a guest that exceeds its part.
func TestDisk_KilledInstanceEndsNoGuest(t *testing.T) {
	dir := smallDisk(t, "256m")
	e := openDisk(t, dir, hostdisk.Policy{Guaranteed: 0.1, Reserve: 16 << 20})
	spec := newSpec(t)
	spec.Limits.DiskMB = 512
	b := create(t, e, "one", spec)
	b.ask(t, "shu head -c 100000000 /dev/zero > /tmp/file")
	dead := deadInstance(t, dir)
	b.ask(t, "shu head -c 10000000 /dev/zero > /tmp/more")
	e.disk.look()
	if got := b.ask(t, "echo alive"); got != "alive" {
		t.Errorf("the guest answers %q", got)
	}
	if _, err := os.Stat(dead); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of the killed process: %v, want it removed", err)
	}
}

// deadInstance makes the directory of a killed process that had reserved the whole disk.
func deadInstance(t *testing.T, dir string) string {
	t.Helper()
	dead := filepath.Join(dir, "gvisor", "1-dead")
	if err := os.Mkdir(dead, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dead, reservedName))
	if err == nil {
		err = errors.Join(f.Truncate(1<<40), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dead, "lock"), nil, 0o600); err != nil { // last: then it may be removed
		t.Fatal(err)
	}
	return dead
}

// TestDisk_GuestThatFilledItEnds, also if another one writes the last bytes.
func TestDisk_GuestThatFilledItEnds(t *testing.T) {
	e := openDisk(t, smallDisk(t, "256m"), hostdisk.Policy{Guaranteed: 0.1, Reserve: 32 << 20})
	spec := newSpec(t)
	spec.Limits.DiskMB = 512 // of which 51 are guaranteed
	hog, other := create(t, e, "hog", spec), create(t, e, "other", spec)
	hog.ask(t, "shu head -c 150000000 /dev/zero > /tmp/file")
	e.disk.look()
	e.disk.look() // it does not write any more
	if got := other.ask(t, "shu head -c 100000000 /dev/zero > /tmp/file; stat -c %s /tmp/file"); !strings.Contains(got, "100000000") {
		t.Errorf("the other guest: %q", got)
	}
	e.disk.look()
	if exit := wait(t, hog); exit.Reason != engine.ExitDisk {
		t.Errorf("the guest that filled the disk ended with %+v, want %s", exit, engine.ExitDisk)
	}
	if got := other.ask(t, "echo alive"); got != "alive" {
		t.Errorf("the other guest answers %q", got)
	}
}

// TestDisk_FilesOfRestoredGuestCount: a restore does not give a guest a larger part.
func TestDisk_FilesOfRestoredGuestCount(t *testing.T) {
	restored := &quota{guaranteed: 210, part: 10, used: 200, guest: &guest{}}
	fresh := &quota{guaranteed: 10, part: 10, used: 60, guest: &guest{}}
	booting := &quota{guaranteed: 1000, part: 10, used: 900}
	d := &disk{quotas: map[*quota]struct{}{restored: {}, fresh: {}, booting: {}}}
	if got := d.worstLocked(hostdisk.Use{Room: -1}, nil); got != restored {
		t.Errorf("the worst guest is %+v, want the restored one", got)
	}
}

// TestDisk_EndsGuestOfGreediestOwner: an owner with several guests that each write a
// little too much does not make another owner's only guest end.
func TestDisk_EndsGuestOfGreediestOwner(t *testing.T) {
	owners := map[string]string{"many-1": "many", "many-2": "many", "many-3": "many", "one": "one"}
	e := openDisk(t, smallDisk(t, "384m"), hostdisk.Policy{
		Guaranteed: 0.05, Reserve: 32 << 20, Owners: func() map[string]string { return owners },
	})
	spec := newSpec(t)
	spec.Limits.DiskMB = 400 // of which 20 are guaranteed
	write := func(b *box, mb string) { b.ask(t, "shu head -c "+mb+"000000 /dev/zero > /tmp/file") }
	many := make(map[string]*box)
	for _, id := range []string{"many-1", "many-2", "many-3"} {
		many[id] = create(t, e, id, spec)
		write(many[id], "70")
	}
	one := create(t, e, "one", spec)
	write(one, "95") // more than any of the others
	write(many["many-2"], "85")
	// No room is left then.
	if got := one.ask(t, "shu head -c 60000000 /dev/zero > /tmp/more; stat -c %s /tmp/more"); !strings.Contains(got, "60000000") {
		t.Errorf("the only guest of the other owner: %q", got)
	}
	if exit := wait(t, many["many-2"]); exit.Reason != engine.ExitDisk {
		t.Errorf("the largest guest of the owner who took most ended with %+v, want %s", exit, engine.ExitDisk)
	}
	if got := one.ask(t, "echo alive"); got != "alive" {
		t.Errorf("the only guest of the other owner answers %q", got)
	}
}

// TestDisk_SlowEndSparesOthers: while the files of a guest that was ended for lack of room
// are being freed, another guest ends only if that will not free enough; but the wait is
// bounded.
func TestDisk_SlowEndSparesOthers(t *testing.T) {
	dir := smallDisk(t, "256m")
	e := openDisk(t, dir, hostdisk.Policy{Guaranteed: 0.02, Reserve: 32 << 20})
	file, err := os.Create(filepath.Join(dir, "slow"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := unix.Fallocate(int(file.Fd()), 0, 0, 120<<20); err != nil {
		t.Fatal(err)
	}
	slow := &quota{guaranteed: 10 << 20, part: 10 << 20, file: file}
	endedBefore := func(d time.Duration) {
		e.disk.mu.Lock()
		defer e.disk.mu.Unlock()
		slow.ended = time.Now().Add(-d)
		e.disk.quotas[slow] = struct{}{}
	}
	endedBefore(10 * time.Second)
	defer e.disk.release(slow)

	spec := newSpec(t)
	spec.Limits.DiskMB = 512
	other := create(t, e, "other", spec)
	if got := other.ask(t, "shu head -c 112000000 /dev/zero > /tmp/file; stat -c %s /tmp/file"); !strings.Contains(got, "112000000") {
		t.Fatalf("while the space of an ended guest is being freed, the other guest: %q", got)
	}
	if use := diskUse(t, e); use.Room >= 0 {
		t.Fatalf("there is room: %+v", use)
	}
	e.disk.look()
	if got := other.ask(t, "shu echo x > /tmp/more; echo alive"); !strings.Contains(got, "alive") {
		t.Errorf("the other guest answers %q", got)
	}
	endedBefore(endWait)
	other.send(t, "shu head -c 1000000 /dev/zero > /tmp/again")
	if exit := wait(t, other); exit.Reason != engine.ExitDisk {
		t.Errorf("when the space is not freed in time, the other guest ended with %+v, want %s", exit, engine.ExitDisk)
	}
}

// TestDisk_EndsAnotherIfNotEnough: if the end of one guest does not free enough space, the
// next one ends at once.
func TestDisk_EndsAnotherIfNotEnough(t *testing.T) {
	ended := &quota{part: 10, used: 200, guest: &guest{id: "ended"}, ended: time.Now()}
	other := &quota{part: 10, used: 100, guest: &guest{id: "other"}}
	d := &disk{quotas: map[*quota]struct{}{ended: {}, other: {}}}
	if got := d.worstLocked(hostdisk.Use{Room: -200}, nil); got != nil {
		t.Errorf("the ended guest frees enough, but guest %q is to end too", got.guest.id)
	}
	ended.used = 0 // its file is being closed
	if got := d.worstLocked(hostdisk.Use{Room: -200}, nil); got != nil {
		t.Errorf("while the file is being closed, guest %q is to end too", got.guest.id)
	}
	if got := d.worstLocked(hostdisk.Use{Room: -201}, nil); got != other {
		t.Errorf("the ended guest does not free enough: the next one to end is %+v", got)
	}
}

// TestDisk_FloorOfReserve: while the space of an ended guest is being freed, a guest that
// goes on writing ends once half of the reserve is taken; one that does not write stays.
func TestDisk_FloorOfReserve(t *testing.T) {
	ended := &quota{part: 10, used: 1000, guest: &guest{id: "ended"}, ended: time.Now()}
	largest := &quota{part: 10, used: 200, guest: &guest{id: "largest"}}
	writer := &quota{part: 10, used: 100, guest: &guest{id: "writer"}, writes: true}
	within := &quota{part: 10, used: 10, guest: &guest{id: "within"}, writes: true}
	d := &disk{policy: hostdisk.Policy{Reserve: 80}, quotas: map[*quota]struct{}{ended: {}, largest: {}, writer: {}, within: {}}}
	if got := d.worstLocked(hostdisk.Use{Free: 40, Room: -40}, nil); got != nil {
		t.Errorf("with half of the reserve free, guest %q is to end", got.guest.id)
	}
	if got := d.worstLocked(hostdisk.Use{Free: 39, Room: -41}, nil); got != writer {
		t.Errorf("with less than half of the reserve free, the guest to end is %+v, want the one that writes beyond its part", got)
	}
	writer.writes = false
	if got := d.worstLocked(hostdisk.Use{Free: 39, Room: -41}, nil); got != nil {
		t.Errorf("when no guest writes beyond its part, guest %q is to end", got.guest.id)
	}
}

// TestDisk_Held: the end of a guest frees what it has written and what is reserved for it.
func TestDisk_Held(t *testing.T) {
	e := openDisk(t, smallDisk(t, "256m"), hostdisk.Policy{Guaranteed: 0.25, Reserve: 16 << 20})
	spec := newSpec(t)
	spec.Limits.DiskMB = 160 // of which 40 MiB are guaranteed
	small, large := create(t, e, "small", spec), create(t, e, "large", spec)
	small.ask(t, "shu head -c 1000000 /dev/zero > /tmp/file")
	large.ask(t, "shu head -c 90000000 /dev/zero > /tmp/file")
	held := e.Reclaimable()
	if got := held["small"]; got != 40<<20 {
		t.Errorf("the guest below its guarantee holds %d bytes, want %d", got, 40<<20)
	}
	if got := held["large"]; got < 90_000_000 || got > 100_000_000 {
		t.Errorf("the guest with 90,000,000 bytes holds %d", got)
	}
	before := diskUse(t, e)
	if err := large.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := diskUse(t, e).Room - before.Room; got < held["large"]-1<<20 || got > held["large"]+1<<20 {
		t.Errorf("its end freed %d bytes of room, it held %d", got, held["large"])
	}
	e.Unreserve()
	if got := diskUse(t, e).Reserved; got != 0 {
		t.Errorf("%d bytes are reserved, want none", got)
	}
}

// TestDisk_Borrowed: a guest has borrowed what it has written beyond its part, which does not grow
// with the files that it started with; within the part, it has borrowed nothing.
func TestDisk_Borrowed(t *testing.T) {
	e := openDisk(t, smallDisk(t, "384m"), hostdisk.Policy{Guaranteed: 0.25, Reserve: 16 << 20})
	spec := newSpec(t)
	spec.Limits.DiskMB = 160 // of which 40 MiB are guaranteed
	small, large := create(t, e, "small", spec), create(t, e, "large", spec)
	small.ask(t, "shu head -c 30000000 /dev/zero > /tmp/file")
	large.ask(t, "shu head -c 90000000 /dev/urandom > /tmp/file")
	want := func(when, id string) {
		t.Helper()
		borrowed := e.Borrowed()
		if got := borrowed[id]; len(borrowed) != 1 || got < 90_000_000-40<<20 || got > 100_000_000-40<<20 {
			t.Errorf("%s: got %v, want about %d bytes of %q alone", when, borrowed, 90_000_000-40<<20, id)
		}
	}
	want("at once", "large") // without a look
	if got := diskUse(t, e).Guaranteed; got != 0.25 {
		t.Errorf("a share of %v is guaranteed, want that of the policy", got)
	}
	snapshot := snapshotOf(t, e, large)
	if err := large.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := e.Borrowed(); len(got) != 0 {
		t.Errorf("after its end: %v", got)
	}
	restore(t, e, "again", spec, snapshot)
	// The sentry may load the last pages of the guest's files after the restore.
	polltest.Soon(10*time.Second, func() bool { return e.Borrowed()["again"] >= 90_000_000-40<<20 })
	want("restored", "again")
}

// TestDisk_SnapshotsLeaveReservations: a snapshot on the disk of the guests leaves their
// guaranteed parts free, and a restored guest needs room for its files.
func TestDisk_SnapshotsLeaveReservations(t *testing.T) {
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
	// The sentry may load the last pages of the guest's files after the restore.
	var use hostdisk.Use
	if !polltest.Soon(10*time.Second, func() bool {
		use = diskUse(t, e)
		return use.Free+140_000_000 <= 384<<20 && use.Reserved >= 60<<20
	}) {
		t.Errorf("with a restored guest of 140,000,000 bytes: %+v", use)
	}
}

// TestDisk_PolicySeesSpaceBeforeWrites: the policy gets the same free space however much
// of it guests have written. Otherwise the share of others would shrink as guests write.
func TestDisk_PolicySeesSpaceBeforeWrites(t *testing.T) {
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
