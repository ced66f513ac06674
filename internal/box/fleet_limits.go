package box

import (
	"cmp"
	"context"
	"errors"
	"time"
)

// This file applies the limits of owners to the boxes of all servers that share them. A server
// counts those of the others before it admits a box (learnElsewhere), so that it can evict
// boxes of the owner. Servers that admit boxes at once do not see each other's: each therefore
// counts again when it has written down its own (recordInFleet).
//
// The limits ignore the boxes of a server that is gone until another server adopts them, because
// no server can evict them before. A server adopts a box even at the limit: the box exists.

// A box that exceeds a limit only because of younger ones looks again after firstYield, and after
// twice the time each time, at last after lastYield, and up to twice as late at random.
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

// ownedElsewhere returns the records of the boxes that an owner has at other servers which are not
// gone, by the ids of their guests.
func (e *env) ownedElsewhere(ctx context.Context, op string, owner Owner) (map[string]fleetRecord, error) {
	f := e.parts.Fleet
	found, err := f.Owned(ctx, ownerTag(owner))
	if err != nil {
		return nil, e.fleetFailed(op, err)
	}
	gone := map[string]bool{f.Self(): true}
	boxes := map[string]fleetRecord{}
	for _, g := range found {
		n, ok := parseFleetRecord(g.Text)
		if !ok || n.Owner != owner || n.Refused {
			continue
		}
		if _, known := gone[g.Server]; !known {
			server, err := f.Server(ctx, g.Server)
			if err != nil {
				return nil, e.fleetFailed(op, err)
			}
			gone[g.Server] = server.Gone
		}
		if !gone[g.Server] {
			boxes[g.State.ID] = n
		}
	}
	return boxes, nil
}

// learnElsewhere counts the boxes of an owner at other servers for the admission of a box. It
// asks the fleet only if there is a limit.
func (m *Manager) learnElsewhere(ctx context.Context, op string, k key) error {
	if m.parts.Fleet == nil || !m.cfg().limitsOwners() {
		return nil
	}
	leave, err := m.lookups.Acquire(ctx, string(k.owner))
	if err != nil {
		return cancelled(op, k, err)
	}
	defer leave()
	boxes, err := m.ownedElsewhere(ctx, op, k.owner)
	if err != nil {
		return err
	}
	m.reg.mu.Lock()
	defer m.reg.mu.Unlock()
	if len(boxes) == 0 {
		delete(m.reg.elsewhere, k.owner)
	} else {
		m.reg.elsewhere[k.owner] = boxes
	}
	return nil
}

// elsewhereLocked returns what an owner has at other servers, as of the last box that the owner
// asked for here, without what this server has adopted since.
func (r *registry) elsewhereLocked(owner Owner) (use ownerUse) {
	boxes := r.elsewhere[owner]
	if len(boxes) == 0 {
		return use
	}
	here := r.guestsLocked(owner)
	for id, n := range boxes {
		if !here[id] {
			use.add(n.Flavor)
		}
	}
	return use
}

// guestsLocked returns the ids of the guests of an owner's boxes in memory.
func (r *registry) guestsLocked(owner Owner) map[string]bool {
	ids := map[string]bool{}
	for _, o := range r.boxes {
		if o.key.owner == owner {
			ids[o.guestID] = true
		}
	}
	for o := range r.freeing {
		if o.key.owner == owner {
			ids[o.guestID] = true
		}
	}
	return ids
}

// ownerExcess returns the error of a box that exceeds a limit of its owner, and whether it
// would not without boxes that are younger.
func (l *lifecycle) ownerExcess(ctx context.Context, op string, b *Box, guest string) (excess error, younger bool, err error) {
	boxes, err := l.ownedElsewhere(ctx, op, b.key.owner)
	if err != nil {
		return nil, false, err
	}
	if _, adopted := boxes[guest]; adopted {
		return nil, false, errIDTaken // while this server hung
	}
	var other, all, notYounger ownerUse
	add := func(flavor Flavor, isOlder bool) {
		all.add(flavor)
		if isOlder {
			notYounger.add(flavor)
		}
	}
	add(b.flavor, true)
	l.reg.mu.Lock()
	here := l.reg.guestsLocked(b.key.owner)
	for _, o := range l.reg.boxes {
		if o == b || o.key.owner != b.key.owner {
			continue
		}
		// One that is not written down yet counts this one later.
		isOlder := older(o.created, o.guestID, b.created, guest)
		if isOlder || o.noted || o.origin.adopted != nil || o.state != stateStarting {
			add(o.flavor, isOlder)
		}
	}
	l.reg.mu.Unlock()
	for id, n := range boxes {
		if !here[id] && n.key() != b.key { // one that is made at once with the same id gives up
			other.add(n.Flavor)
			add(n.Flavor, older(n.Created, id, b.created, guest))
		}
	}
	c := l.cfg()
	switch {
	case c.exceededBy(all.boxes, 0):
		excess = l.ownerBoxesError(op, b.key.kind, all.boxes-1, other, "")
	case c.exceededBy(0, all.memoryMB):
		excess = l.ownerMemoryError(op, b.key.kind, all.memoryMB, other, "")
	default:
		return nil, false, nil
	}
	if e, ok := errors.AsType[*Error](excess); ok {
		e.Hint = "Other servers have made boxes for you at the same time. Call again in a moment, " + stopHint(b.key.kind)
	}
	return excess, !c.exceededBy(notYounger.boxes, notYounger.memoryMB), nil
}

// older reports whether one guest comes before another one, by the clocks of their servers.
func older(created time.Time, guest string, than time.Time, thanGuest string) bool {
	return cmp.Or(created.Compare(than), cmp.Compare(guest, thanGuest)) < 0
}
