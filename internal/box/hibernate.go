package box

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// writeTimeout bounds the writing of one box to disk: its memory is at most
	// 4 GiB, and a disk that takes longer is in trouble.
	writeTimeout = 2 * time.Minute
)

// writers is how many boxes are written to disk at once: two keep a disk busy, more
// have a processor each, and each holds a copy of its pages in memory meanwhile.
func writers() int64 { return int64(min(max(2, runtime.GOMAXPROCS(0)), 8)) }

// hibernates reports whether boxes go to disk instead of ending.
func (m *Manager) hibernates() bool {
	return m.parts.Snapshots != nil && m.parts.Machines.Snapshots()
}

// meta is what the record of a box says. Live and Saved are the caller's.
func (m *Manager) metaLocked(s *Box) snapshot.Meta {
	now := m.now()
	return snapshot.Meta{
		Class: snapshot.Box, Owner: string(s.key.owner), Kind: string(s.key.kind), BoxID: s.key.id,
		Name: s.name, Description: s.desc, Template: string(s.template), Flavor: string(s.flavor),
		Created: s.created, Ran: s.ranLocked(),
		// By the clock as it is now: it may have been set since, and age goes by it.
		Used: now.Add(-now.Sub(s.lastUsed)),
	}
}

// record makes the record of a new box, so that the next server knows of it if
// this one is killed. A box without one works, but cannot be hibernated.
func (m *Manager) record(s *Box) *snapshot.Lease {
	if !m.hibernates() {
		return nil
	}
	m.mu.Lock()
	meta := m.metaLocked(s)
	m.mu.Unlock()
	meta.Live = true
	claim, err := m.parts.Snapshots.Create(meta)
	if err != nil {
		m.log.Warn("box has no record on disk", logkey.Kind, s.key.kind, logkey.Box, s.key.id, logkey.Error, err)
		return nil
	}
	return claim
}

// releaseRecord gives up a record, which stays on disk with keep.
func (m *Manager) releaseRecord(claim *snapshot.Lease, keep bool) {
	err := error(nil)
	if keep {
		err = claim.Release()
	} else {
		err = claim.Remove()
	}
	if err != nil {
		m.log.Warn("record not given up", logkey.Record, claim.ID(), logkey.Error, err)
	}
}

// unloadLocked takes a box that nobody uses out of memory: it is hibernated, or
// ended for that reason where it cannot be.
func (m *Manager) unloadLocked(s *Box, reason Reason, detail string) {
	if m.beginUnloadLocked(s, reason, detail) {
		m.wg.Go(func() {
			m.eachInOrder(context.Background(), []*Box{s}, func(s *Box) { m.hibernate(s, reason, detail) })
		})
	}
}

// beginUnloadLocked is the part of unloadLocked that is done at once. It reports whether
// hibernate is to follow.
func (m *Manager) beginUnloadLocked(s *Box, reason Reason, detail string) bool {
	if s.machine == nil || s.claim == nil || !m.hibernates() {
		m.terminateLocked(s, reason, detail)
		return false
	}
	if s.tomb != nil || m.boxes[s.key] != s {
		return false
	}
	s.tomb = m.tombLocked(s, ReasonHibernated, detail)
	s.recordStays = true
	if reason == ReasonEvicted {
		m.evicted++
	}
	delete(m.boxes, s.key)
	m.leaving[s] = struct{}{}
	close(s.terminated)
	for len(s.pins) > 0 {
		s.pins[0].releaseLocked()
	}
	m.signalDrainedLocked()
	return true
}

