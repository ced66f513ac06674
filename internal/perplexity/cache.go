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
	// maxOwnerCached bounds the answers of one owner, where owners are known.
	maxOwnerCached = maxCached / 2
	// maxCachedAnswer bounds a cached answer, in bytes; larger ones are not cached. Few
	// answers have a tenth of it.
	maxCachedAnswer = 256 << 10
)

// A cache keeps the answers to recent calls.
type cache struct {
	mu     sync.Mutex
	lru    *simplelru.LRU[string, cached] // guarded by mu
	owners map[string]int                 // guarded by mu: answers of each owner
}

type cached struct {
	owner  string
	answer *answer // read-only
	at     time.Time
}

func newCache() *cache {
	owners := make(map[string]int)
	lru, err := simplelru.NewLRU(maxCached, func(_ string, gone cached) {
		if owners[gone.owner]--; owners[gone.owner] == 0 {
			delete(owners, gone.owner)
		}
	})
	if err != nil { // only for a size that is not positive
		panic(err)
	}
	return &cache{lru: lru, owners: owners}
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

// put stores a complete answer of bounded size for an owner, "" for the local user. It
// drops the least recently used answer, at the limit of an owner that of the same owner.
// The caller does not change the answer any more.
func (c *cache) put(owner, key string, a *answer) {
	if a.incomplete || a.size()+len(key) > maxCachedAnswer {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lru.Remove(key)
	if owner != "" && c.owners[owner] >= maxOwnerCached {
		for _, old := range c.lru.Keys() { // the least recently used one first
			if kept, _ := c.lru.Peek(old); kept.owner == owner {
				c.lru.Remove(old)
				break
			}
		}
	}
	c.lru.Add(key, cached{owner, a, time.Now()})
	c.owners[owner]++
}
