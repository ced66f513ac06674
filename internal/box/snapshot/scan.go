package snapshot

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// settled is the age of a directory's last change from which its content may be cached:
// a change within one tick of the file system's clock does not alter the time. The
// coarsest ticks in use are one second.
const settled = 2 * time.Second

// item is one record found by a scan. It is immutable.
type item struct {
	id string // the directory's name; err says whether it is a valid id
	entry
	err error // why it is unusable; ErrNotFound: being made or removed
}

// seen is a cached item of an earlier scan.
type seen struct {
	*item
	stamp stamp // of the directory at that time
	keep  bool  // stamp changes whenever the record does
}

// listing is a cached list of the names in the directory of records. It is immutable.
type listing struct {
	names []string
	stamp stamp // of the directory before it was read
	keep  bool  // stamp changes whenever the names do
}

// load opens a record and reads its entry. The caller closes dir unless it is nil.
// Errors: ErrNotFound, also for a record being made; ErrDamaged.
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

// checkData returns an error if the data directory of a record is missing or foreign.
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

// readItem reads a record without a lease.
func (s *Store) readItem(id string) *item {
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

// recordNames returns the names in the directory of records. It reads the directory only
// after a change.
func (s *Store) recordNames() ([]string, error) {
	begun := time.Now() // what changes from now on may be missing in the names
	info, err := s.records.Stat(".")
	if err != nil {
		return nil, err
	}
	now := stampOf(info)
	s.mu.Lock()
	last := s.listed
	s.mu.Unlock()
	if last.keep && last.stamp == now {
		return last.names, nil
	}
	names, err := readNames(s.records)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.listed = listing{names: names, stamp: now, keep: begun.Sub(info.ModTime()) > settled}
	s.mu.Unlock()
	return names, nil
}

// scan returns all records, without taking leases.
func (s *Store) scan() ([]*item, error) {
	names, err := s.recordNames()
	if err != nil {
		return nil, fmt.Errorf("read snapshots %q: %w", s.dir, err)
	}
	s.count.Store(int64(len(names)))
	s.mu.Lock()
	before, resized := s.seen, s.resized
	s.mu.Unlock()
	after := make(map[string]seen, len(names))
	items := make([]*item, 0, len(names))
	damaged := false
	for _, name := range names {
		begun := time.Now()
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
			now.item = s.readItem(name)
			// An error that says nothing about the record may be gone the next time.
			now.keep = begun.Sub(info.ModTime()) > settled && (now.err == nil || errors.Is(now.err, ErrDamaged))
			s.logDamaged(now.item, old.item)
		}
		after[name] = now
		items = append(items, now.item)
		damaged = damaged || now.item.removable()
	}
	s.damaged.Store(damaged)
	s.mu.Lock()
	s.seen = after
	if s.resized == resized { // otherwise items may be older than what is known
		s.recountLocked(items)
	}
	s.mu.Unlock()
	return items, nil
}

// removable reports whether the record is damaged and enough is left to know what it was of.
func (it *item) removable() bool {
	return errors.Is(it.err, ErrDamaged) && !errors.Is(it.err, errForeign) && it.BoxID != ""
}

// logDamaged logs once that a record is damaged.
func (s *Store) logDamaged(it, before *item) {
	if it.err == nil || errors.Is(it.err, ErrNotFound) {
		return
	}
	if before == nil || before.err == nil || before.err.Error() != it.err.Error() {
		s.log.Warn("snapshot record cannot be used", logkey.Record, it.id, logkey.Error, it.err)
	}
}

// List returns the records for which match returns true, all if match is nil, most
// recently used first. The list may be outdated when it is returned: only Acquire tells
// whether a record still exists and is free. Records without data (zero Written) are
// included; damaged ones are logged once.
//
// List fails if the process or the host is short of descriptors or memory: a record that
// is not listed then may exist.
func (s *Store) List(match func(*Meta) bool) ([]Record, error) {
	items, err := s.scan()
	if err != nil {
		return nil, err
	}
	var out []Record
	for _, it := range items {
		if outOfResources(it.err) {
			return nil, fmt.Errorf("read record %q: %w", it.id, it.err)
		}
		m := it.Meta // a copy for match
		if it.err != nil || match != nil && !match(&m) {
			continue
		}
		own := s.leasedHere(it.id) // first: a lease released in between counts as none, not as another process's
		held, err := s.leased(it.id)
		if err != nil {
			return nil, err
		}
		r := it.record(held)
		r.Own = own && held
		if held && !own {
			if r.Leaving, err = s.leaving(it.id); err != nil {
				return nil, err
			}
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b Record) int {
		return cmp.Or(b.Used.Compare(a.Used), cmp.Compare(a.ID, b.ID))
	})
	return out, nil
}

// outOfResources reports whether an error comes from a lack of descriptors or memory.
func outOfResources(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

func (it *item) record(held bool) Record {
	return Record{ID: it.id, Meta: it.Meta, Bytes: it.Bytes, Leased: held}
}
