package perplexity

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

const (
	// maxCached and maxAge bound the cache as the earlier server did.
	maxCached = 100
	maxAge    = time.Hour
	// maxCachedAnswer bounds a cached answer, in bytes; larger ones are not cached. Few
	// answers have a tenth of it.
	maxCachedAnswer = 256 << 10
)

// A cache keeps the answers to recent calls.
type cache struct {
	mu  sync.Mutex
	lru *simplelru.LRU[string, cached] // guarded by mu
}

type cached struct {
	answer *answer // read-only
	at     time.Time
}

func newCache() *cache {
	lru, err := simplelru.NewLRU[string, cached](maxCached, nil)
	if err != nil { // only for a size that is not positive
		panic(err)
	}
	return &cache{lru: lru}
}

// get returns the answer that put stored under the key in the last hour, or nil, and its
// age.
func (c *cache) get(key string) (*answer, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, ok := c.lru.Get(key)
	if !ok {
		return nil, 0
	}
	age := time.Since(found.at)
	if age >= maxAge {
		c.lru.Remove(key)
		return nil, 0
	}
	return found.answer, age
}

// put stores a complete answer of bounded size, which the caller does not change any
// more.
func (c *cache) put(key string, a *answer) {
	if a.incomplete || a.size()+len(key) > maxCachedAnswer {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lru.Add(key, cached{a, time.Now()})
}
