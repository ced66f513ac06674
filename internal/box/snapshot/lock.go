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
	// patience is how long a claim waits for a hold: what removes or clears up a
	// record has it for less than a millisecond, and is not worth an error.
	patience = 50 * time.Millisecond
	// roomWait is how long one waits for others to make room: they may have
	// gigabytes to remove.
	roomWait = time.Minute
	// pollEvery is the time between two looks at a lock of another process.
	pollEvery = 2 * time.Millisecond
	// roomLock is the offset of the lock of who makes room. Records have higher ones.
	roomLock = 0
)

// hold is how this process holds a record.
type hold struct {
	readers int // 0: exclusively
}

// lockOf returns the offset of the lock of a record, of a valid id: 62 of its 130
// random bits, so that no two records meet.
func lockOf(id string) int64 {
	b, _ := base32.StdEncoding.DecodeString(strings.ToUpper(id[:16]))
	return int64(binary.BigEndian.Uint64(b)>>2) + roomLock + 1
}

// tryHold holds a record if nobody else does: ErrLeased.
func (s *Store) tryHold(id string, shared bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return os.ErrClosed
	}
	if h := s.holds[id]; h != nil {
		if !shared || h.readers == 0 {
			return ErrLeased
		}
		h.readers++
		return nil
	}
	// Who removed the lock file has undone the holds of everybody: better no
	// further ones than two of one record.
	if info, err := s.root.Lstat(lockName); err != nil || !os.SameFile(info, s.lockInfo) {
		return fmt.Errorf("the file %q in %q is no longer what it was", lockName, s.dir)
	}
	ok, err := tryLock(s.lock, lockOf(id), shared)
	if err != nil {
		return err
	}
	if !ok {
		return ErrLeased
	}
	s.holds[id] = &hold{}
	if shared {
		s.holds[id].readers = 1
	}
	return nil
}

// takeHold is tryHold with some patience.
func (s *Store) takeHold(id string, shared bool) error {
	for deadline := time.Now().Add(patience); ; <-time.After(pollEvery) {
		err := s.tryHold(id, shared)
		if !errors.Is(err, ErrLeased) || time.Now().After(deadline) {
			return err
		}
	}
}

// dropHold undoes tryHold.
func (s *Store) dropHold(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.holds[id]
	if s.closed || h == nil {
		return nil // Close has dropped all
	}
	if h.readers > 1 {
		h.readers--
		return nil
	}
	delete(s.holds, id)
	return unlock(s.lock, lockOf(id), 1)
}

// held reports whether some process holds the record.
func (s *Store) held(id string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, os.ErrClosed
	}
	if s.holds[id] != nil {
		return true, nil
	}
	return locked(s.lock, lockOf(id))
}

// owns reports whether this process holds the record.
func (s *Store) owns(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holds[id] != nil
}

// lockRoom makes the caller the only one, of all processes, who makes room.
func (s *Store) lockRoom(ctx context.Context) (unlockRoom func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, roomWait, errors.New("another process has been making room for too long"))
	defer cancel()
	select {
	case s.room <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("make room: %w", context.Cause(ctx))
	}
	for {
		ok, err := s.tryLockRoom()
		if ok {
			return func() { s.dropLockRoom(); <-s.room }, nil
		}
		if err == nil {
			select {
			case <-time.After(pollEvery):
				continue
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		<-s.room
		return nil, fmt.Errorf("make room: %w", err)
	}
}

func (s *Store) tryLockRoom() (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, os.ErrClosed
	}
	return tryLock(s.lock, roomLock, false)
}

func (s *Store) dropLockRoom() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		_ = unlock(s.lock, roomLock, 1) // cannot fail on an open file
	}
}
