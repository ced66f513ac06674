package box

import (
	"cmp"
	"context"
	"time"

	"github.com/glovebox-dev/glovebox/internal/fleet"
)

// This file applies the limits of owners to the boxes of all servers that share them. A server
// counts those of the others before it admits a box (learnElsewhere), so that it can evict
// boxes of the owner. Servers that admit boxes at once do not see each other's: each therefore
// counts again when it has written down its own (checkOwnerLimits).

// A box that exceeds a limit only because of younger ones looks again after firstYield, and after
// twice the time each time, at last after lastYield.
const (
	firstYield = 250 * time.Millisecond
	lastYield  = 2 * time.Second
)

// ownerUse is what boxes of one owner take.
type ownerUse struct{ boxes, memoryMB int }

func (u *ownerUse) add(f Flavor) {
	u.boxes++
	u.memoryMB += f.Limits().MemoryMB
}

// limitsOwners reports whether there is a limit for the boxes of one owner.
func (c *Config) limitsOwners() bool { return c.MaxPerOwner > 0 || c.MaxMemoryPerOwnerMB > 0 }

// exceededBy reports whether boxes and memory of one owner exceed the owner's limits.
func (c *Config) exceededBy(boxes, memoryMB int) bool {
	return c.MaxPerOwner > 0 && boxes > c.MaxPerOwner || c.MaxMemoryPerOwnerMB > 0 && memoryMB > c.MaxMemoryPerOwnerMB
}

// learnElsewhere counts the boxes of an owner at other servers, without the guest adopted, for
// the admission of a box. It asks the fleet only if there is a limit.
func (m *Manager) learnElsewhere(ctx context.Context, op string, owner Owner, adopted *fleet.Guest) error {
	f := m.parts.Fleet
	if f == nil || !m.cfg().limitsOwners() {
		return nil
	}
	leave, err := m.lookups.Acquire(ctx, string(owner))
	if err != nil {
		return cancelled(op, key{owner: owner}, err)
	}
	defer leave()
	found, err := f.Owned(ctx, ownerTag(owner))
	if err != nil {
		return m.fleetFailed(op, err)
	}
	var use ownerUse
	for _, g := range found {
		n, ok := parseFleetRecord(g.Text)
		if ok && !n.Refused && n.Owner == owner && g.Server != f.Self() && (adopted == nil || g.State.ID != adopted.State.ID) {
			use.add(n.Flavor)
		}
	}
	m.reg.mu.Lock()
	defer m.reg.mu.Unlock()
	if use == (ownerUse{}) {
		delete(m.reg.elsewhere, owner)
	} else {
		m.reg.elsewhere[owner] = use
	}
	return nil
}

// checkOwnerLimits returns the error for a box whose record is written down, if it does not fit
// into the owner's limits beside the other boxes of all servers. Of boxes that are made at once,
// each sees those that were written down before, so that no two go on where one fits. The
// oldest wait for the others to give up.
func (l *lifecycle) checkOwnerLimits(ctx context.Context, op string, b *Box, guest string) error {
	if !l.cfg().limitsOwners() {
		return nil
	}
	for wait := firstYield; ; wait *= 2 {
		excess, younger, err := l.ownerExcess(ctx, op, b, guest)
		if excess == nil || err != nil || !younger || wait > lastYield {
			return cmp.Or(err, excess)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// ownerExcess returns the error of a box that exceeds a limit of its owner, and whether it
// would not without boxes that are younger.
func (l *lifecycle) ownerExcess(ctx context.Context, op string, b *Box, guest string) (excess error, younger bool, err error) {
	f, c := l.parts.Fleet, l.cfg()
	found, err := f.Owned(ctx, ownerTag(b.key.owner))
	if err != nil {
		return nil, false, l.fleetFailed(op, err)
	}
	var other, all, notYounger ownerUse
	add := func(flavor Flavor, created time.Time, id string) {
		all.add(flavor)
		if older(created, id, b.created, guest) {
			notYounger.add(flavor)
		}
	}
	for _, g := range found {
		n, ok := parseFleetRecord(g.Text)
		if ok && !n.Refused && n.Owner == b.key.owner && g.Server != f.Self() {
			other.add(n.Flavor)
			add(n.Flavor, n.Created, g.State.ID)
		}
	}
	all.add(b.flavor)
	notYounger.add(b.flavor)
	l.reg.mu.Lock()
	for _, o := range l.reg.boxes {
		// One that still starts counts this one when it has been written down.
		if o != b && o.key.owner == b.key.owner && (o.state != stateStarting || older(o.created, o.guestID, b.created, guest)) {
			add(o.flavor, o.created, o.guestID)
		}
	}
	l.reg.mu.Unlock()
	switch {
	case c.exceededBy(all.boxes, 0):
		excess = l.ownerBoxesError(op, all.boxes-1, other, "")
	case c.exceededBy(0, all.memoryMB):
		excess = l.ownerMemoryError(op, all.memoryMB, other, "")
	}
	return excess, !c.exceededBy(notYounger.boxes, notYounger.memoryMB), nil
}

// older reports whether one guest comes before another one, by the clocks of their servers.
func older(created time.Time, guest string, than time.Time, thanGuest string) bool {
	return cmp.Or(created.Compare(than), cmp.Compare(guest, thanGuest)) < 0
}
