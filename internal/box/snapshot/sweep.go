package snapshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// Sweep removes what is left of interrupted writes and removals. It also removes records
// without a lease: those without data (Lost), damaged ones (Damaged), and Box records whose
// last use is longer ago than Config.MaxAge (Age). An old record goes once sweeps have found
// it too old for Config.AgeGrace.
//
// If the limits of Config are still exceeded, Sweep evicts the least recently used Box records
// (Evicted), even if that does not suffice. The disk is too full if less is free than
// Config.MinFree, or than 256 MiB if that is less; what others have reserved counts as free.
// Sweep evicts for a full disk once sweeps have found it full for Config.DiskGrace.
//
// Sweep leaves files of a later version or of other users alone.
//
// It returns the removed records also with an error, and continues after errors until
// ctx is done.
func (s *Store) Sweep(ctx context.Context) (removed []Removal, err error) {
	errs := []error{s.sweepTrash(ctx)}
	items, scanErr := s.scan()
	errs = append(errs, scanErr)
	if scanErr == nil {
		s.forgetHookDone(items) // others may have removed them
	}
	s.mu.Lock()
	aged := s.aged
	s.aged = make(map[string]time.Time)
	s.mu.Unlock()
	var going []candidate
	var left []string
	for _, it := range items {
		if ctx.Err() != nil {
			break
		}
		r, err := s.sweepRecord(it.id, aged, &left)
		if r != nil {
			going = append(going, *r)
		}
		errs = append(errs, err)
	}
	removed, err = s.removeAll(going)
	errs = append(errs, err)
	for _, name := range left {
		errs = append(errs, s.removeFromTrash(name))
	}
	if ctx.Err() == nil {
		evicted, err := s.sweepSpace(ctx)
		removed, errs = append(removed, evicted...), append(errs, err)
	}
	if err := errors.Join(append(errs, context.Cause(ctx))...); err != nil {
		return removed, fmt.Errorf("sweep snapshots %q: %w", s.dir, err)
	}
	return removed, nil
}

// sweepTrash deletes what is left in the trash.
func (s *Store) sweepTrash(ctx context.Context) error {
	trash, err := s.root.OpenRoot(trashDir)
	if err != nil {
		return err
	}
	defer trash.Close()
	names, err := readNames(trash)
	for _, name := range names {
		if ctx.Err() != nil {
			break
		}
		err = errors.Join(err, trash.RemoveAll(name))
	}
	return err
}

// sweepRecord inspects a record, and returns how to remove it or the stray data in it; nil if
// there is nothing to remove. aged is as of the last Sweep. The names of stray data in the
// trash are appended to left.
func (s *Store) sweepRecord(id string, aged map[string]time.Time, left *[]string) (*candidate, error) {
	if !validID(id) {
		return nil, nil
	}
	held, err := s.leased(id)
	if err != nil || held {
		return nil, err
	}
	it := item{id: id}
	var dir *os.Root
	dir, it.entry, it.err = s.load(id)
	why, rest, err := s.inspect(&it, dir)
	if dir != nil {
		dir.Close()
	}
	if err == nil && why == Age && !s.agedOut(id, aged) {
		return nil, nil
	}
	if err != nil || why == "" && len(rest) == 0 {
		return nil, err // most records; no lease is taken
	}
	return &candidate{id, func(it *item, dir *os.Root) (*Removal, error) {
		why, rest, err := s.inspect(it, dir)
		if err != nil {
			return nil, err
		}
		if why != "" {
			return &Removal{Record: it.record(false), Why: why}, nil
		}
		for _, name := range rest {
			// Deleting may take longer than anybody should wait for the record.
			trashed := id + "." + name
			failed := s.root.Rename(recordsDir+"/"+id+"/"+name, trashDir+"/"+trashed)
			if failed == nil {
				*left = append(*left, trashed)
			}
			err = errors.Join(err, failed)
		}
		return nil, err
	}}, nil
}

// Damaged returns the ids of damaged records of this program of which enough is left to know what they
// were of, and for which match returns true, as of the last List.
func (s *Store) Damaged(match func(*Meta) bool) ([]string, error) {
	if !s.damaged.Load() {
		return nil, nil
	}
	items, err := s.scan()
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, it := range items {
		m := it.Meta // a copy for match
		if it.removable() && match(&m) {
			ids = append(ids, it.id)
		}
	}
	return ids, nil
}

// RemoveDamaged removes a record as Sweep does if it is damaged, and reports whether it did, or
// another call has just done so. The error is ErrLeased while the record has a lease, as while a
// Sweep removes it.
func (s *Store) RemoveDamaged(id string) (removed bool, err error) {
	if !validID(id) {
		return false, nil
	}
	err = ErrLeased // if take does not get as far as to look at the record
	gone, failed := s.removeAll([]candidate{{id, func(it *item, dir *os.Root) (*Removal, error) {
		err = nil
		if removed = errors.Is(it.err, ErrNotFound); removed {
			return nil, nil
		}
		why, _, err := s.inspect(it, dir)
		if err != nil || why != Damaged {
			return nil, err
		}
		return &Removal{Record: it.record(false), Why: why}, nil
	}}})
	if failed != nil {
		err = failed
	}
	return removed || len(gone) > 0, err
}

// agedOut reports whether sweeps have found a record expired for long enough; before is
// the state as of the last Sweep.
func (s *Store) agedOut(id string, before map[string]time.Time) bool {
	since, known := before[id]
	if !known {
		since = time.Now()
	}
	if time.Since(since) >= s.cfg.AgeGrace {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.aged[id] = since
	return false
}

// inspect returns the reason to remove a record without a lease, or else the stray data
// in it.
func (s *Store) inspect(it *item, dir *os.Root) (why Why, rest []string, err error) {
	err = it.err
	if err == nil {
		err = checkData(dir, &it.entry)
	}
	switch {
	case errors.Is(err, errForeign):
		return "", nil, nil
	case errors.Is(err, ErrNotFound), err == nil && it.Gen == 0:
		return Lost, nil, nil
	case errors.Is(err, ErrDamaged):
		return Damaged, nil, nil
	case err != nil:
		return "", nil, err
	case it.Purpose == Box && s.cfg.MaxAge > 0 && s.now().Sub(it.Used) > s.cfg.MaxAge:
		return Age, nil, nil
	}
	rest, err = strays(dir, it.Gen)
	return "", rest, err
}

// tooEarlyToEvict reports whether it is too early to evict because the disk is short: whatever
// fills it may go away.
func (s *Store) tooEarlyToEvict(short bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !short {
		s.diskShortSince = time.Time{}
		return false
	}
	if s.diskShortSince.IsZero() {
		s.diskShortSince = time.Now()
	}
	return time.Since(s.diskShortSince) < s.cfg.DiskGrace
}

// sweepSpace evicts records until the limits of Config hold, of the disk those of sweepable.
func (s *Store) sweepSpace(ctx context.Context) ([]Removal, error) {
	unlock, err := s.lockStore(ctx, &s.evictions)
	if err != nil {
		return nil, err
	}
	defer unlock()
	items, err := s.scan()
	if err != nil {
		return nil, err
	}
	available, err := s.sweepable()
	if err != nil {
		return nil, err
	}
	short, err := s.shortfallFor(items, "", 0, 0, available)
	if err != nil {
		return nil, err
	}
	if s.tooEarlyToEvict(short.disk > 0) {
		short.disk = 0
	}
	victims, err := s.chooseVictims(items, nil, nil, short)
	if err != nil {
		return nil, err
	}
	return s.evict(victims)
}
