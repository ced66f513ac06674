//go:build linux && (amd64 || arm64)

package gvisor

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/hostdisk"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// diskLookMin and diskLookMax bound the time between two checks of the disk.
	diskLookMin = 50 * time.Millisecond
	diskLookMax = 2 * time.Second
	// diskRate is more than the bytes that guests can write in a second. The next look
	// is before they could have filled the room that is left.
	diskRate = 4 << 30
	// reservedName is a sparse file in the directory of an instance. Its size is the
	// number of bytes that are reserved for the guests of the instance.
	reservedName = "reserved"
	// maxReserved bounds what is believed of another instance: more than any disk has.
	maxReserved = 1 << 46
	// endWait is how long the space of a guest that was ended for lack of room counts as
	// about to be freed. Meanwhile no other guest ends, unless it writes and less than
	// 1/criticalDivisor of the reserve is free.
	endWait         = time.Minute
	criticalDivisor = 2
)

// disk shares the file system of the state directory among guests. The guests' writes
// go to sparse files there. gVisor bounds each file, but the sum of the bounds may
// exceed the free space. Therefore disk reserves part of each bound when a guest starts,
// refuses guests for which there is no room, and ends a guest that writes more than its
// part when the disk runs short.
//
// Instances that share the state directory publish what they have reserved. Each
// publishes before it reads what the others have: of two that compete for the last
// room, at most one gets it.
type disk struct {
	policy   hostdisk.Policy
	log      *slog.Logger
	own      string // directory of this instance
	root     *os.File
	reserved *os.File // reservedName of this instance

	wake chan struct{}
	stop chan struct{}
	done chan struct{}

	mu        sync.Mutex          // held over system calls about open files and names, which read no data
	quotas    map[*quota]struct{} // guarded by mu
	published int64               // guarded by mu; published size
}

// quota is what a guest may write.
type quota struct {
	guaranteed int64     // bytes reserved when it started, with the files that it started with
	part       int64     // bytes of guaranteed without those files; more makes it a candidate for ending
	file       *os.File  // guarded by disk.mu; nil before the guest boots
	guest      *guest    // guarded by disk.mu; nil until it runs
	used       int64     // guarded by disk.mu; bytes when last measured
	looked     int64     // guarded by disk.mu; used at the last look
	writes     bool      // guarded by disk.mu; it wrote between the last two looks
	frees      int64     // guarded by disk.mu; bytes that the end of the guest frees; used is 0 while its file is being closed
	ended      time.Time // guarded by disk.mu; when the guest was ended for lack of room; zero: it was not
}

// over returns how many bytes the guest has written beyond its part. It does not matter
// when it wrote, nor before which restore.
func (q *quota) over() int64 { return max(0, q.used-q.part) }

func newDisk(s *stateDir, policy hostdisk.Policy, log *slog.Logger) (*disk, error) {
	d := &disk{
		policy: policy, log: log, own: s.root,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		quotas: make(map[*quota]struct{}),
	}
	var err error
	if d.root, err = os.Open(s.root); err != nil {
		return nil, err
	}
	d.reserved, err = os.OpenFile(s.path(reservedName), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		d.root.Close()
		return nil, err
	}
	go d.run()
	return d, nil
}

