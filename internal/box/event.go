package box

import (
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// Event reports a lifecycle change of a box, for metrics. It holds nothing that an owner
// chose.
type Event struct {
	Type   EventType
	Kind   Kind
	Flavor Flavor
	Source Source        // of a start
	Took   time.Duration // with the wait for room and for a slot
	Failed bool
}

// EventType says what happened. It is a closed set.
type EventType string

// The closed set of events.
const (
	EventStart     EventType = "start"     // a box was made or woken, see Source
	EventHibernate EventType = "hibernate" // a box went to disk and out of memory; if it failed, the box stays unless the server stops
)

// Class is what boxes are counted by.
type Class struct {
	State  State
	Kind   Kind
	Flavor Flavor
}

// diskUse has the totals of the records of all owners.
type diskUse struct {
	hibernated map[Class]int // hibernated boxes without a lease
	kept       int           // snapshots that were asked for
	keptBytes  int64         // of those
	bytes      int64
}

func (recs *records) use() diskUse {
	u := diskUse{hibernated: map[Class]int{}}
	if !recs.hibernates() {
		return u
	}
	records, err := recs.parts.Snapshots.List(nil)
	if err != nil {
		recs.log.Warn("snapshots not counted", logkey.Error, err)
	}
	for _, r := range records {
		u.bytes += r.Bytes
		switch {
		case r.Purpose != snapshot.Box, r.Aside != "":
			u.kept++
			u.keptBytes += r.Bytes
		case !r.Leased && !r.Written.IsZero():
			u.hibernated[Class{StateHibernated, Kind(r.Kind), Flavor(r.Flavor)}]++
		}
	}
	return u
}
