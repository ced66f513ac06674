package server

import (
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/time/rate"
)

const (
	// maxRates bounds how many callers' rates are remembered. Who is forgotten
	// begins anew, with a full bucket.
	maxRates = 10_000
	// unauthenticatedRate and unauthenticatedBurst bound the requests without a token that is
	// known which one address gets an answer of its own for.
	unauthenticatedRate  = 10
	unauthenticatedBurst = 50
)

// rates bounds the requests of each caller.
type rates struct {
	limit rate.Limit // 0: none
	burst int

	mu      sync.Mutex
	buckets *simplelru.LRU[string, *rate.Limiter] // guarded by mu
}

func newRates(limit float64, burst int) *rates {
	buckets, err := simplelru.NewLRU[string, *rate.Limiter](maxRates, nil)
	if err != nil { // only for a size that is not positive
		panic(err)
	}
	return &rates{limit: rate.Limit(limit), burst: burst, buckets: buckets}
}

// take counts n requests of a caller and returns 0, or how long to wait until they
// will do; for more than the burst that is forever.
func (r *rates) take(key string, n int, now time.Time) time.Duration {
	if r.limit <= 0 {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b, ok := r.buckets.Get(key)
	if !ok {
		b = rate.NewLimiter(r.limit, r.burst)
		r.buckets.Add(key, b)
	}
	res := b.ReserveN(now, n)
	if wait := res.DelayFrom(now); wait > 0 {
		res.CancelAt(now)
		return wait
	}
	return 0
}

// network is what is counted as one address: a machine has many of IPv6.
func network(remote string) string {
	addr, err := netip.ParseAddr(remote)
	if err != nil || addr.Is4() {
		return remote
	}
	prefix, err := addr.WithZone("").Prefix(64)
	if err != nil {
		return remote
	}
	return prefix.String()
}

// quota counts the calls of each owner that are under way.
type quota struct {
	limit int // 0: none

	mu    sync.Mutex
	calls map[string]int // guarded by mu
}

// enter counts a call until leave is called, if the owner may have one more.
func (q *quota) enter(owner string) (leave func(), ok bool) {
	if q.limit <= 0 {
		return func() {}, true
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.calls[owner] >= q.limit {
		return nil, false
	}
	if q.calls == nil {
		q.calls = make(map[string]int)
	}
	q.calls[owner]++
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.calls[owner]--; q.calls[owner] == 0 {
			delete(q.calls, owner)
		}
	}, true
}

// full reports whether the owner may have no more calls.
func (q *quota) full(owner string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.limit > 0 && q.calls[owner] >= q.limit
}