// hibernate writes a retired box to disk and frees it. The caller has a turn of
// m.writes.
func (m *Manager) hibernate(s *Box, reason Reason, detail string) {
	begun := time.Now()
	// Not of the Manager's context: a server that closes hibernates.
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	err := m.write(ctx, s, false)
	keep := err == nil || s.claim.Dir() != ""
	if err != nil {
		detail = strings.TrimPrefix(detail+", and it could not be written to disk: "+reasonOf(err), ", and ")
	}
	m.mu.Lock()
	switch {
	case !keep:
		s.tomb = m.recordExitLocked(s, reason, detail)
	case err != nil: // what is on disk is behind, and the next call says why
		m.tombstones.add(m.tombLocked(s, reason, detail))
		fallthrough
	default:
		m.ended[ReasonHibernated]++
	}
	m.mu.Unlock()
	took := time.Since(begun).Round(time.Millisecond)
	m.observe(s, EventHibernate, "", took, !keep)
	switch {
	case err == nil:
		m.log.Info("box hibernated", logkey.Guest, s.guestID, logkey.Kind, s.key.kind, logkey.Box, s.key.id, logkey.Reason, reason, logkey.Took, took)
	case keep:
		m.log.Warn("box hibernated as it was earlier: it could not be written to disk", logkey.Guest, s.guestID, logkey.Kind, s.key.kind,
			logkey.Box, s.key.id, logkey.Saved, s.claim.Meta().Saved, logkey.Error, err)
	default:
		m.log.Warn("box ended: it could not be hibernated", logkey.Guest, s.guestID, logkey.Kind, s.key.kind, logkey.Box, s.key.id, logkey.Error, err)
	}
	m.wg.Go(func() { m.free(s, keep) }) // the next one need not wait for that
}

// write brings what the disk has of a box up to date. live says that the box
// goes on.
func (m *Manager) write(ctx context.Context, s *Box, live bool) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if live && s.ended() { // its last state is written by another
		return nil
	}
	m.mu.Lock()
	// A box that nobody called may have gone on by itself, unless it was paused.
	still := s.paused || live && !m.parts.Machines.Pauses()
	use, clean := s.use, s.savedUse == s.use && still
	meta := m.metaLocked(s)
	m.mu.Unlock()
	meta.Live = live
	meta.Saved = s.claim.Meta().Saved
	if clean {
		return s.claim.Update(meta)
	}
	begun := time.Now()
	// What a call that is under way does may be in the snapshot or not.
	if err := m.writeTo(ctx, s.claim, meta, s); err != nil {
		return err
	}
	m.mu.Lock()
	s.savedUse, s.savedAt, s.saveTook = use, m.now(), time.Since(begun)
	m.mu.Unlock()
	return nil
}

// writeTo writes the memory and the files of a box to a record. Where both do not
// fit, the memory alone is written.
func (m *Manager) writeTo(ctx context.Context, claim *snapshot.Lease, meta snapshot.Meta, s *Box) error {
	prev := claim.Dir()
	err := claim.Write(ctx, meta, 0, func(ctx context.Context, dir string) error {
		if err := s.machine.Snapshot(ctx, dir); err != nil {
			return err
		}
		m.saveHome(ctx, s, prev, dir)
		return nil
	})
	if _, full := errors.AsType[*snapshot.FullError](err); full {
		m.log.Warn("no room for the files of a box beside its memory", logkey.Guest, s.guestID, logkey.Error, err)
		err = claim.Write(ctx, meta, 0, s.machine.Snapshot)
	}
	return err
}

// tombLocked is the tombstone of a box that ends now.
func (m *Manager) tombLocked(s *Box, reason Reason, detail string) *Tombstone {
	return &Tombstone{
		ID: s.key.id, Kind: s.key.kind, Owner: s.key.owner, Name: s.name,
		Reason: reason, Detail: detail, At: m.now(),
	}
}

// recordExitLocked remembers a box that is gone for good.
func (m *Manager) recordExitLocked(s *Box, reason Reason, detail string) *Tombstone {
	t := m.tombLocked(s, reason, detail)
	m.ended[reason]++
	m.tombstones.add(t)
	return t
}

// onDisk lists the records of an owner's boxes: hibernated ones, those that this
// process or another has in memory, and those that were lost with their server.
func (m *Manager) onDisk(owner Owner, kind Kind) []snapshot.Record {
	if !m.hibernates() {
		return nil
	}
	records, err := m.parts.Snapshots.List(func(meta *snapshot.Meta) bool {
		return meta.Class == snapshot.Box && meta.Owner == string(owner) && meta.Aside == "" && (kind == "" || meta.Kind == string(kind))
	})
	if err != nil {
		m.log.Warn("hibernated boxes not listed", logkey.Error, err)
		return nil
	}
	return records
}

// hibernatedRecords lists the hibernated boxes of an owner.
func (m *Manager) hibernatedRecords(owner Owner, kind Kind) []snapshot.Record {
	return slices.DeleteFunc(m.onDisk(owner, kind), func(r snapshot.Record) bool { return r.Leased || r.Saved.IsZero() })
}

