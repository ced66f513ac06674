package server

import (
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/time/rate"
)

const (
	// maxRates bounds the callers whose rates are remembered. A forgotten caller
	// begins anew, with a full bucket.
	maxRates = 10_000
	// unauthenticatedRate and unauthenticatedBurst limit the requests without a valid
	// token of one address.
	unauthenticatedRate  = 10
	unauthenticatedBurst = 50
)

// rates limits the requests of each caller.
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

// take counts n requests of a caller and returns 0, or how long the caller has to wait
// before it may make them; for more than the burst, forever.
func (r *rates) take(key string, n int, now time.Time) time.Duration {
	if r.limit <= 0 {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	res := r.bucketLocked(key).ReserveN(now, n)
	if wait := res.DelayFrom(now); wait > 0 {
		res.CancelAt(now)
		return wait
	}
	return 0
}

// owe counts n more requests of a caller that are made already: later ones wait for them, too.
func (r *rates) owe(key string, n int, now time.Time) {
	if r.limit <= 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for b := r.bucketLocked(key); n > 0; n -= r.burst {
		b.ReserveN(now, min(n, r.burst))
	}
}

func (r *rates) bucketLocked(key string) *rate.Limiter {
	b, ok := r.buckets.Get(key)
	if !ok {
		b = rate.NewLimiter(r.limit, r.burst)
		r.buckets.Add(key, b)
	}
	return b
}

// addressPrefix returns the network that counts as one address: a machine has many IPv6 addresses.
func addressPrefix(remote string) string {
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
