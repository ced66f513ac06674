package snapshot

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"slices"

	"github.com/glovebox-dev/glovebox/engine/hostdisk"
)

// shortfall is how much is missing; values of zero or less mean nothing.
type shortfall struct {
	budget  int64 // bytes over Config.MaxBytes
	disk    int64 // bytes under Config.MinFree
	records int64 // over Config.MaxRecords
	// reserved is bytes under Config.MinFree and Config.Reserved. The disk has room for
	// them, and others may never write what they have reserved. Nothing is evicted for
	// them: the write is refused.
	reserved int64
}

// fits reports whether nothing is missing.
func (s shortfall) fits() bool { return s.needsNoEviction() && s.reserved <= 0 }

// needsNoEviction reports whether nothing is missing for which records are evicted. A write
// may still be refused, for what others have reserved.
func (s shortfall) needsNoEviction() bool { return s.budget <= 0 && s.disk <= 0 && s.records <= 0 }

// without returns the shortfall after the removal of records.
func (s shortfall) without(records []*item) shortfall {
	s = s.withoutDataOf(records)
	s.records -= int64(len(records))
	return s
}

// with returns the shortfall if a record stays after all.
func (s shortfall) with(it *item) shortfall {
	return shortfall{s.budget + it.Bytes, s.disk + it.Bytes, s.records + 1, s.reserved + it.Bytes}
}

// withoutDataOf returns the shortfall after the removal of the data of records that stay.
func (s shortfall) withoutDataOf(records []*item) shortfall {
	for _, it := range records {
		s.budget -= it.Bytes
		s.disk -= it.Bytes
		s.reserved -= it.Bytes
	}
	return s
}

// free returns the space on the disk that is available to this user.
func (s *Store) free() (int64, error) {
	if s.cfg.free != nil {
		return s.cfg.free(), nil
	}
	dir, err := s.root.Open(".")
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	return hostdisk.Free(dir)
}

// available returns the space on the disk that writes may take: the store leaves the rest
// free, or others have reserved it. available is negative if the disk has less than that.
func (s *Store) available() (available, reserved int64, err error) {
	free, err := s.free()
	if err != nil {
		return 0, 0, err
	}
	if s.cfg.Reserved != nil {
		reserved = s.cfg.Reserved()
	}
	return free - s.cfg.MinFree - reserved, reserved, nil
}

// sweepFree bounds the free space for which sweeps evict records. Reservations of others
// and a larger Config.MinFree only limit writes: an eviction loses the state of a box.
const sweepFree = 256 << 20

// sweepable is available for a sweep, which needs space for nothing yet.
func (s *Store) sweepable() (int64, error) {
	free, err := s.free()
	return free - min(s.cfg.MinFree, sweepFree), err
}

// shortfallFor returns the shortfall for need bytes that replace the data of the record
// own; written of them are already on the disk, which has available bytes for more.
func (s *Store) shortfallFor(items []*item, own string, need, written, available int64) (shortfall, error) {
	used, coming := need, need-written
	for _, it := range items {
		if it.err != nil || it.id == own {
			continue
		}
		bytes := it.Bytes
		if it.Pending > 0 {
			held, err := s.leased(it.id)
			if err != nil {
				return shortfall{}, err
			}
			if held { // otherwise the writer was killed
				bytes = max(bytes, it.Pending)
				coming += max(0, it.Pending-s.writtenOf(it))
			}
		}
		used += bytes
	}
	short := shortfall{disk: coming - available, records: int64(len(items) - s.cfg.MaxRecords)}
	if s.cfg.MaxBytes > 0 {
		short.budget = used - s.cfg.MaxBytes
	}
	return short, nil
}

// pendingOf returns how many bytes the lessee of a record is writing to it.
func (s *Store) pendingOf(it *item) int64 {
	if it.Pending == 0 {
		return 0
	}
	if held, err := s.leased(it.id); err != nil || !held {
		return 0 // the writer was killed
	}
	return it.Pending
}

// writtenOf returns how much of the data being written to a record is on the disk; 0 if
// that cannot be read.
func (s *Store) writtenOf(it *item) int64 {
	dir, err := s.records.OpenRoot(it.id)
	if err != nil {
		return 0
	}
	defer dir.Close()
	size, err := sizeOf(dir, dataName(it.Gen+1))
	if err != nil {
		return 0
	}
	return size
}

