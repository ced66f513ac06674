package snapshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
)

// Lease is a hold of a record. Its methods may be called at once.
type Lease struct {
	s   *Store
	id  string
	dir *os.Root
	op  chan struct{} // a token: one Write, Release or Remove at a time

	mu   sync.Mutex // also keeps what is written in order; what is waited for for long is not
	e    entry      // guarded by mu
	done bool       // guarded by mu
}

// ID returns the record's id.
func (c *Lease) ID() string { return c.id }

// Meta returns what the record is.
func (c *Lease) Meta() Meta {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.e.Meta
}

// Bytes returns how much the data are.
func (c *Lease) Bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.e.Bytes
}

// Dir returns the directory of the data, "" if there are none. It is there until
// the next Write, Release or Remove.
func (c *Lease) Dir() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.e.Gen == 0 {
		return ""
	}
	return c.s.dataPath(c.id, c.e.Gen)
}

// Update says what the record is now. The class stays; Saved is ignored; a zero
// Created stays as it was, a zero Used becomes now. After a power cut an update may
// not have been, but for what it says of Live, which is waited for if it changes and
// there are data: nobody shall believe that they are all there was.
//
// Errors: ErrInvalid; ErrFull if the disk is; os.ErrClosed after Release or Remove.
func (c *Lease) Update(m Meta) error {
	if err := c.update(m); err != nil {
		return fmt.Errorf("update record %q: %w", c.id, err)
	}
	return nil
}

func (c *Lease) update(m Meta) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return os.ErrClosed
	}
	e := c.e
	if e.Meta, err = c.s.meta(m, c.e); err != nil {
		return err
	}
	if e.Gen > 0 && e.Live != c.e.Live {
		there, err := c.putSaved(e)
		if there {
			c.e.Live = e.Live
		}
		if err != nil {
			return err
		}
	}
	if err := putMeta(c.dir, &e); err != nil {
		return err
	}
	c.e = e
	return nil
}

// putSaved replaces what is said of the data, and waits for the disk. With an error
// it may be there nevertheless, though perhaps not for good.
func (c *Lease) putSaved(e entry) (there bool, err error) {
	e.Pending = 0 // is nothing to remember
	if err := writeEntry(c.dir, savedName+newSuffix, &e, true); err != nil {
		return false, err
	}
	c.s.cfg.step("described")
	if err := c.dir.Rename(savedName+newSuffix, savedName); err != nil {
		return false, err
	}
	c.s.cfg.step("renamed")
	return true, syncDir(c.dir, ".")
}

// Write gives the record new data and says what it is from then on; see Update for
// m, of whose Used and that of an Update meanwhile the later one counts. Saved is
// the time when Write began.
//
// There must be room for estimate bytes: where Config.MaxBytes or MinFree leave
// none, the least recently used Box records that nobody holds go first. The
// data before do not count for MaxBytes, as they are replaced, but for the disk.
// If it turns out that more was written, there must be room for that too.
//
// write is given an existing empty directory, for this user alone. It gives what it
// writes there, names included, to the disk. When Write returns nil, the new data and m are what the
// record is, also after a power cut. After an error, and if the process is killed
// at whatever time, data and meta are what they were; if only the very last is not
// known to be on the disk, they are the new ones and there is an error.
//
// Errors: that of write; a *FullError; ErrFull also where write had no room;
// ErrInvalid; the cause of ctx, which ends the wait for another Write; os.ErrClosed.
func (c *Lease) Write(ctx context.Context, m Meta, estimate int64, write func(ctx context.Context, dir string) error) error {
	if err := c.enter(ctx); err != nil {
		return fmt.Errorf("write record %q: %w", c.id, err)
	}
	defer c.leave()
	if err := c.write(ctx, m, estimate, write); err != nil {
		return fmt.Errorf("write record %q: %w", c.id, full(err))
	}
	return nil
}

