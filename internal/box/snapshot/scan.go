package snapshot

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"
)

// settled is how long ago a directory must have changed for what was read of it to
// be remembered: a change within one tick of a file system's clock leaves the time
// as it is. The coarsest ticks in use are of a second.
const settled = 2 * time.Second

// item is what a scan finds. It does not change.
type item struct {
	id string // as it is called; whether it is one says err
	entry
	err error // why it cannot be used; ErrNotFound: it is being made or removed
}

// seen is an item of an earlier scan.
type seen struct {
	*item
	stamp stamp // what the directory was like then
	keep  bool  // the stamp changes if the record does
}

// load opens a record and reads what it is. dir is closed by the caller, if it is
// not nil. Errors: ErrNotFound, also if it is nothing yet; ErrDamaged.
func (s *Store) load(id string) (dir *os.Root, e entry, err error) {
	info, err := s.records.Lstat(id)
	if err == nil {
		err = checkDirInfo(info)
	}
	if err == nil {
		dir, err = s.records.OpenRoot(id)
	}
	if err == nil {
		var opened fs.FileInfo
		if opened, err = dir.Stat("."); err == nil && !os.SameFile(info, opened) {
			err = fmt.Errorf("%q was replaced: %w", id, errForeign)
		}
	}
	if err == nil {
		e, err = readEntry(dir)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = ErrNotFound
	}
	return dir, e, err
}

// checkData returns why the data of a record are damaged, as far as can be seen
// from outside.
func checkData(dir *os.Root, e *entry) error {
	if e.Gen == 0 {
		return nil
	}
	err := checkDir(dir, dataName(e.Gen))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%q is missing: %w", dataName(e.Gen), ErrDamaged)
	}
	return err
}

// look is what load finds, without holding the record.
func (s *Store) look(id string) *item {
	it := &item{id: id}
	if !validID(id) {
		it.err = fmt.Errorf("%.40q is no id: %w", id, errForeign)
		return it
	}
	var dir *os.Root
	dir, it.entry, it.err = s.load(id)
	if dir != nil {
		dir.Close()
	}
	return it
}

// scan returns what is in the store, without holding anything.
func (s *Store) scan() ([]*item, error) {
	names, err := readNames(s.records)
	if err != nil {
		return nil, fmt.Errorf("read snapshots %q: %w", s.dir, err)
	}
	s.count.Store(int64(len(names)))
	s.mu.Lock()
	before := s.seen
	s.mu.Unlock()
	after := make(map[string]seen, len(names))
	items := make([]*item, 0, len(names))
	for _, name := range names {
		info, err := s.records.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read snapshots %q: %w", s.dir, err)
		}
		now := seen{stamp: stampOf(info)}
		old, known := before[name]
		if known && old.keep && old.stamp == now.stamp {
			now = old
		} else {
			now.keep = time.Since(info.ModTime()) > settled
			now.item = s.look(name)
			s.tell(now.item, old.item)
		}
		after[name] = now
		items = append(items, now.item)
	}
	s.mu.Lock()
	s.seen = after
	s.mu.Unlock()
	return items, nil
}

// tell logs, once, that a record is damaged.
func (s *Store) tell(it, before *item) {
	if it.err == nil || errors.Is(it.err, ErrNotFound) {
		return
	}
	if before == nil || before.err == nil || before.err.Error() != it.err.Error() {
		s.log.Warn("snapshot record cannot be used", "record", it.id, "err", it.err)
	}
}

// List returns the records that match says yes to; nil says yes to all. The last
// used comes first. It is what was there at some time during the call: whether a
// record still is, and is free, only Acquire finds out. Records without data (Saved
// is zero) are listed too; damaged ones are logged once.
func (s *Store) List(match func(*Meta) bool) ([]Record, error) {
	items, err := s.scan()
	if err != nil {
		return nil, err
	}
	var out []Record
	for _, it := range items {
		m := it.Meta // the caller's own
		if it.err != nil || match != nil && !match(&m) {
			continue
		}
		own := s.owns(it.id) // first: what is given up meanwhile is free, and not another's
		held, err := s.held(it.id)
		if err != nil {
			return nil, err
		}
		r := it.record(held)
		r.Own = own && held
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b Record) int {
		return cmp.Or(b.Used.Compare(a.Used), cmp.Compare(a.ID, b.ID))
	})
	return out, nil
}

func (it *item) record(held bool) Record {
	return Record{ID: it.id, Meta: it.Meta, Bytes: it.Bytes, Leased: held}
}
