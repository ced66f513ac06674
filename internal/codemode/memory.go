package codemode

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// maxMemory bounds the memory of calls, and maxOwnerMemory that of one owner. A result
	// takes at most about 160 MiB while it is decoded.
	maxMemory      = 512 << 20
	maxOwnerMemory = 192 << 20
	// memoryWait bounds the wait for memory. Decoding a result takes less than a second.
	memoryWait = 5 * time.Second
)

// Memory bounds the memory that the calls of programs take in this process: results while
// they are decoded, answers until the guest has read them, images until the end of the run,
// and arguments. All brokers share one. Its methods may be called concurrently.
//
// An owner gets no more than what would then still be free, so that boxes that hold as much
// as they can leave something to other owners. Nobody queues: a small request does not wait
// for a large one.
type Memory struct {
	size, ownerSize int64
	wait            time.Duration

	mu    sync.Mutex
	used  int64            // guarded by mu
	owned map[string]int64 // guarded by mu: of the owners that use memory
	freed chan struct{}    // guarded by mu: closed when memory is freed; nil: nobody waits
}

// NewMemory returns a bound of 512 MiB.
func NewMemory() *Memory {
	return &Memory{size: maxMemory, ownerSize: maxOwnerMemory, wait: memoryWait, owned: make(map[string]int64)}
}

// Use returns the number of bytes in use, and their limit.
func (m *Memory) Use() (used, limit int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used, m.size
}

// addLocked adds to the memory of an owner. A negative n frees memory.
func (m *Memory) addLocked(owner string, n int64) {
	if n == 0 {
		return
	}
	m.used += n
	if m.owned[owner] += n; m.owned[owner] == 0 {
		delete(m.owned, owner)
	}
	if n < 0 && m.freed != nil {
		close(m.freed)
		m.freed = nil
	}
}

// fitsLocked reports whether an owner may take n more bytes.
func (m *Memory) fitsLocked(owner string, n int64) bool {
	own, free := m.owned[owner]+n, m.size-m.used-n
	return own <= m.ownerSize && own <= free
}

// reservation is the memory of one call, or of the images of one run. Its methods may be
// called concurrently.
type reservation struct {
	memory *Memory
	owner  string

	n     int64 // guarded by memory.mu
	ended bool  // guarded by memory.mu
}

// newReservation returns an empty reservation for an owner.
func (m *Memory) newReservation(owner string) *reservation {
	return &reservation{memory: m, owner: owner}
}

// errNoMemory reports that too much memory is in use, errCallEnded that nobody waits for what
// the memory is for.
var (
	errNoMemory  = errors.New("no memory is free")
	errCallEnded = errors.New("the call has ended")
)

// take adds n bytes. It waits for a while until they are free, or until ctx ends.
func (r *reservation) take(ctx context.Context, n int) error {
	freed, err := r.try(int64(n))
	if freed == nil {
		return err
	}
	timer := time.NewTimer(r.memory.wait)
	defer timer.Stop()
	for freed != nil {
		select {
		case <-freed:
			freed, err = r.try(int64(n))
		case <-timer.C:
			return errNoMemory
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return err
}

// try adds n bytes. If they are not free, it returns a channel that is closed when some are.
func (r *reservation) try(n int64) (freed <-chan struct{}, err error) {
	m := r.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case r.ended:
		return nil, errCallEnded
	case n > m.ownerSize:
		return nil, errNoMemory
	case m.fitsLocked(r.owner, n):
		m.addLocked(r.owner, n)
		r.n += n
		return nil, nil
	}
	if m.freed == nil {
		m.freed = make(chan struct{})
	}
	return m.freed, nil
}

// resize makes the reservation n bytes large. It reports false if what is missing is not
// free.
func (r *reservation) resize(n int) bool {
	m := r.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.ended {
		return true // nobody waits for what it is for
	}
	more := int64(n) - r.n
	if more > 0 && !m.fitsLocked(r.owner, more) {
		return false
	}
	m.addLocked(r.owner, more)
	r.n = int64(n)
	return true
}

// move moves n bytes to a reservation of the same owner that has not ended.
func (r *reservation) move(to *reservation, n int) {
	r.memory.mu.Lock()
	defer r.memory.mu.Unlock()
	if moved := min(int64(n), r.n); !to.ended {
		r.n -= moved
		to.n += moved
	}
}

// end frees the memory. Nothing can be taken any more.
func (r *reservation) end() {
	r.memory.mu.Lock()
	defer r.memory.mu.Unlock()
	r.memory.addLocked(r.owner, -r.n)
	r.n, r.ended = 0, true
}

// errorFor returns the error of a call for an error of take: what describes the state of the
// call.
func (m *Memory) errorFor(err error, code Code, what string) error {
	if !errors.Is(err, errNoMemory) {
		return err
	}
	return &Error{Code: code, Message: fmt.Sprintf("%s: the calls of this user use up to %d MiB of memory, those of all users %d MiB, and not enough of it is free. Make fewer calls at a time, or ask for less",
		what, m.ownerSize>>20, m.size>>20)}
}
