package server

import "sync"

// A budget bounds an amount, such as calls or bytes, in all and for each owner. Its
// methods may be called concurrently.
type budget struct {
	all  int64 // limit of all owners together; 0: none
	each int64 // limit of one owner; 0: none

	mu    sync.Mutex
	total int64            // guarded by mu
	held  map[string]int64 // guarded by mu: by owner, if each is a limit; only owners that hold something
}

// An excess says which limit of a [budget] refuses a request.
type excess int

const (
	noExcess    excess = iota
	ownerExcess        // the limit of one owner
	totalExcess        // the limit of all owners together
)

// take books n for an owner until give returns it. It books nothing if a limit would be
// exceeded.
func (b *budget) take(owner string, n int64) excess {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.each > 0 && b.held[owner]+n > b.each:
		return ownerExcess
	case b.all > 0 && b.total+n > b.all:
		return totalExcess
	}
	b.addLocked(owner, n)
	return noExcess
}

// give returns what take has booked, or a part of it.
func (b *budget) give(owner string, n int64) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addLocked(owner, -n)
}

func (b *budget) addLocked(owner string, n int64) {
	b.total += n
	if b.each == 0 {
		return
	}
	if b.held == nil {
		b.held = make(map[string]int64)
	}
	if b.held[owner] += n; b.held[owner] == 0 {
		delete(b.held, owner)
	}
}

// clamp lowers n to what an owner who holds nothing can take: an amount above the limit
// takes all of it.
func (b *budget) clamp(n int64) int64 {
	for _, limit := range []int64{b.each, b.all} {
		if limit > 0 {
			n = min(n, limit)
		}
	}
	return n
}

// full reports whether the owner can take nothing more.
func (b *budget) full(owner string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.each > 0 && b.held[owner] >= b.each
}

func (b *budget) value() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return int(b.total)
}