// reserveBytes makes space for need bytes that replace the data of a lease, of which
// written are already on the disk, and publishes the reservation. For copies see requester.
func (s *Store) reserveBytes(ctx context.Context, lease *Lease, need, written int64, copies bool) error {
	meta := lease.Meta()
	req := &requester{owner: meta.Owner, id: lease.id, bytes: need, copies: copies}
	return s.reserveSpace(ctx, req, func(items []*item) (shortfall, error) {
		if meta.Purpose == Saved {
			if err := s.checkSaved(items, req, written); err != nil {
				return shortfall{}, err
			}
		}
		available, reserved, err := s.available()
		if err != nil {
			return shortfall{}, err
		}
		short, err := s.shortfallFor(items, lease.id, need, written, available+reserved)
		short.reserved = short.disk + reserved
		short.records = 0 // Write adds no record
		if err == nil && short.disk > 0 {
			err = s.refuseWhileTooEarly(short)
		}
		return short, err
	}, func() error { return lease.reserve(need) })
}

// refuseWhileTooEarly returns a *FullError while it is too early to evict for a full disk.
func (s *Store) refuseWhileTooEarly(short shortfall) error {
	sweepable, err := s.sweepable()
	if err == nil && s.tooEarlyToEvict(sweepable < 0) {
		err = fullError(short)
	}
	return err
}

// The store's size divided by allSavedDivisor is what all Saved records may take. They are
// never evicted, so the rest is for Box records: a living box can always be written there.
const allSavedDivisor = 2

// The store's size divided by ownerSavedDivisor is what the Saved records of one owner may
// take if Config.MaxSaved is 0.
const ownerSavedDivisor = 4

// checkSaved returns a *FullError if the requester's record, of which written bytes are
// already on the disk, exceeds a limit on Saved records. The size of the store is
// Config.MaxBytes, or what its disk has room for if that is less.
func (s *Store) checkSaved(items []*item, req *requester, written int64) error {
	size, _, err := s.available()
	if err != nil {
		return err
	}
	size += written
	need := max(req.bytes, 1) // at a limit, nothing needs to be written to find out
	all, own := need, need
	for _, it := range items {
		if it.err != nil {
			continue
		}
		size += it.Bytes
		if it.Purpose != Saved || it.id == req.id {
			continue
		}
		bytes := max(it.Bytes, it.Pending)
		all += bytes
		if it.Owner == req.owner {
			own += bytes
		}
	}
	if s.cfg.MaxBytes > 0 {
		size = min(size, s.cfg.MaxBytes)
	}
	size = max(size, 0)
	most := s.cfg.MaxSaved
	if most == 0 {
		most = size / ownerSavedDivisor
	}
	switch {
	case own > most:
		return &FullError{Missing: own - most, Limit: LimitOwner, Max: most, Need: req.bytes}
	case all > size/allSavedDivisor:
		return &FullError{Missing: all - size/allSavedDivisor, Limit: LimitSaved, Max: size / allSavedDivisor, Need: req.bytes}
	}
	return nil
}

// requester is who needs space.
type requester struct {
	owner  string
	id     string // of the record whose data are replaced
	bytes  int64  // of the new data
	copies bool   // they only copy a box that stays in memory
}

// reserveRecord makes space for one more record of an owner.
func (s *Store) reserveRecord(owner string) error {
	if s.count.Load() < int64(s.cfg.MaxRecords) {
		return nil
	}
	return s.reserveSpace(context.Background(), &requester{owner: owner}, func(items []*item) (shortfall, error) {
		return shortfall{records: int64(len(items) + 1 - s.cfg.MaxRecords)}, nil
	}, func() error { return nil })
}

// reserveAttempts is how often a reservation evicts: others may take the room that it makes
// before it has reserved it.
const reserveAttempts = 3

// reserveSpace calls reserve when there is no shortfall, after evicting records if it must. It
// holds Store.space only while it looks and reserves, and looks again after an eviction.
func (s *Store) reserveSpace(ctx context.Context, req *requester, lacks func([]*item) (shortfall, error), reserve func() error) error {
	_, short, err := s.tryReserve(ctx, lacks, reserve)
	if err == nil && short.fits() || err != nil && !errors.Is(err, ErrFull) {
		return err
	}
	unlock, err := s.lockStore(ctx, &s.evictions)
	if err != nil {
		return err
	}
	defer unlock()
	for attempt := 0; ; attempt++ { // first: the eviction before may have made enough room
		items, short, err := s.tryReserve(ctx, lacks, reserve)
		if err != nil || short.fits() {
			return err
		}
		if attempt == reserveAttempts {
			return fullError(short)
		}
		var copies []*item
		rest := short
		if req.copies { // of boxes that are in memory too, before boxes that are only here
			copies = s.chooseCopies(items, nil, req, short)
			rest = short.withoutDataOf(copies)
		}
		victims, err := s.chooseVictims(items, copies, req, rest)
		if err != nil {
			return err
		}
		rest = rest.without(victims)
		if !req.copies {
			copies = s.chooseCopies(items, victims, req, rest)
			if rest = rest.withoutDataOf(copies); len(copies) > 0 {
				victims, rest = spare(victims, rest)
			}
		}
		if !rest.fits() {
			return fullError(rest) // evict nothing if it would not suffice
		}
		if !s.dropCopies(ctx, copies) {
			continue // perhaps it does not suffice any more
		}
		if _, err := s.evict(victims); err != nil {
			return err
		}
	}
}

