package snapshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
)

// Lease is exclusive access to a record: a file lock that does not expire. It ends with Release,
// Remove or the process. Its methods may be called concurrently.
type Lease struct {
	s   *Store
	id  string
	dir *os.Root
	op  chan struct{} // serializes Write, Extend, Release and Remove

	mu   sync.Mutex // also orders writes of metadata, and is held during them
	e    entry      // guarded by mu
	done bool       // guarded by mu

	consent Consent // guarded by mu; of AllowDrop
}

// ID returns the record's id.
func (l *Lease) ID() string { return l.id }

// Meta returns the record's metadata.
func (l *Lease) Meta() Meta {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.e.Meta
}

// Bytes returns the size of the data.
func (l *Lease) Bytes() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.e.Bytes
}

// Dir returns the directory of the data, "" if there are none. It exists until the next
// Write, Extend, Release or Remove.
func (l *Lease) Dir() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.e.Gen == 0 {
		return ""
	}
	return l.s.dataPath(l.id, l.e.Gen)
}

// Update replaces the record's metadata. The class cannot change; Written is ignored; a
// zero Created keeps its value, a zero Used becomes now. An update may be lost in a
// power failure, except for a change of Stale of a record with data, which is synced:
// no reader may mistake old data for the latest state.
//
// Errors: ErrInvalid; ErrFull if the disk is; os.ErrClosed after Release or Remove.
func (l *Lease) Update(m Meta) error {
	if err := l.update(m); err != nil {
		return fmt.Errorf("update record %q: %w", l.id, err)
	}
	return nil
}

func (l *Lease) update(m Meta) (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done {
		return os.ErrClosed
	}
	e, wasStale := l.e, l.e.Stale
	if e.Meta, err = l.s.meta(m, l.e); err != nil {
		return err
	}
	if e.Gen > 0 && e.Stale != l.e.Stale {
		there, err := l.writeSaved(e)
		if there {
			l.e.Stale = e.Stale
		}
		if err != nil {
			return err
		}
	}
	if err := putMeta(l.dir, &e); err != nil {
		return err
	}
	l.e = e
	if e.Stale && !wasStale {
		return l.ClearQuiescent() // of an earlier process
	}
	return nil
}

// writeSaved replaces the description of the data and syncs it. After an error it may
// be in place nevertheless, as there reports, though perhaps not durably.
func (l *Lease) writeSaved(e entry) (there bool, err error) {
	e.Pending = 0 // not part of the data
	if err := writeEntry(l.dir, savedName+newSuffix, &e, true); err != nil {
		return false, err
	}
	l.s.cfg.step("described")
	if err := l.dir.Rename(savedName+newSuffix, savedName); err != nil {
		return false, err
	}
	l.s.cfg.step("renamed")
	return true, syncDir(l.dir, ".")
}

// Write replaces the record's data and metadata; see Update for m. Of its Used and that
// of a concurrent Update the later one wins. Written is the time at which Write began.
//
// Write reserves estimate bytes: where Config.MaxBytes or MinFree leave no room, the
// least recently used Box records without a lease are evicted. Where only Config.Reserved
// leaves none, nothing is evicted, and Write fails. The replaced data do not
// count against MaxBytes, but occupy the disk. If more was written than estimated,
// Write reserves that too.
//
// write gets an existing empty directory with mode 0700, and must sync what it writes
// there, names included. When Write returns nil, the new data and m are durable. After
// an error or a crash, data and metadata are unchanged; only if the last sync fails,
// Write returns an error although the new ones are in place.
//
// Errors: that of write; a *FullError; ErrFull also if the disk was full during write;
// ErrInvalid; the cause of ctx, which ends the wait for another Write; os.ErrClosed.
func (l *Lease) Write(ctx context.Context, m Meta, estimate int64, write func(ctx context.Context, dir string) error) error {
	if err := l.lockOp(ctx); err != nil {
		return fmt.Errorf("write record %q: %w", l.id, err)
	}
	defer l.unlockOp()
	l.mu.Lock()
	old := l.e
	l.mu.Unlock()
	w := writing{next: entry{Gen: old.Gen + 1}, need: estimate, write: write}
	old.Written = l.s.now().UTC()
	var err error
	if w.next.Meta, err = l.s.meta(m, old); err == nil {
		err = l.write(ctx, w)
	}
	if err != nil {
		return fmt.Errorf("write record %q: %w", l.id, full(err))
	}
	return nil
}

// Extend adds files to the record's data, or replaces files of them. The metadata stay as they
// are, Written included. It reserves replaced bytes on the disk: write is expected to write as
// many, in place of files that have them now.
//
// write gets a directory that has the files of the data by hard links: it must not change
// their content, but may remove them or rename others over them. Until Extend returns nil, the
// data are as before, and a crash leaves them so. For the rest see Write.
//
// Errors: those of Write; ErrInvalid for a record without data; one of the file system if it
// has no hard links.
func (l *Lease) Extend(ctx context.Context, replaced int64, write func(ctx context.Context, dir string) error) error {
	if err := l.lockOp(ctx); err != nil {
		return fmt.Errorf("extend record %q: %w", l.id, err)
	}
	defer l.unlockOp()
	l.mu.Lock()
	old := l.e
	l.mu.Unlock()
	if old.Gen == 0 {
		return fmt.Errorf("extend record %q: it has no data: %w", l.id, ErrInvalid)
	}
	next := old
	next.Gen, next.Pending = old.Gen+1, 0
	link := func(ctx context.Context, dir string) error {
		if err := linkFiles(l.dir, dataName(old.Gen), dataName(next.Gen)); err != nil {
			return err
		}
		if err := write(ctx, dir); err != nil {
			return err
		}
		return syncDir(l.dir, dataName(next.Gen))
	}
	err := l.write(ctx, writing{next: next, need: old.Bytes, there: max(old.Bytes-max(replaced, 0), 0), extends: true, write: link})
	if err != nil {
		return fmt.Errorf("extend record %q: %w", l.id, full(err))
	}
	return nil
}