// admit reserves disk space for a guest that starts with base bytes of files. The
// caller releases the quota. The error is hostdisk.ErrFull if there is no room.
func (d *disk) admit(l engine.Limits, base int64) (*quota, error) {
	limit := int64(l.DiskMB) << 20
	q := &quota{part: int64(d.policy.Guaranteed * float64(limit))}
	q.guaranteed = base + q.part
	if limit > 0 {
		q.guaranteed = min(q.guaranteed, limit)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	// Without room, nothing is published: a reservation could end guests of others.
	use, lack, err := d.lackLocked(q)
	if err == nil && lack > 0 {
		removeStale(filepath.Dir(d.own)) // what killed processes have reserved does not count
		use, lack, err = d.lackLocked(q)
	}
	if err == nil && lack <= 0 {
		d.quotas[q] = struct{}{}
		use, lack, err = d.lackLocked(q)
	}
	if err == nil && lack > 0 {
		err = fmt.Errorf("%w: %w", &hostdisk.FullError{Free: use.Free, Need: q.guaranteed, Missing: lack}, engine.ErrExhausted)
	}
	if err != nil {
		delete(d.quotas, q)
		_ = d.publishLocked() // if it fails, more is reserved than needed until the next look
		return nil, fmt.Errorf("reserve disk space: %w", err)
	}
	select {
	case d.wake <- struct{}{}:
	default:
	}
	return q, nil
}

// lackLocked returns how many bytes are missing for a new guest; it needs no more if that
// is not positive. The only guest of all instances may take the space of others, but not
// what the policy leaves free: otherwise nothing could run on a small disk.
func (d *disk) lackLocked(q *quota) (u hostdisk.Use, lack int64, err error) {
	if u, err = d.measureLocked(); err != nil {
		return u, 0, err
	}
	room, reserved, guests := u.Room, u.Reserved, len(d.quotas)
	if _, published := d.quotas[q]; published {
		room, reserved, guests = room+q.guaranteed, reserved-q.guaranteed, guests-1
	}
	if guests == 0 && reserved == 0 {
		room = max(room, u.Free-d.policy.Reserve)
	}
	return u, q.guaranteed - room, nil
}

// watch counts the disk space of file, which the guest writes to.
func (d *disk) watch(q *quota, file *os.File) {
	d.mu.Lock()
	defer d.mu.Unlock()
	q.file = file
}

// adopt makes a guest that runs subject to its quota.
func (d *disk) adopt(q *quota, g *guest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	q.guest = g
}

// release frees the reservation of a guest whose file is closed.
func (d *disk) release(q *quota) {
	if q == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.quotas, q)
	d.publishLocked() // if it fails, more is reserved than needed until the next look
}

// kept returns how many bytes snapshots in dir leave free: none on another file system.
func (d *disk) kept(dir string) (uint64, error) {
	var here, there unix.Stat_t
	if err := errors.Join(unix.Fstat(int(d.root.Fd()), &here), unix.Stat(dir, &there)); err != nil {
		return 0, fmt.Errorf("find the file system of %q: %w", dir, err)
	}
	if here.Dev != there.Dev {
		return 0, nil
	}
	u, err := d.use()
	if err != nil {
		return 0, err
	}
	return uint64(d.policy.Reserve + u.Reserved), nil
}

// use describes the file system.
func (d *disk) use() (hostdisk.Use, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.measureLocked()
}

// measureLocked publishes what is reserved here and returns how the file system is used.
func (d *disk) measureLocked() (u hostdisk.Use, err error) {
	written := int64(0)
	for q := range d.quotas {
		q.used = fileBytes(q.file)
		written += q.used
	}
	if err := d.publishLocked(); err != nil {
		return u, err
	}
	u.Reserved, u.Guaranteed = d.published, d.policy.Guaranteed
	parent := filepath.Dir(d.own)
	entries, err := os.ReadDir(parent)
	if err != nil {
		return u, fmt.Errorf("find other instances: %w", err)
	}
	for _, entry := range entries {
		if entry.Name() == filepath.Base(d.own) {
			continue
		}
		if info, err := os.Lstat(filepath.Join(parent, entry.Name(), reservedName)); err == nil && info.Mode().IsRegular() {
			u.Reserved += min(info.Size(), maxReserved)
		}
	}
	if u.Free, err = hostdisk.Free(d.root); err != nil {
		return u, err
	}
	u.Room = u.Free - d.policy.Reserve - u.Reserved
	if d.policy.Others != nil {
		u.Room -= d.policy.Others(u.Free + written)
	}
	return u, nil
}

// publishLocked tells other instances what is reserved here.
func (d *disk) publishLocked() error {
	sum := int64(0)
	for q := range d.quotas {
		sum += max(0, q.guaranteed-q.used)
	}
	if sum == d.published {
		return nil
	}
	if err := d.reserved.Truncate(sum); err != nil {
		return fmt.Errorf("publish the reserved disk space: %w", err)
	}
	d.published = sum
	return nil
}

