package snapshot

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/glovebox-dev/glovebox/internal/plural"
)

// removeBatchSize bounds the records that are leased at once to be removed. One call of the
// BeforeRemove function gets a whole batch, so that its tombstones need one write.
const removeBatchSize = 64

// candidate is a record to remove, unless it is leased. prepare gets the leased record. It
// returns what the BeforeRemove function is to get, or nil to keep the record; it may move
// stray data of a record that stays to the trash.
type candidate struct {
	id      string
	prepare func(it *item, dir *os.Root) (*Removal, error)
}

// removeAll removes records and returns those that it has removed, also with an error. It
// passes each to the BeforeRemove function before, leaves those for which that failed, and
// continues after errors.
func (s *Store) removeAll(all []candidate) (removed []Removal, err error) {
	for batch := range slices.Chunk(all, removeBatchSize) {
		gone, failed := s.removeBatch(batch)
		removed, err = append(removed, gone...), errors.Join(err, failed)
	}
	return removed, err
}

func (s *Store) removeBatch(batch []candidate) (removed []Removal, err error) {
	var going []Removal
	for _, r := range batch {
		doomed, failed := s.take(r)
		if doomed != nil {
			going = append(going, *doomed)
		}
		err = errors.Join(err, failed)
	}
	stay, failed := s.callBeforeRemove(going)
	err = errors.Join(err, failed)
	for _, r := range going {
		if slices.Contains(stay, r.ID) {
			err = errors.Join(err, s.releaseLease(r.ID))
			continue
		}
		failed := s.moveToTrash(r.ID)
		if failed == nil {
			removed = append(removed, r)
		}
		if errors.Is(failed, ErrNotFound) {
			failed = nil
		}
		err = errors.Join(err, failed, s.releaseLease(r.ID))
	}
	for _, r := range removed {
		_ = s.removeFromTrash(r.ID) // if it fails, the next Sweep retries and reports it
	}
	return removed, err
}

// callBeforeRemove calls the BeforeRemove function with the records, which are all leased,
// except those for which it has succeeded since their last use. It returns the ids of those
// that must stay.
func (s *Store) callBeforeRemove(going []Removal) (stay []string, err error) {
	if s.beforeRemove == nil {
		return nil, nil
	}
	s.mu.Lock()
	fresh := slices.DeleteFunc(slices.Clone(going), func(r Removal) bool {
		used, known := s.hookDone[r.ID]
		return known && used.Equal(r.Used)
	})
	s.mu.Unlock()
	if len(fresh) == 0 {
		return nil, nil
	}
	if stay, err = s.beforeRemove(slices.Clone(fresh)); err != nil {
		err = fmt.Errorf("keep %s, whose removal could not be noted: %w", plural.N(len(stay), "record"), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range fresh {
		if !slices.Contains(stay, r.ID) {
			s.hookDone[r.ID] = r.Used
		}
	}
	return stay, err
}

// forgetHookDone forgets the records that are not among items, those on the disk.
func (s *Store) forgetHookDone(items []*item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.hookDone) == 0 {
		return
	}
	there := make(map[string]bool, len(items))
	for _, it := range items {
		there[it.id] = true
	}
	maps.DeleteFunc(s.hookDone, func(id string, _ time.Time) bool { return !there[id] })
}

// take leases a record to remove. It returns nil without an error if the record
// stays, or is gone.
func (s *Store) take(r candidate) (doomed *Removal, err error) {
	err = s.tryLease(r.id, false)
	if errors.Is(err, ErrLeased) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	it := item{id: r.id}
	var dir *os.Root
	dir, it.entry, it.err = s.load(r.id)
	doomed, err = r.prepare(&it, dir)
	if dir != nil {
		dir.Close()
	}
	if err == nil && doomed != nil {
		return doomed, nil
	}
	if errors.Is(err, ErrNotFound) {
		err = nil
	}
	return nil, errors.Join(err, s.releaseLease(r.id))
}
