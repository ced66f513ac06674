package egress

import (
	"github.com/glovebox-dev/glovebox/internal/egress/policy"
	"github.com/glovebox-dev/glovebox/internal/loglimit"
)

const (
	// refusalBurst is the number of records of refusals for one reason that a box gets at once.
	refusalBurst = 5
	// ownerRefusalBurst is that of all boxes of an owner: one box that uses up its own leaves
	// the others theirs.
	ownerRefusalBurst = 4 * refusalBurst
)

// recordLimits bound the records of refusals, and of failed lookups, which a program can
// cause by the thousand. Each reason has a limit of its own: a program that causes many for
// one reason, such as names that do not exist, hides none for another.
type recordLimits map[policy.Reason]*loglimit.Limit

func newRecordLimits(burst int) recordLimits {
	l := recordLimits{Unresolved: loglimit.New(burst)}
	for _, r := range Reasons() {
		l[r] = loglimit.New(burst)
	}
	return l
}

// full reports whether no limit has been used lately.
func (l recordLimits) full() bool {
	for _, limit := range l {
		if !limit.Full() {
			return false
		}
	}
	return true
}

// recordable reports whether to make a record of an event of this box, and how many of the
// same reason had none since the last one. reason is Unresolved or one of Reasons. The limits
// of the owner outlive those of the box, so new boxes bring no new records.
func (n *Network) recordable(reason policy.Reason) (omitted int64, ok bool) {
	box, owner := n.records[reason], n.owner.records[reason]
	if omitted, ok = box.Allow(); !ok {
		return 0, false
	}
	if _, ok = owner.Allow(); !ok {
		box.Omit(omitted + 1)
		return 0, false
	}
	return omitted, true
}

// recordOmitted makes a record of the events of this box that have none, if there are any: no
// later one counts them. So the end of a box brings one record at most, and neither other
// boxes of the owner nor the end of the box hide that there were events.
func (n *Network) recordOmitted() {
	var omitted int64
	for _, limit := range n.records {
		omitted += limit.Take()
	}
	if omitted > 0 {
		n.gate.opts.Record(Record{Box: n.box, Outcome: Refused, Omitted: omitted})
	}
}