func (c *Lease) write(ctx context.Context, m Meta, estimate int64, write func(context.Context, string) error) (err error) {
	c.mu.Lock()
	old := c.e
	c.mu.Unlock()
	next := entry{Gen: old.Gen + 1}
	old.Saved = c.s.now().UTC()
	if next.Meta, err = c.s.meta(m, old); err != nil {
		return err
	}
	if err := c.clear(); err != nil {
		return err
	}
	estimate = min(max(estimate, 0), maxBytes)
	if err := c.s.makeRoom(ctx, c, estimate, 0); err != nil {
		return err
	}
	name := dataName(next.Gen)
	defer func() {
		if err != nil {
			err = errors.Join(err, c.abandon(next))
		}
	}()
	if err := c.dir.Mkdir(name, 0o700); err != nil {
		return err
	}
	c.s.cfg.step("made")
	if err := write(ctx, c.s.dataPath(c.id, next.Gen)); err != nil {
		return err
	}
	c.s.cfg.step("written")
	if err := checkDir(c.dir, name); err != nil {
		return err // nobody could claim it
	}
	if next.Bytes, err = sizeOf(c.dir, name); err != nil {
		return err
	}
	if next.Bytes > estimate {
		if err := c.s.makeRoom(ctx, c, next.Bytes, next.Bytes); err != nil {
			return err
		}
	}
	if old.Gen == 0 {
		if err := syncDir(c.s.records, "."); err != nil {
			return err
		}
	}
	return c.commit(next)
}

// commit makes next what the record is.
func (c *Lease) commit(next entry) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.e
	if old.Used.After(next.Used) {
		next.Used = old.Used
	}
	there, err := c.putSaved(next)
	if there {
		c.e = next
	}
	if err != nil {
		return err
	}
	// Nothing refers to these any more; the next Write or Sweep tries again.
	_ = c.dir.Remove(metaName)
	if old.Gen > 0 {
		_ = c.dir.RemoveAll(dataName(old.Gen))
	}
	return nil
}

// clear removes what writes that came to no end have left.
func (c *Lease) clear() error {
	c.mu.Lock()
	gen := c.e.Gen
	c.mu.Unlock()
	names, err := strays(c.dir, gen)
	for _, name := range names {
		err = errors.Join(err, c.dir.RemoveAll(name))
	}
	return err
}

// reserve notes for others how many bytes are about to be written.
func (c *Lease) reserve(pending int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.e.Pending == pending {
		return nil
	}
	c.e.Pending = pending
	return putMeta(c.dir, &c.e)
}

// abandon leaves the record as it was before a write that failed.
func (c *Lease) abandon(next entry) error {
	c.mu.Lock()
	committed := c.e.Gen == next.Gen
	c.mu.Unlock()
	if committed {
		return nil
	}
	err := c.dir.RemoveAll(dataName(next.Gen))
	// If not even that can be written, others leave more room than they need to
	// until the next Update.
	_ = c.reserve(0)
	return err
}

// enter waits until there is no other Write, Release or Remove.
func (c *Lease) enter(ctx context.Context) error {
	select {
	case c.op <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		<-c.op
		return os.ErrClosed
	}
	return nil
}

func (c *Lease) leave() { <-c.op }

// Release gives up the hold, after the end of a Write that runs; the record stays.
// After a Release or Remove it does nothing.
func (c *Lease) Release() error {
	if c.enter(context.Background()) != nil {
		return nil
	}
	defer c.leave()
	if err := c.drop(); err != nil {
		return fmt.Errorf("release record %q: %w", c.id, err)
	}
	return nil
}

// Remove removes the record and its data, after the end of a Write that runs, and
// gives up the hold. After a Release or Remove it does nothing.
func (c *Lease) Remove() error {
	if c.enter(context.Background()) != nil {
		return nil
	}
	defer c.leave()
	// The hold goes last: the record is nobody else's before it is gone.
	err := errors.Join(c.s.discard(c.id), c.drop(), c.s.emptyTrash(c.id))
	if err != nil {
		return fmt.Errorf("remove record %q: %w", c.id, err)
	}
	return nil
}

// drop gives up the hold.
func (c *Lease) drop() error {
	c.mu.Lock()
	c.done = true
	c.mu.Unlock()
	var err error
	if c.dir != nil {
		err = c.dir.Close()
	}
	return errors.Join(err, c.s.dropHold(c.id))
}