// fileBytes returns how much disk space a file takes; 0 if that is unknown.
func fileBytes(f *os.File) int64 {
	if f == nil {
		return 0
	}
	info, err := f.Stat()
	if err != nil {
		return 0
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	return st.Blocks * 512
}

// run looks at the disk while there are guests.
func (d *disk) run() {
	defer close(d.done)
	for {
		var next <-chan time.Time
		if wait := d.look(); wait > 0 {
			next = time.After(wait)
		}
		select {
		case <-next:
		case <-d.wake:
		case <-d.stop:
			return
		}
	}
}

// look ends a guest if there is no room and a guest writes, and returns the time until the
// next look; 0 if there are no guests.
func (d *disk) look() time.Duration {
	d.mu.Lock()
	use, err := d.measureLocked()
	writing := false
	for q := range d.quotas {
		q.writes = q.used > q.looked
		writing = writing || q.writes
		q.looked = q.used
	}
	idle, short := len(d.quotas) == 0, err == nil && use.Room < 0 && writing && d.worstLocked(use, nil) != nil
	d.mu.Unlock()
	if short {
		use, err = d.endWorst()
	}
	switch {
	case idle:
		return 0
	case err != nil:
		return diskLookMax // the next admission reports it
	}
	return min(max(time.Duration(float64(use.Room)/diskRate*float64(time.Second)), diskLookMin), diskLookMax)
}

// endWorst ends the guest that has to make room, if there still is none.
func (d *disk) endWorst() (hostdisk.Use, error) {
	var owners map[string]string
	if d.policy.Owners != nil {
		owners = d.policy.Owners() // without mu, since it may wait for locks
	}
	removeStale(filepath.Dir(d.own)) // what killed processes have reserved does not count
	d.mu.Lock()
	use, err := d.measureLocked()
	q := d.worstLocked(use, owners)
	if err != nil || use.Room >= 0 || q == nil {
		d.mu.Unlock()
		return use, err
	}
	q.ended, q.frees = time.Now(), max(q.guaranteed, q.used)
	victim := q.guest
	detail := fmt.Sprintf("the disk of the host had %d MiB left, and it had written %d MiB, of which %d MiB were guaranteed",
		use.Free>>20, q.used>>20, q.part>>20)
	d.mu.Unlock()
	d.log.Warn("disk nearly full: a guest that exceeds its guaranteed disk space is ended", logkey.Guest, victim.id, logkey.Reason, detail)
	victim.kill(engine.ExitDisk, detail)
	return use, nil
}

// worstLocked returns the quota of the running guest to end: of the owner whose guests have
// written most beyond their parts, the guest that has done so most. It returns nil if no
// guest has, or if the guests that were ended earlier are about to free enough space; but
// with less than 1/floor of the reserve free, a guest that writes does not wait for that.
// owners is as hostdisk.Policy.Owners returns it.
func (d *disk) worstLocked(use hostdisk.Use, owners map[string]string) *quota {
	type owner struct {
		name  string
		guest *guest // if it has no other owner
	}
	of := func(q *quota) owner {
		if name, ok := owners[q.guest.id]; ok {
			return owner{name: name}
		}
		return owner{guest: q.guest}
	}
	over := make(map[owner]int64)
	room := use.Room
	var running []*quota
	for q := range d.quotas {
		switch {
		case !q.ended.IsZero():
			if time.Since(q.ended) < endWait {
				q.frees = max(q.frees, q.guaranteed, q.used)
				room += q.frees
			}
		case q.guest != nil && q.over() > 0:
			over[of(q)] += q.over()
			running = append(running, q)
		}
	}
	if room >= 0 {
		low := use.Free < d.policy.Reserve/criticalDivisor
		running = slices.DeleteFunc(running, func(q *quota) bool { return !low || !q.writes })
	}
	if len(running) == 0 {
		return nil
	}
	return slices.MaxFunc(running, func(a, b *quota) int {
		return cmp.Or(cmp.Compare(over[of(a)], over[of(b)]), cmp.Compare(a.over(), b.over()))
	})
}

// reclaimable returns, by guest, how many bytes of room the end of the guest would free.
func (d *disk) reclaimable() map[string]int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	held := make(map[string]int64, len(d.quotas))
	for q := range d.quotas {
		if q.guest != nil {
			held[q.guest.id] = max(q.guaranteed, fileBytes(q.file))
		}
	}
	return held
}

// borrowed returns, by guest, how many bytes it has written beyond its part; see quota.over.
func (d *disk) borrowed() map[string]int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	beyond := make(map[string]int64)
	for q := range d.quotas {
		if q.guest == nil {
			continue
		}
		q.used = fileBytes(q.file)
		if over := q.over(); over > 0 {
			beyond[q.guest.id] = over
		}
	}
	return beyond
}

// unreserve gives up what is reserved for the guests of this instance.
func (d *disk) unreserve() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for q := range d.quotas {
		q.guaranteed = 0
	}
	_ = d.publishLocked() // if it fails, more is reserved than needed until the next look
}

// close frees everything. No guest may be left.
func (d *disk) close() error {
	close(d.stop)
	<-d.done
	return errors.Join(d.root.Close(), d.reserved.Close())
}