// spare removes the victims, the last chosen first, that need not go because of the copies that were
// chosen after them. rest is the shortfall without both.
func spare(victims []*item, rest shortfall) ([]*item, shortfall) {
	for i := len(victims) - 1; i >= 0; i-- {
		if with := rest.with(victims[i]); with.fits() {
			victims, rest = slices.Delete(victims, i, i+1), with
		}
	}
	return victims, rest
}

// tryReserve calls reserve if there is no shortfall. Otherwise it returns the records that it
// saw, and the shortfall.
func (s *Store) tryReserve(ctx context.Context, lacks func([]*item) (shortfall, error), reserve func() error) ([]*item, shortfall, error) {
	unlock, err := s.lockStore(ctx, &s.space)
	if err != nil {
		return nil, shortfall{}, err
	}
	defer unlock()
	items, err := s.scan()
	if err != nil {
		return nil, shortfall{}, err
	}
	short, err := lacks(items)
	if err == nil && short.fits() {
		err = reserve()
	}
	return items, short, err
}

func fullError(short shortfall) error {
	return &FullError{Missing: max(short.budget, short.disk, short.reserved, 0)}
}

// chooseVictims selects the records to evict, no more than needed and possibly too few.
// Only Box records without a lease qualify: first those of the requester, then those of
// the owner with the most data, but never of an owner with less than the requester
// would have; of each owner, the least recently used first. req is nil when a sweep
// enforces the limits. The data of dropped are about to go.
func (s *Store) chooseVictims(items, dropped []*item, req *requester, short shortfall) ([]*item, error) {
	weight := func(it *item) int64 {
		if short.records > 0 {
			return 1
		}
		return it.Bytes
	}
	var boxes []*item
	has := make(map[string]int64)
	if req != nil {
		has[req.owner] = max(req.bytes, 1)
	}
	for _, it := range items {
		if it.err != nil || req != nil && it.id == req.id {
			continue
		}
		if slices.Contains(dropped, it) {
			continue
		}
		has[it.Owner] += weight(it)
		if short.records <= 0 {
			has[it.Owner] += max(0, s.pendingOf(it)-it.Bytes) // what is just being written
		}
		if it.Purpose == Box {
			boxes = append(boxes, it)
		}
	}
	most := maps.Clone(has)
	slices.SortFunc(boxes, func(a, b *item) int {
		if a.Owner != b.Owner {
			if req != nil && a.Owner == req.owner {
				return -1
			}
			if req != nil && b.Owner == req.owner {
				return 1
			}
			if c := cmp.Compare(most[b.Owner], most[a.Owner]); c != 0 {
				return c
			}
		}
		return cmp.Or(a.Used.Compare(b.Used), cmp.Compare(a.id, b.id))
	})
	var out []*item
	for _, it := range boxes {
		if short.needsNoEviction() {
			break
		}
		if short.records <= 0 && it.Bytes == 0 {
			continue // evicting it would free nothing
		}
		if req != nil && has[it.Owner] < has[req.owner] {
			continue
		}
		held, err := s.leased(it.id)
		if err != nil {
			return nil, err
		}
		if !held {
			out = append(out, it)
			has[it.Owner] -= weight(it)
			short = short.without([]*item{it})
		}
	}
	return out, nil
}

// evict removes victims, except those used since they were selected. The caller holds
// s.evictions.
func (s *Store) evict(victims []*item) ([]Removal, error) {
	going := make([]candidate, 0, len(victims))
	for _, it := range victims {
		going = append(going, candidate{it.id, func(now *item, _ *os.Root) (*Removal, error) {
			if now.err != nil || now.Gen != it.Gen || !now.Used.Equal(it.Used) {
				return nil, now.err
			}
			return &Removal{Record: it.record(false), Why: Evicted}, nil
		}})
	}
	return s.removeAll(going)
}
