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

// removalBatch bounds the records that are leased at once to be removed. A batch is announced
// in one call, so that notes of it need one write.
const removalBatch = 64

// removal is a record to remove, unless it is leased. check gets the leased record and returns
// its description for the announcement, or nil to keep the record.
type removal struct {
	id    string
	check func(it *item, dir *os.Root) (*Removed, error)
}

// removeAll removes records and returns those that it has removed, also with an error. It
// announces each before it removes it, leaves those that could not be noted, and
// continues after errors.
func (s *Store) removeAll(all []removal) (removed []Removed, err error) {
	for batch := range slices.Chunk(all, removalBatch) {
		gone, failed := s.removeBatch(batch)
		removed, err = append(removed, gone...), errors.Join(err, failed)
	}
	return removed, err
}

func (s *Store) removeBatch(batch []removal) (removed []Removed, err error) {
	var going []Removed
	for _, r := range batch {
		gone, failed := s.take(r)
		if gone != nil {
			going = append(going, *gone)
		}
		err = errors.Join(err, failed)
	}
	stay, failed := s.announce(going)
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

// announce calls the function of OnRemoving with the records that it has not noted yet, which are all leased.
// It returns the ids of those that must stay.
func (s *Store) announce(going []Removed) (stay []string, err error) {
	if s.removing == nil {
		return nil, nil
	}
	s.mu.Lock()
	fresh := slices.DeleteFunc(slices.Clone(going), func(r Removed) bool {
		used, known := s.noted[r.ID]
		return known && used.Equal(r.Used)
	})
	s.mu.Unlock()
	if len(fresh) == 0 {
		return nil, nil
	}
	if stay, err = s.removing(slices.Clone(fresh)); err != nil {
		err = fmt.Errorf("keep %s, whose removal could not be noted: %w", plural.N(len(stay), "record"), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range fresh {
		if !slices.Contains(stay, r.ID) {
			s.noted[r.ID] = r.Used
		}
	}
	return stay, err
}

// forgetNotes drops the notes of records that are not among items, those on the disk.
func (s *Store) forgetNotes(items []*item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.noted) == 0 {
		return
	}
	there := make(map[string]bool, len(items))
	for _, it := range items {
		there[it.id] = true
	}
	maps.DeleteFunc(s.noted, func(id string, _ time.Time) bool { return !there[id] })
}

// take leases a record that is to be removed. It returns nil without an error if the record
// stays, or is gone.
func (s *Store) take(r removal) (gone *Removed, err error) {
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
	gone, err = r.check(&it, dir)
	if dir != nil {
		dir.Close()
	}
	if err == nil && gone != nil {
		return gone, nil
	}
	if errors.Is(err, ErrNotFound) {
		err = nil
	}
	return nil, errors.Join(err, s.releaseLease(r.id))
}