// asleep describes a hibernated box.
func infoOfRecord(r *snapshot.Record) Info {
	t := Template(r.Template)
	return Info{
		ID: r.BoxID, Kind: Kind(r.Kind), Owner: Owner(r.Owner), Name: r.Name, Description: r.Description,
		Template: t, Language: t.Language(), Flavor: Flavor(r.Flavor), State: StateHibernated,
		Created: r.Created, LastUsed: r.Used,
	}
}

// find looks for the record of a box by the box's id or, for a context, its name;
// nil if there is none.
func find(records []snapshot.Record, k key) (*snapshot.Record, error) {
	var byID, byName *snapshot.Record
	names := 0
	for i := range records {
		r := &records[i]
		switch {
		case r.BoxID == k.id:
			if byID == nil || rank(r, byID) > 0 {
				byID = r
			}
		case k.kind == KindContext && r.Name == k.id && (r.Leased || !r.Saved.IsZero()):
			byName = r
			names++
		}
	}
	if byID == nil && names > 1 {
		return nil, ambiguous("find context", k.id)
	}
	if byID == nil {
		byID = byName
	}
	return byID, nil
}

// rank compares two records of one box: that of another server's living box goes
// before one with data, and that before one that was lost, or is about to be
// removed; then the one used last. There are two while a box is rolled back.
func rank(a, b *snapshot.Record) int {
	return cmp.Or(
		compareBool(a.Leased && !a.Own, b.Leased && !b.Own),
		compareBool(!a.Saved.IsZero(), !b.Saved.IsZero()),
		compareBool(a.Own, b.Own),
		a.Used.Compare(b.Used),
	)
}

// claim takes the record of a hibernated box; nil without an error if somebody else
// was faster.
func (m *Manager) claim(op string, r *snapshot.Record) (*snapshot.Lease, error) {
	claim, err := m.parts.Snapshots.Acquire(r.ID)
	switch {
	case errors.Is(err, snapshot.ErrNotFound), errors.Is(err, snapshot.ErrLeased):
		return nil, nil
	case err != nil:
		return nil, &Error{
			Code: CodeStartFailed, Op: op, Msg: fmt.Sprintf("Failed to wake the %s %s", r.Kind, r.BoxID), Err: err,
			Hint: "Try again; if it happens again, the operator finds the reason in the server's log.",
		}
	}
	if meta := claim.Meta(); claim.Dir() == "" || meta.BoxID != r.BoxID || meta.Owner != r.Owner { // it changed since it was listed
		m.releaseRecord(claim, true)
		return nil, nil
	}
	return claim, nil
}

// asWokenLocked is the box of a claim, before it is admitted.
func (m *Manager) asWokenLocked(claim *snapshot.Lease) (*Box, *Woken) {
	meta := claim.Meta()
	s := &Box{
		key: key{Owner(meta.Owner), Kind(meta.Kind), meta.BoxID}, name: meta.Name, desc: meta.Description,
		template: Template(meta.Template), flavor: Flavor(meta.Flavor), created: meta.Created,
		origin: origin{claim: claim, stale: meta.Live, ran: meta.Ran},
	}
	w := &Woken{Saved: meta.Saved, Behind: meta.Live}
	// One from before that time is of an earlier box.
	if t := m.tombstones.get(s.key); w.Behind && t != nil && t.At.After(w.Saved) {
		w.Why = t
	}
	return s, w
}

// Woken says that a call woke a hibernated box.
type Woken struct {
	Saved time.Time // when it was written to disk
	// Behind says that the box had gone on after that: what it did since is lost.
	Behind bool
	// Why says how the box that was behind ended; nil: its server was killed.
	Why *Tombstone
	// Rescued says what the box could not bring along; nil: nothing is missing.
	Rescued *Rescue
}

// reasonOf is the cause of an error in one line for people.
func reasonOf(err error) string {
	for _, known := range []struct {
		is   error
		text string
	}{
		{engine.ErrExhausted, "the disk or the memory of the host is full"},
		{snapshot.ErrFull, "the disk that boxes may use is full"},
		{context.DeadlineExceeded, "it took too long"},
	} {
		if errors.Is(err, known.is) {
			return known.text
		}
	}
	return strings.TrimSpace(clip(err.Error(), 200))
}
