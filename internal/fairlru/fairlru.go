// Package fairlru bounds what a server remembers for all its owners together.
package fairlru

import (
	"slices"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// LRU is a map of bounded size. When it is full, a new entry evicts the least recently used entry
// of the owner that has the most, so that one owner cannot evict the entries of the others. It is
// not safe for concurrent use.
type LRU[O, K comparable, V any] struct {
	*simplelru.LRU[K, V]
	max   int
	owner func(K) O
}

// New returns an empty LRU for at most max entries, which must be positive. owner returns the owner
// of a key.
func New[O, K comparable, V any](max int, owner func(K) O) *LRU[O, K, V] {
	lru, err := simplelru.NewLRU[K, V](max, nil)
	if err != nil { // only for a size that is not positive
		panic(err)
	}
	return &LRU[O, K, V]{LRU: lru, max: max, owner: owner}
}

// Add sets the value of a key. It takes time linear in the number of entries when it evicts one.
func (l *LRU[O, K, V]) Add(k K, v V) {
	if l.Len() == l.max && !l.Contains(k) {
		l.Remove(l.heaviest())
	}
	l.LRU.Add(k, v)
}

// heaviest returns the least recently used key of the owner that has the most.
func (l *LRU[O, K, V]) heaviest() K {
	keys := l.Keys() // the least recently used first
	has := make(map[O]int)
	most := 0
	for _, k := range keys {
		o := l.owner(k)
		has[o]++
		most = max(most, has[o])
	}
	return keys[slices.IndexFunc(keys, func(k K) bool { return has[l.owner(k)] == most })]
}
