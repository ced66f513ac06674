package box

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/statefile"
)

const (
	// tombstonesVersion is that of the file of tombstones.
	tombstonesVersion = 1
	// tombstonesTimeout bounds the wait for another server that has the file, which
	// merges a thousand tombstones in milliseconds.
	tombstonesTimeout = 5 * time.Second
)

// errUnchanged says that there is nothing to write.
var errUnchanged = errors.New("nothing has changed")

// shareTombstones merges the tombstones with those in the file that all servers on the
// state directory share, so that a client that comes back to another server learns
// what became of its box.
func (m *maintainer) shareTombstones(ctx context.Context) { m.noteShared(m.mergeTombstones(ctx)) }

// mergeTombstones is shareTombstones for callers that need to know whether it succeeded.
// While it reads, writes and syncs the file, it holds the lock of that file alone, without
// which one of two servers' updates would be lost; it takes reg.mu for the merge in memory.
func (m *maintainer) mergeTombstones(ctx context.Context) error {
	if m.parts.Tombstones == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, tombstonesTimeout)
	defer cancel()
	file := m.tombstoneFile()
	err := file.Update(ctx, func(list *[]Tombstone) error {
		m.reg.mu.Lock()
		defer m.reg.mu.Unlock()
		all := m.reg.tombstones.merge(*list)
		if slices.EqualFunc(all, *list, func(a, b Tombstone) bool { return a.key() == b.key() && a.At.Equal(b.At) }) {
			return errUnchanged
		}
		*list = all
		return nil
	})
	if errors.Is(err, errUnchanged) {
		return nil
	}
	return err
}

func (m *maintainer) tombstoneFile() statefile.File[[]Tombstone] {
	return statefile.File[[]Tombstone]{Path: m.parts.Tombstones, Version: tombstonesVersion}
}

// shareLimits shares the tombstones at once if the box had limits. It is called before the
// record of the box is removed: another server finds the record, which this one has leased,
// or the limits in the file, and never neither. It reports false if the limits are in the record
// only.
func (m *maintainer) shareLimits(s *spec) bool {
	if len(s.limits) == 0 {
		return true
	}
	err := m.mergeTombstones(context.Background()) // also while the Manager closes
	m.noteShared(err)
	return err == nil
}

// learnTombstones takes in the tombstones of other servers if the file has changed since the
// last call. A server calls it once it has found no record of a box, and before it makes a new
// one of that id, which has the limits of the one that another server has lost.
func (m *maintainer) learnTombstones() {
	if m.parts.Tombstones == "" {
		return
	}
	now, err := os.Stat(m.parts.Tombstones)
	if err != nil { // none was ever written; if it cannot be read, sharing reports that
		return
	}
	m.reg.mu.Lock()
	known := m.learnt
	m.reg.mu.Unlock()
	if known != nil && os.SameFile(known, now) && known.ModTime().Equal(now.ModTime()) && known.Size() == now.Size() {
		return
	}
	file := m.tombstoneFile()
	list, err := file.Read() // at least as new as now
	if err == nil {
		m.reg.mu.Lock()
		m.reg.tombstones.merge(list)
		m.learnt = now
		m.reg.mu.Unlock()
	}
	m.noteShared(err)
}

// noteShared logs the first of several failures in a row to share tombstones.
func (m *maintainer) noteShared(err error) {
	m.reg.mu.Lock()
	again := m.unshared
	m.unshared = err != nil
	m.reg.mu.Unlock()
	// Closing the Manager cancels a write under way, and then writes once more.
	if err != nil && !again && !errors.Is(err, errClosed) {
		m.log.Warn("tombstones not shared with other servers", logkey.Error, err)
	}
}

// merge takes in what others know, the newer of two of one box, and returns all
// there are then, the oldest first.
func (ts *tombstones) merge(others []Tombstone) []Tombstone {
	newest := make(map[key]Tombstone)
	for _, t := range ts.lru.Values() {
		newest[t.key()] = *t
	}
	for _, t := range others {
		k := t.key()
		here, ok := newest[k]
		if !ok || t.At.After(here.At) {
			newest[k] = t
		}
	}
	all := slices.SortedFunc(maps.Values(newest), func(a, b Tombstone) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID))
	})
	now := ts.now()
	all = slices.DeleteFunc(all, func(t Tombstone) bool { return now.Sub(t.At) > tombstoneAge })
	all = newestOfEach(all, maxTombstones)
	ts.lru.Purge()
	for i := range all {
		t := all[i] // its own: the caller's may change
		ts.add(&t)
	}
	return all
}
