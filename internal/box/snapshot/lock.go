package snapshot

import (
	"context"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

const (
	// leaseWait is how long to wait for a lease: removing or sweeping a record takes
	// one for less than a millisecond, which should not cause an error.
	leaseWait = 50 * time.Millisecond
	// storeLockWait is how long to wait for another process that evicts records: it may have
	// gigabytes to remove.
	storeLockWait = time.Minute
	// pollInterval is the time between two attempts to take a lock of another process.
	pollInterval = 2 * time.Millisecond
)

// The offsets of the locks of the whole store. Those of records are between them, those of Leave
// behind them.
const (
	spaceLockOffset    = 0
	evictionLockOffset = 1<<62 + 1
)

// storeLock is a lock of the whole store, which one goroutine of all processes has.
type storeLock struct {
	token  chan struct{} // of the goroutine of this process that has the lock or waits for it; capacity 1
	offset int64         // of its byte in the lock file
	name   string        // for errors
}

func newStoreLock(offset int64, name string) storeLock {
	return storeLock{make(chan struct{}, 1), offset, name}
}

// localLease is a lease that this process has.
type localLease struct {
	readers int    // number of readers that share it; 0: exclusive
	drops   *Lease // the lease, if AllowDrop was called; nil: it was not
}

// lockOffset returns the offset of a record's lock: 62 of the 130 random bits of its
// id, so that no two records collide.
func lockOffset(id string) int64 {
	b, _ := base32.StdEncoding.DecodeString(strings.ToUpper(id[:16]))
	return int64(binary.BigEndian.Uint64(b)>>2) + spaceLockOffset + 1
}

// leavingOffset returns the offset of the lock of a lessee that has called Leave. Two records
// have the same one with a probability of 2⁻⁶¹; then one of them may seem to be released soon.
func leavingOffset(id string) int64 { return evictionLockOffset + 1 + lockOffset(id)/2 }

// tryLease leases a record, or returns ErrLeased.
func (s *Store) tryLease(id string, shared bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return os.ErrClosed
	}
	if h := s.leases[id]; h != nil {
		if !shared || h.readers == 0 {
			return ErrLeased
		}
		h.readers++
		return nil
	}
	// If the lock file was replaced, the leases of all processes are void: no new ones,
	// rather than two of one record.
	if info, err := s.root.Lstat(lockName); err != nil || !os.SameFile(info, s.lockInfo) {
		return fmt.Errorf("the file %q in %q was replaced", lockName, s.dir)
	}
	ok, err := tryLock(s.lock, lockOffset(id), shared)
	if err != nil {
		return err
	}
	if !ok {
		return ErrLeased
	}
	s.leases[id] = &localLease{}
	if shared {
		s.leases[id].readers = 1
	}
	if s.left {
		_ = s.announceLocked(id) // others wait for less long
	}
	return nil
}

// Leave announces that this process is about to release all leases, also those that it takes from
// now on: other processes find Record.Leaving.
func (s *Store) Leave() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.left {
		return nil
	}
	s.left = true
	var errs []error
	for id := range s.leases {
		errs = append(errs, s.announceLocked(id))
	}
	return errors.Join(errs...)
}

// announceLocked announces that a lease of this process ends soon.
func (s *Store) announceLocked(id string) error {
	_, err := tryLock(s.lock, leavingOffset(id), true)
	return err
}

// leaving reports whether a lessee of the record has called Leave.
func (s *Store) leaving(id string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, os.ErrClosed
	}
	return locked(s.lock, leavingOffset(id))
}

// acquireLease is tryLease with a short wait.
func (s *Store) acquireLease(id string, shared bool) error {
	for deadline := time.Now().Add(leaseWait); ; <-time.After(pollInterval) {
		err := s.tryLease(id, shared)
		if !errors.Is(err, ErrLeased) || time.Now().After(deadline) {
			return err
		}
	}
}

// releaseLease undoes tryLease.
func (s *Store) releaseLease(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.leases[id]
	if s.closed || h == nil {
		return nil // Close released all
	}
	if h.readers > 1 {
		h.readers--
		return nil
	}
	delete(s.leases, id)
	var err error
	if s.left {
		err = unlock(s.lock, leavingOffset(id), 1)
	}
	return errors.Join(err, unlock(s.lock, lockOffset(id), 1))
}

// leased reports whether any process has a lease of the record.
func (s *Store) leased(id string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, os.ErrClosed
	}
	if s.leases[id] != nil {
		return true, nil
	}
	return locked(s.lock, lockOffset(id))
}

// leasedHere reports whether this process has a lease of the record.
func (s *Store) leasedHere(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leases[id] != nil
}

// lockStore takes a lock of the whole store.
func (s *Store) lockStore(ctx context.Context, lock *storeLock) (unlock func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, storeLockWait, errors.New("the lock was held for more than a minute"))
	defer cancel()
	select {
	case lock.token <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("lock %s: %w", lock.name, context.Cause(ctx))
	}
	for {
		ok, err := s.tryLockStore(lock)
		if ok {
			return func() { s.unlockStore(lock); <-lock.token }, nil
		}
		if err == nil {
			select {
			case <-time.After(pollInterval):
				continue
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		<-lock.token
		return nil, fmt.Errorf("lock %s: %w", lock.name, err)
	}
}

func (s *Store) tryLockStore(lock *storeLock) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, os.ErrClosed
	}
	return tryLock(s.lock, lock.offset, false)
}

func (s *Store) unlockStore(lock *storeLock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		_ = unlock(s.lock, lock.offset, 1) // cannot fail on an open file
	}
}
