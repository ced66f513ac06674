package box

import (
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/fairlru"
)

// Reason says why a box ended. It is a closed set: a metric label.
type Reason string

// The closed set of reasons.
const (
	ReasonStopped  Reason = "stopped"  // its owner asked for it
	ReasonIdle     Reason = "idle"     // unused for the idle timeout
	ReasonEvicted  Reason = "evicted"  // it made room for another one
	ReasonOOM      Reason = "oom"      // it went over its memory limit
	ReasonDisk     Reason = "disk"     // it had written beyond its guarantee, and the host's disk was nearly full
	ReasonCrashed  Reason = "crashed"  // the isolation or the agent failed
	ReasonExited   Reason = "exited"   // the agent returned
	ReasonShutdown Reason = "shutdown" // the server closed

	ReasonHibernated  Reason = "hibernated"   // it went to disk; not a tombstone but for calls that were under way
	ReasonRolledBack  Reason = "rolled_back"  // an earlier state took its place
	ReasonHostRestart Reason = "host_restart" // the server was killed before the box was on disk
	ReasonUnreadable  Reason = "unreadable"   // it was hibernated, and its snapshot cannot be used
)

// failure reports whether the box broke.
func (r Reason) failure() bool {
	return r == ReasonOOM || r == ReasonDisk || r == ReasonCrashed || r == ReasonExited
}

// Tombstone remembers a box that ended.
type Tombstone struct {
	ID     string    `json:"id"`
	Name   string    `json:"name,omitempty"` // contexts only
	Kind   Kind      `json:"kind"`
	Owner  Owner     `json:"owner,omitempty"`
	Reason Reason    `json:"reason"`
	Detail string    `json:"detail,omitempty"` // one line for people; may be empty
	At     time.Time `json:"at"`
	// These are of the box, and a session made in its place has them too.
	Interpreter Interpreter `json:"template,omitempty"`
	Template    string      `json:"named,omitempty"`
	Flavor      Flavor      `json:"flavor,omitempty"`
	// Limits are those of the network of the box, which a box made in its place has too.
	Limits snapshot.NetLimits `json:"limits,omitempty"`
}

func (t *Tombstone) key() key { return key{t.Owner, t.Kind, t.ID} }

// Explain says in one sentence, without a period, what became of the box: "it
// was evicted 3 minutes ago because …".
func (t *Tombstone) Explain(now time.Time) string {
	what := "ended"
	switch t.Reason {
	case ReasonStopped:
		what = "was stopped"
	case ReasonIdle:
		what = "expired"
	case ReasonEvicted:
		what = "was evicted"
	case ReasonOOM:
		what = "ran out of memory"
	case ReasonDisk:
		what = "was ended"
	case ReasonCrashed:
		what = "crashed"
	case ReasonShutdown:
		what = "was closed with the server"
	case ReasonHibernated:
		what = "was hibernated"
	case ReasonRolledBack:
		what = "was rolled back to a snapshot"
	case ReasonHostRestart:
		what = "was lost with its server"
	case ReasonUnreadable:
		what = "could not be woken"
	}
	s := "it " + what + " " + ago(now.Sub(t.At))
	if t.Detail != "" {
		s += " because " + t.Detail
	}
	return s
}

// ago says how long ago, in the largest unit that fits.
func ago(d time.Duration) string {
	n, unit := int(d/time.Second), "second"
	switch {
	case d < time.Second:
		return "just now"
	case d >= time.Hour:
		n, unit = int(d/time.Hour), "hour"
	case d >= time.Minute:
		n, unit = int(d/time.Minute), "minute"
	}
	if n != 1 {
		unit += "s"
	}
	return fmt.Sprintf("%d %s ago", n, unit)
}

const (
	// maxTombstones bounds the memory for tombstones, of all owners together.
	maxTombstones = 1000
	// tombstoneAge is how long a client may come back and still learn what happened.
	tombstoneAge = 24 * time.Hour
)

// key identifies a box.
type key struct {
	owner Owner
	kind  Kind
	id    string
}

// tombstones keeps the most recent tombstones for tombstoneAge. It does not use the
// library's expirable cache, whose goroutine cannot be stopped and which reads its own
// clock.
type tombstones struct {
	lru *fairlru.LRU[Owner, key, *Tombstone] // one without a reason marks a box that exists again
	now func() time.Time
}

func newTombstones(now func() time.Time) *tombstones {
	return &tombstones{lru: fairlru.New[Owner, key, *Tombstone](maxTombstones, func(k key) Owner { return k.owner }), now: now}
}

func (ts *tombstones) add(t *Tombstone) {
	ts.lru.Add(t.key(), t)
}

// newestOfEach returns at most n tombstones of all, which are sorted, the oldest first: of
// each owner the newest, up to a number that is the same for all owners.
func newestOfEach(all []Tombstone, n int) []Tombstone {
	if len(all) <= n {
		return all
	}
	has := make(map[Owner]int)
	for _, t := range all {
		has[t.Owner]++
	}
	share := sort.Search(n, func(share int) bool { // the largest one that fits
		sum := 0
		for _, h := range has {
			sum += min(h, share+1)
		}
		return sum > n
	})
	all = slices.DeleteFunc(all, func(t Tombstone) bool {
		has[t.Owner]--
		return has[t.Owner] >= max(share, 1)
	})
	return all[max(0, len(all)-n):]
}

func (ts *tombstones) get(k key) *Tombstone {
	t, ok := ts.lru.Peek(k)
	if !ok {
		return nil
	}
	if ts.now().Sub(t.At) > tombstoneAge {
		ts.lru.Remove(k)
		return nil
	}
	if t.Reason == "" {
		return nil
	}
	return t
}

// named returns the newest tombstone of a context of that name.
func (ts *tombstones) named(owner Owner, name string) *Tombstone {
	var newest *Tombstone
	for _, t := range ts.lru.Values() {
		if t.Owner == owner && t.Kind == KindContext && t.Name == name && t.Reason != "" && (newest == nil || t.At.After(newest.At)) {
			newest = t
		}
	}
	if newest == nil {
		return nil
	}
	return ts.get(key{owner, KindContext, newest.ID})
}

// remove drops a tombstone since the box exists again, and keeps a marker so that other
// servers drop theirs too.
func (ts *tombstones) remove(k key) {
	t := ts.get(k)
	if t == nil {
		return
	}
	at := ts.now()
	if !at.After(t.At) {
		at = t.At.Add(1)
	}
	ts.add(&Tombstone{ID: k.id, Kind: k.kind, Owner: k.owner, At: at})
}

// sweep drops tombstones that are too old.
func (ts *tombstones) sweep() {
	for {
		k, t, ok := ts.lru.GetOldest()
		if !ok || ts.now().Sub(t.At) <= tombstoneAge {
			return
		}
		ts.lru.Remove(k)
	}
}
