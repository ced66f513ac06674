package snapshot

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"slices"
)

// lack is how much is missing; nothing if it is not positive.
type lack struct {
	budget  int64 // bytes over Config.MaxBytes
	disk    int64 // bytes under Config.MinFree
	records int64 // over Config.MaxRecords
}

func (l lack) none() bool { return l.budget <= 0 && l.disk <= 0 && l.records <= 0 }

// without returns what is missing once a record is gone.
func (l lack) without(it *item) lack {
	return lack{budget: l.budget - it.Bytes, disk: l.disk - it.Bytes, records: l.records - 1}
}

// lacks returns what is missing for need bytes more in the place of the data of the
// record own, of which written are on the disk already.
func (s *Store) lacks(items []*item, own string, need, written int64) (lack, error) {
	dir, err := s.root.Open(".")
	if err != nil {
		return lack{}, err
	}
	defer dir.Close()
	free, err := freeBytes(dir)
	if err != nil {
		return lack{}, err
	}
	used, coming := need, need-written
	for _, it := range items {
		if it.err != nil || it.id == own {
			continue
		}
		bytes := it.Bytes
		if it.Pending > 0 {
			held, err := s.held(it.id)
			if err != nil {
				return lack{}, err
			}
			if held { // else who was writing is no more
				bytes = max(bytes, it.Pending)
				coming += max(0, it.Pending-s.writtenOf(it))
			}
		}
		used += bytes
	}
	l := lack{disk: coming + s.cfg.MinFree - free, records: int64(len(items) - s.cfg.MaxRecords)}
	if s.cfg.MaxBytes > 0 {
		l.budget = used - s.cfg.MaxBytes
	}
	return l, nil
}

// writtenOf returns how much of what is being written in a record is there. What
// cannot be seen counts as not there yet.
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

// makeRoom makes room for need bytes in the place of the data of a claim, of which
// written are on the disk already, and reserves it.
func (s *Store) makeRoom(ctx context.Context, c *Lease, need, written int64) error {
	who := &wants{c.Meta().Owner, c.id, need}
	return s.roomFor(ctx, who, func(items []*item) (lack, error) {
		l, err := s.lacks(items, c.id, need, written)
		l.records = 0 // which are not about to be more
		return l, err
	}, func() error { return c.reserve(need) })
}

// wants is who wants room, for which record in place of what that has, and how
// many bytes of it.
type wants struct {
	owner, id string
	bytes     int64
}

// roomForRecord makes room for one more record of an owner.
func (s *Store) roomForRecord(owner string) error {
	if s.count.Load() < int64(s.cfg.MaxRecords) {
		return nil
	}
	return s.roomFor(context.Background(), &wants{owner: owner}, func(items []*item) (lack, error) {
		return lack{records: int64(len(items) + 1 - s.cfg.MaxRecords)}, nil
	}, func() error { return nil })
}

// roomFor evicts until nothing is missing of what lacks asks for, then reserves it,
// while nobody else does the same.
func (s *Store) roomFor(ctx context.Context, who *wants, lacks func([]*item) (lack, error), reserve func() error) error {
	unlockRoom, err := s.lockRoom(ctx)
	if err != nil {
		return err
	}
	removed, err := s.roomAlone(who, lacks)
	if err == nil {
		err = reserve()
	}
	unlockRoom()
	if s.cfg.Evicted != nil {
		for _, r := range removed {
			s.cfg.Evicted(r)
		}
	}
	return err
}

func (s *Store) roomAlone(who *wants, lacks func([]*item) (lack, error)) ([]Removed, error) {
	items, err := s.scan()
	if err != nil {
		return nil, err
	}
	l, err := lacks(items)
	if err != nil || l.none() {
		return nil, err
	}
	victims, err := s.victims(items, who, l)
	if err != nil {
		return nil, err
	}
	rest := l
	for _, it := range victims {
		rest = rest.without(it)
	}
	if !rest.none() {
		return nil, missing(rest) // and nobody shall lose a box for nothing
	}
	removed, l, err := s.evict(victims, l)
	if err == nil && !l.none() {
		err = missing(l) // others have come for what was free
	}
	return removed, err
}

func missing(l lack) error { return &FullError{Missing: max(l.budget, l.disk, 0)} }

// victims returns which records to evict for what is missing, no more than are
// needed; they may be fewer. Only boxes that nobody holds go: first those of who
// wants the room, then those of who has most on the disk, but of nobody who has
// less there than who wants it; of each, the least recently used before others.
// Without who, nobody in particular wants it.
func (s *Store) victims(items []*item, who *wants, l lack) ([]*item, error) {
	weight := func(it *item) int64 {
		if l.records > 0 {
			return 1
		}
		return it.Bytes
	}
	var boxes []*item
	has := make(map[string]int64)
	if who != nil {
		has[who.owner] = max(who.bytes, 1)
	}
	for _, it := range items {
		if it.err != nil || who != nil && it.id == who.id {
			continue
		}
		has[it.Owner] += weight(it)
		if it.Class == Box {
			boxes = append(boxes, it)
		}
	}
	most := maps.Clone(has)
	slices.SortFunc(boxes, func(a, b *item) int {
		if a.Owner != b.Owner {
			if who != nil && a.Owner == who.owner {
				return -1
			}
			if who != nil && b.Owner == who.owner {
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
		if l.none() {
			break
		}
		if l.records <= 0 && it.Bytes == 0 {
			continue // it would not help
		}
		if who != nil && has[it.Owner] < has[who.owner] {
			continue
		}
		held, err := s.held(it.id)
		if err != nil {
			return nil, err
		}
		if !held {
			out = append(out, it)
			has[it.Owner] -= weight(it)
			l = l.without(it)
		}
	}
	return out, nil
}

// evict removes victims, but for those that have been used since they were chosen,
// and returns what is missing then.
func (s *Store) evict(victims []*item, l lack) (removed []Removed, _ lack, err error) {
	for _, it := range victims {
		err := s.reap(it.id, func(now *item, _ *os.Root) (bool, error) {
			return now.Gen == it.Gen && now.Used.Equal(it.Used), now.err
		})
		switch {
		case err == nil:
			removed = append(removed, Removed{Record: it.record(false), Why: Quota})
			l = l.without(it)
		case !errors.Is(err, errSpared) && !errors.Is(err, ErrNotFound):
			return removed, l, err
		}
	}
	return removed, l, nil
}

// errSpared says that a record is still wanted.
var errSpared = errors.New("the record is wanted")

// reap removes a record if nobody holds it and, once we do, judge says so. Else its
// error is errSpared.
func (s *Store) reap(id string, judge func(it *item, dir *os.Root) (bool, error)) error {
	err := s.tryHold(id, false)
	if errors.Is(err, ErrLeased) {
		return errSpared
	}
	if err != nil {
		return err
	}
	it := item{id: id}
	var dir *os.Root
	dir, it.entry, it.err = s.load(id)
	guilty, err := judge(&it, dir)
	if dir != nil {
		dir.Close()
	}
	if err == nil && !guilty {
		err = errSpared
	}
	if err == nil {
		err = s.discard(id)
	}
	if err = errors.Join(err, s.dropHold(id)); err == nil {
		_ = s.emptyTrash(id) // the next Sweep tries again, and says why not
	}
	return err
}
