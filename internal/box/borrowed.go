package box

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/hostdisk"
)

// This file takes back disk space that boxes have borrowed. A share of the disk limit of each box is
// guaranteed: the engine reserves it when the box starts (engine/hostdisk). A box borrows from the
// free space by writing beyond this guarantee. It ends when the disk has no room for the guarantee
// of another owner's box. Otherwise one busy box, which is never evicted, could keep all other owners
// from starting any. The engine itself ends guests only if they write when nothing is left at all.

const (
	// claimEnds is how many boxes end at most so that one can start.
	claimEnds = 2
	// claimWaits is how often a start waits for what others are about to free before it ends a
	// box: they may always be faster.
	claimWaits = 2
)

// A diskClaim is what a start has done so far to get disk space that others have borrowed.
type diskClaim struct{ waits, ends int }

// A diskLack is what keeps a box from starting, in bytes.
type diskLack struct {
	missing     int64
	borrows     int64            // what the box has borrowed once it has started: it may have files
	guaranteed  float64          // the share of the limit of each box
	reclaimable map[string]int64 // what the end of each guest frees
	borrowed    map[string]int64 // what each guest has written beyond its guarantee
}

// claimBorrowed makes room on the disk for a box that could not start, whose error is cause: it
// ends boxes of other owners who have borrowed more, if that makes enough room, and waits until
// they have left memory. It reports whether a further attempt to start may succeed.
func (l *lifecycle) claimBorrowed(ctx context.Context, b *Box, cause error, c *diskClaim) bool {
	ctx, cancel := context.WithTimeout(ctx, diskEvictWait)
	defer cancel()
	leaving, again := l.takeBorrowers(ctx, b, cause, c)
	return again && allLeft(ctx, leaving)
}

// takeBorrowers begins to end boxes so that the disk has room for b, and reports whether it may
// have once they have left memory. The channels are like those of takeDiskVictims. If boxes that
// leave already make the room, these are the ones to wait for.
func (l *lifecycle) takeBorrowers(ctx context.Context, b *Box, cause error, c *diskClaim) (leaving []<-chan struct{}, again bool) {
	full, _ := errors.AsType[*hostdisk.FullError](cause)
	disk, ok := engine.As[hostdisk.Engine](l.parts.Machines.Engine)
	if full == nil || !ok || ctx.Err() != nil {
		return nil, false
	}
	// The room comes last: what a guest frees meanwhile then counts twice, which costs a wait, and
	// not as missing, which could cost a box.
	lack := diskLack{reclaimable: disk.Reclaimable(), borrowed: disk.Borrowed()}
	use, err := disk.Disk()
	if err != nil { // the next start reports it
		return nil, false
	}
	lack.missing, lack.guaranteed = full.Need-use.Room, use.Guaranteed
	files := full.Need - lack.part(b)
	lack.borrows = max(0, files-lack.part(b))

	l.reg.mu.Lock()
	defer l.reg.mu.Unlock()
	if l.reg.phase != phaseOpen {
		return nil, false
	}
	if c.waits < claimWaits {
		missing := lack.missing
		for o := range l.reg.freeing {
			if n := lack.reclaimable[o.guestID]; n > 0 {
				missing -= n
				leaving = append(leaving, o.unloadDone)
			}
		}
		if missing <= 0 {
			c.waits++
			return leaving, true
		}
	}
	leaving = nil
	for _, v := range l.reg.planBorrowedLocked(b, &lack, claimEnds-c.ends) {
		c.ends++
		leaving = append(leaving, v.unloadDone)
		l.endBorrowerLocked(v, &lack)
	}
	return leaving, len(leaving) > 0
}

// part returns the bytes that are guaranteed to a box.
func (d *diskLack) part(b *Box) int64 {
	return int64(d.guaranteed * float64(int64(b.flavor.Limits().DiskMB)<<20))
}

// planBorrowedLocked chooses at most a number of boxes to end so that the disk has room for b; none
// if they would not suffice. Each is the box that has borrowed most of the owner whose boxes have
// borrowed most, all together. That owner is another one than that of b, and has borrowed more than the
// owner of b will have with b: owners who borrow as much would end each other's boxes in turn.
func (r *registry) planBorrowedLocked(b *Box, lack *diskLack, most int) (victims []*Box) {
	sums := map[Owner]int64{b.key.owner: lack.borrows}
	var left []*Box
	for _, o := range r.boxes {
		n := lack.borrowed[o.guestID]
		sums[o.key.owner] += n
		// One that starts has a caller who waits for it, and nothing of it can be written to disk.
		if n > 0 && o.key.owner != b.key.owner && !o.state.starting() {
			left = append(left, o)
		}
	}
	missing := lack.missing
	for missing > 0 {
		left = slices.DeleteFunc(left, func(o *Box) bool { return sums[o.key.owner] <= sums[b.key.owner] })
		if len(left) == 0 || len(victims) == most {
			return nil
		}
		v := slices.MaxFunc(left, func(x, y *Box) int {
			return cmp.Or(
				cmp.Compare(sums[x.key.owner], sums[y.key.owner]),
				cmp.Compare(lack.borrowed[x.guestID], lack.borrowed[y.guestID]),
				cmp.Compare(y.use.seq, x.use.seq))
		})
		victims = append(victims, v)
		left = slices.DeleteFunc(left, func(o *Box) bool { return o == v })
		sums[v.key.owner] -= lack.borrowed[v.guestID]
		missing -= lack.reclaimable[v.guestID]
	}
	return needed(victims, missing, lack.reclaimable)
}

// endBorrowerLocked takes a box out of memory for what it has borrowed. If no call is in flight, it
// is written to disk, unless that has failed just now: a nearly full disk may have no room for it.
func (l *lifecycle) endBorrowerLocked(v *Box, lack *diskLack) {
	part := lack.part(v)
	detail := fmt.Sprintf("it had written %d MiB, of which %d MiB were guaranteed, when the disk had no room for the guaranteed space of another box",
		(part+lack.borrowed[v.guestID])>>20, part>>20)
	if (v.state == stateReady || v.state == statePaused) && v.canHibernateLocked() && !v.writeBackoffLocked() {
		l.unloadLocked(v, ReasonEvicted, detail)
		return
	}
	l.terminateLocked(v, ReasonDisk, fmt.Sprintf("%s (%s)", endedForDisk, detail))
}
