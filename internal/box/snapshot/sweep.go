package snapshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// Sweep removes what nobody needs: what writes and removals that were cut short
// have left, and of the records that nobody holds those without data (Lost), those
// that are damaged, and Box records that have not been used for Config.MaxAge and
// have seemed so for Config.AgeDoubt. If the limits of Config are exceeded then, the
// least recently used Box records go (Quota), as many as it takes, even if that is
// not enough. What a later version or somebody else has put there is left alone.
//
// It returns what it has removed also with an error, and goes on after errors
// unless ctx ends.
func (s *Store) Sweep(ctx context.Context) (removed []Removed, err error) {
	errs := []error{s.sweepTrash(ctx)}
	items, scanErr := s.scan()
	errs = append(errs, scanErr)
	s.mu.Lock()
	aged := s.aged
	s.aged = make(map[string]time.Time)
	s.mu.Unlock()
	for _, it := range items {
		if ctx.Err() != nil {
			break
		}
		r, err := s.sweepRecord(it.id, aged)
		if r != nil {
			removed = append(removed, *r)
		}
		errs = append(errs, err)
	}
	if ctx.Err() == nil {
		evicted, err := s.sweepRoom(ctx)
		removed, errs = append(removed, evicted...), append(errs, err)
	}
	if err := errors.Join(append(errs, context.Cause(ctx))...); err != nil {
		return removed, fmt.Errorf("sweep snapshots %q: %w", s.dir, err)
	}
	return removed, nil
}

// sweepTrash removes what was not removed for good.
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

// sweepRecord removes a record, or what a write has left in it, and returns it if
// it is gone. aged is as of the last Sweep.
func (s *Store) sweepRecord(id string, aged map[string]time.Time) (*Removed, error) {
	if !validID(id) {
		return nil, nil
	}
	held, err := s.held(id)
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
	if err == nil && why == Age && !s.sure(id, aged) {
		return nil, nil
	}
	if err != nil || why == "" && len(rest) == 0 {
		return nil, err // most records; it has never been held
	}
	var gone Removed
	err = s.reap(id, func(it *item, dir *os.Root) (bool, error) {
		why, rest, err := s.inspect(it, dir)
		if err != nil || why != "" {
			gone = Removed{Record: it.record(false), Why: why}
			return err == nil, err
		}
		for _, name := range rest {
			// Removing it may take longer than anybody should wait for the record.
			err = errors.Join(err, s.root.Rename(recordsDir+"/"+id+"/"+name, trashDir+"/"+id+"."+name))
		}
		return false, err
	})
	if errors.Is(err, errSpared) || errors.Is(err, ErrNotFound) {
		gone, err = Removed{}, nil
	}
	for _, name := range rest {
		err = errors.Join(err, s.emptyTrash(id+"."+name))
	}
	if err != nil || gone.Why == "" {
		return nil, err
	}
	return &gone, nil
}

// sure reports whether a record has seemed too old for long enough to go by it;
// before says since when records have, as of the last Sweep.
func (s *Store) sure(id string, before map[string]time.Time) bool {
	since, known := before[id]
	if !known {
		since = time.Now()
	}
	if time.Since(since) >= s.cfg.AgeDoubt {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.aged[id] = since
	return false
}

// inspect returns why a record that nobody holds should go, if it should, else what
// in it should.
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
	case it.Class == Box && s.cfg.MaxAge > 0 && s.now().Sub(it.Used) > s.cfg.MaxAge:
		return Age, nil, nil
	}
	rest, err = strays(dir, it.Gen)
	return "", rest, err
}

// sweepRoom evicts what there is too much of.
func (s *Store) sweepRoom(ctx context.Context) ([]Removed, error) {
	unlockRoom, err := s.lockRoom(ctx)
	if err != nil {
		return nil, err
	}
	defer unlockRoom()
	items, err := s.scan()
	if err != nil {
		return nil, err
	}
	l, err := s.lacks(items, "", 0, 0)
	if err != nil {
		return nil, err
	}
	victims, err := s.victims(items, nil, l)
	if err != nil {
		return nil, err
	}
	removed, _, err := s.evict(victims, l)
	return removed, err
}
