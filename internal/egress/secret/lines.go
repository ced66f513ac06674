package secret

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// Of each kind and secret, an owner gets lineBurst events at once, and then one every
	// lineInterval: programs make requests by the thousand, and events end in a log.
	lineBurst    = 5
	lineInterval = 10 * time.Second
	// maxLines bounds what is remembered: the secrets of more than forty owners.
	maxLines = 4096
)

// lines bounds the events that are reported.
type lines struct {
	burst  int
	mu     sync.Mutex
	byUser map[lineKey]*line // guarded by mu
}

type lineKey struct {
	owner, secret string
	kind          Kind
}

type line struct {
	limit   *rate.Limiter
	omitted int64
}

// admit reports whether to report an event: whether one of its secrets has a line left. It
// sets the number of those that were omitted before.
func (l *lines) admit(e *Event) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, ok := time.Now(), false
	for _, s := range e.Secrets {
		if l.getLocked(lineKey{e.Box.Owner, s, e.Kind}).limit.AllowN(now, 1) {
			ok = true
		}
	}
	for _, s := range e.Secrets {
		n := l.getLocked(lineKey{e.Box.Owner, s, e.Kind})
		if !ok {
			n.omitted++
			continue
		}
		e.Omitted, n.omitted = max(e.Omitted, n.omitted), 0
	}
	return ok
}

func (l *lines) getLocked(k lineKey) *line {
	if n := l.byUser[k]; n != nil {
		return n
	}
	if l.byUser == nil || len(l.byUser) >= maxLines {
		l.forgetLocked()
	}
	n := &line{limit: rate.NewLimiter(rate.Every(lineInterval), l.burst)}
	l.byUser[k] = n
	return n
}

// forgetLocked makes room: it forgets the lines that are full again, and all if there are
// none.
func (l *lines) forgetLocked() {
	for k, n := range l.byUser {
		if n.limit.Tokens() >= float64(l.burst) {
			delete(l.byUser, k)
		}
	}
	if l.byUser == nil || len(l.byUser) >= maxLines {
		l.byUser = make(map[lineKey]*line)
	}
}
