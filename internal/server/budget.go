package server

import (
	"sync"

	"github.com/glovebox-dev/glovebox/internal/server/auth"
)

// An account is what amounts of budgets are charged to. Each owner has two: one of callers that may run
// code, and one of readers, who may not. Readers take at most half of the owner's limit, so that they
// cannot keep the others from working.
type account struct {
	owner  string
	reader bool
}

// account returns the account that a caller's requests are charged to.
func (c *caller) account() account { return account{c.owner(), !c.has(auth.Use)} }

// A budget bounds an amount, such as calls or bytes, in all and for each owner. Its
// methods may be called concurrently.
type budget struct {
	all  int64 // limit of all owners together; 0: none
	each int64 // limit of one owner; 0: none

	mu    sync.Mutex
	total int64             // guarded by mu
	held  map[account]int64 // guarded by mu: if each is a limit; only accounts that hold something
}

// An excess says which limit of a [budget] refuses a request.
type excess int

const (
	withinLimits excess = iota
	ownerExcess         // the limit of one owner
	totalExcess         // the limit of all owners together
)

// take charges n to an account until give returns it. It charges nothing if a limit would be
// exceeded.
func (b *budget) take(p account, n int64) excess {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.each > 0 && b.ownerLocked(p)+n > b.each:
		return ownerExcess
	case b.each > 0 && p.reader && b.held[p]+n > half(b.each):
		return ownerExcess
	case b.all > 0 && b.total+n > b.all:
		return totalExcess
	}
	b.addLocked(p, n)
	return withinLimits
}

// give returns what take has charged, or a part of it.
func (b *budget) give(p account, n int64) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addLocked(p, -n)
}

func (b *budget) addLocked(p account, n int64) {
	b.total += n
	if b.each == 0 {
		return
	}
	if b.held == nil {
		b.held = make(map[account]int64)
	}
	if b.held[p] += n; b.held[p] == 0 {
		delete(b.held, p)
	}
}

// ownerLocked returns what the owner of an account holds.
func (b *budget) ownerLocked(p account) int64 {
	return b.held[account{p.owner, false}] + b.held[account{p.owner, true}]
}

// half returns what readers may have of an owner's limit.
func half(each int64) int64 { return max(each/2, 1) }

// clamp lowers n to what an account can take when its owner holds nothing: an amount above the
// limit takes all of it.
func (b *budget) clamp(p account, n int64) int64 {
	each := b.each
	if p.reader && each > 0 {
		each = half(each)
	}
	for _, limit := range []int64{each, b.all} {
		if limit > 0 {
			n = min(n, limit)
		}
	}
	return n
}

// full reports whether the account can take nothing more.
func (b *budget) full(p account) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.each > 0 && (b.ownerLocked(p) >= b.each || p.reader && b.held[p] >= half(b.each))
}

func (b *budget) value() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return int(b.total)
}
