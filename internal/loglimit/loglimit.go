// Package loglimit bounds the log lines that a program in a box or a client can cause by
// the thousand: they would fill the disk, or push the lines about others out of a rotated
// log. A Limit bounds the lines of one source, and a Table those of many.
package loglimit

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/time/rate"
)

// Interval is the time after which a source that has used its burst may log one line
// more: one line in ten seconds shows that its events continue.
const Interval = 10 * time.Second

// A Limit lets a burst of lines pass at once, and then one every Interval. Its methods may
// be called concurrently.
type Limit struct {
	rate *rate.Limiter

	mu      sync.Mutex
	omitted int64 // guarded by mu
}

// New returns a Limit with a burst of at least one line.
func New(burst int) *Limit {
	return &Limit{rate: rate.NewLimiter(rate.Every(Interval), burst)}
}

// Allow reports whether to log a line. If so, omitted is the number of lines left out
// since the last one.
func (l *Limit) Allow() (omitted int64, ok bool) {
	if !l.rate.Allow() {
		l.Omit(1)
		return 0, false
	}
	return l.Take(), true
}

// Omit counts n lines as left out: those that another bound has kept from the log after
// Allow let one of them pass.
func (l *Limit) Omit(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.omitted += n
}

// Full reports whether the whole burst is left, as in a new Limit.
func (l *Limit) Full() bool { return l.rate.Tokens() >= float64(l.rate.Burst()) }

// Take returns the number of lines left out since the last line or Take: for a source that
// has ended, so that nothing would report them.
func (l *Limit) Take() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.omitted
	l.omitted = 0
	return n
}

// A Table has a Limit for each of many sources. It remembers a bounded number of them, the
// most recent ones; a source that it has forgotten begins anew. Its methods may be called
// concurrently.
type Table[K comparable] struct {
	burst int

	mu     sync.Mutex
	limits *simplelru.LRU[K, *Limit] // guarded by mu
}

// NewTable returns a Table that remembers at most size sources, at least one, each with a
// burst of at least one line.
func NewTable[K comparable](burst, size int) *Table[K] {
	limits, err := simplelru.NewLRU[K, *Limit](size, nil)
	if err != nil { // only for a size that is not positive
		panic(err)
	}
	return &Table[K]{burst: burst, limits: limits}
}

// Allow reports whether to log a line about sources: whether any of them has a line left,
// so that a source without one hides no line about another. The line counts for each of
// them. If ok, omitted is the greatest number of lines that were left out
// for one of the sources since its last line.
func (t *Table[K]) Allow(sources ...K) (omitted int64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range sources {
		if t.getLocked(s).rate.Allow() {
			ok = true
		}
	}
	for _, s := range sources {
		l := t.getLocked(s)
		if ok {
			omitted = max(omitted, l.Take())
		} else {
			l.Omit(1)
		}
	}
	return omitted, ok
}

// Len returns the number of sources that are remembered.
func (t *Table[K]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.limits.Len()
}

func (t *Table[K]) getLocked(source K) *Limit {
	l, ok := t.limits.Get(source)
	if !ok {
		l = New(t.burst)
		t.limits.Add(source, l)
	}
	return l
}