// writing is what Write or Extend does to a record.
type writing struct {
	next        entry // without Bytes
	need, there int64 // estimated bytes of the data, and how many of them are hard links to earlier data
	extends     bool  // keep the metadata, which may change meanwhile
	write       func(ctx context.Context, dir string) error
}

// copies reports whether the data only copy a box that stays in memory.
func (w *writing) copies() bool { return w.next.Purpose == Box && w.next.Stale }

// write makes the data of w.next and commits them.
func (l *Lease) write(ctx context.Context, w writing) (err error) {
	if err := l.removeStrays(); err != nil {
		return err
	}
	need := min(max(w.need, 0), maxBytes)
	if err := l.s.reserveBytes(ctx, l, need, w.there, w.copies()); err != nil {
		return err
	}
	name := dataName(w.next.Gen)
	l.s.beginWrite(l, unwritten{name, w.there})
	defer func() { l.s.endWrite(l) }()
	defer func() {
		if err != nil {
			err = errors.Join(err, l.rollback(w.next))
		}
	}()
	if err := l.dir.Mkdir(name, 0o700); err != nil {
		return err
	}
	l.s.cfg.step("made")
	if err := w.write(ctx, l.s.dataPath(l.id, w.next.Gen)); err != nil {
		return err
	}
	l.s.cfg.step("written")
	if err := checkDir(l.dir, name); err != nil {
		return err // it could not be acquired again
	}
	if w.next.Bytes, err = sizeOf(l.dir, name); err != nil {
		return err
	}
	if w.next.Bytes > need {
		if err := l.s.reserveBytes(ctx, l, w.next.Bytes, w.next.Bytes, w.copies()); err != nil {
			return err
		}
	}
	if w.next.Gen == 1 {
		if err := syncDir(l.s.records, "."); err != nil {
			return err
		}
	}
	return l.commit(w.next, w.extends)
}

// commit makes next the state of the record, and removes the data that it replaces. For extends
// see publish.
func (l *Lease) commit(next entry, extends bool) error {
	old, err := l.publish(next, extends)
	if err != nil {
		return err
	}
	if old.Gen > 0 {
		_ = l.dir.RemoveAll(dataName(old.Gen)) // if this fails, the next Write or Sweep retries
	}
	return nil
}

// publish makes next the state of the record, and returns the one before. With extends, it
// keeps the metadata, which may have changed meanwhile.
func (l *Lease) publish(next entry, extends bool) (old entry, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old = l.e
	if extends {
		next.Meta = old.Meta
	} else if old.Used.After(next.Used) {
		next.Used = old.Used
	}
	there, err := l.writeSaved(next)
	if there {
		l.e = next
	}
	if err != nil {
		return old, err
	}
	// Nothing refers to these any more; if removing them fails, the next Write or Sweep
	// retries.
	_ = l.dir.Remove(metaName)
	if !extends {
		_ = l.ClearQuiescent()
	}
	return old, nil
}

// removeStrays removes the data of unfinished writes.
func (l *Lease) removeStrays() error {
	l.mu.Lock()
	gen := l.e.Gen
	l.mu.Unlock()
	names, err := strays(l.dir, gen)
	for _, name := range names {
		err = errors.Join(err, l.dir.RemoveAll(name))
	}
	return err
}

// reserve publishes how many bytes are about to be written.
func (l *Lease) reserve(pending int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.e.Pending == pending {
		return nil
	}
	l.e.Pending = pending
	return putMeta(l.dir, &l.e)
}

// rollback removes the data of a failed write.
func (l *Lease) rollback(next entry) error {
	l.mu.Lock()
	committed := l.e.Gen == next.Gen
	l.mu.Unlock()
	if committed {
		return nil
	}
	err := l.dir.RemoveAll(dataName(next.Gen))
	// If even this fails, others reserve more than needed until the next Update.
	_ = l.reserve(0)
	return err
}

// lockOp waits for the end of another Write, Extend, Release or Remove.
func (l *Lease) lockOp(ctx context.Context) error {
	select {
	case l.op <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done {
		<-l.op
		return os.ErrClosed
	}
	return nil
}

func (l *Lease) unlockOp() { <-l.op }

// Release ends the lease, after a Write in progress. The record stays. It does nothing
// after Release or Remove.
func (l *Lease) Release() error {
	if l.lockOp(context.Background()) != nil {
		return nil
	}
	defer l.unlockOp()
	if err := l.release(); err != nil {
		return fmt.Errorf("release record %q: %w", l.id, err)
	}
	return nil
}

// Remove removes the record with its data and ends the lease, after a Write in
// progress. It does nothing after Release or Remove.
func (l *Lease) Remove() error {
	if l.lockOp(context.Background()) != nil {
		return nil
	}
	defer l.unlockOp()
	// The lease ends last, so that no process acquires the record while it is removed.
	err := errors.Join(l.s.moveToTrash(l.id), l.release(), l.s.removeFromTrash(l.id))
	if err != nil {
		return fmt.Errorf("remove record %q: %w", l.id, err)
	}
	return nil
}

// release ends the lease.
func (l *Lease) release() error {
	l.mu.Lock()
	l.done = true
	l.mu.Unlock()
	var err error
	if l.dir != nil {
		err = l.dir.Close()
	}
	return errors.Join(err, l.s.releaseLease(l.id))
}
