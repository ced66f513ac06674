package box

import (
	"cmp"
	"slices"
)

// List lists the boxes of an owner, live and hibernated, the newest first. Of boxes at other
// servers of the fleet it knows only what their fleet records say. An empty kind means both.
//
// Errors: CodeNotReady if the boxes on disk cannot be listed.
func (m *Manager) List(owner Owner, kind Kind) ([]Info, error) {
	found, err := m.records.list("list boxes", owner, kind) // before memory: a box that is woken meanwhile is in both
	if err != nil {
		return nil, err
	}
	infos, known := m.reg.list(owner, kind)
	for i := range found {
		r := &found[i]
		k, elsewhere := recordKey(r), r.Leased && !r.Own
		if known[k] || !elsewhere && (r.Leased || r.Written.IsZero()) {
			continue
		}
		known[k] = true
		info := infoOfRecord(r)
		switch {
		case r.Leaving:
			info.State = StateLeaving
		case elsewhere:
			info.State = StateElsewhere
		}
		infos = append(infos, info)
	}
	others, err := m.listElsewhere(owner, kind)
	if err != nil {
		return nil, err
	}
	for _, info := range others {
		if k := (key{info.Owner, info.Kind, info.ID}); !known[k] {
			known[k] = true
			infos = append(infos, info)
		}
	}
	slices.SortFunc(infos, func(a, b Info) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID))
	})
	return infos, nil
}

// list lists the boxes in memory of an owner, and those that are about to be on disk
// only.
func (r *registry) list(owner Owner, kind Kind) (infos []Info, known map[key]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known = make(map[key]bool)
	add := func(b *Box) {
		known[b.key] = true
		infos = append(infos, b.infoLocked())
	}
	for k, b := range r.boxes {
		if k.owner == owner && (kind == "" || k.kind == kind) && (r.hibernates() || !r.expiredLocked(b)) {
			add(b)
		}
	}
	for b := range r.freeing {
		if b.key.owner == owner && (kind == "" || b.key.kind == kind) && b.recordStays && r.boxes[b.key] == nil {
			add(b)
		}
	}
	return infos, known
}

// Stats counts boxes, calls and limits.
func (m *Manager) Stats() Stats {
	disk := m.records.use()
	st := m.reg.stats()
	for c, n := range disk.hibernated {
		st.Boxes[c] += n
		st.Hibernated += n
	}
	st.Snapshots, st.KeptBytes, st.DiskBytes = disk.kept, disk.keptBytes, disk.bytes
	return st
}

// stats counts boxes in memory.
func (r *registry) stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := Stats{
		States: map[State]int{}, Flavors: map[Flavor]int{}, Ended: map[Reason]int64{}, Boxes: map[Class]int{},
		MaxSessions: r.cfg().MaxSessions, MaxContexts: r.cfg().MaxContexts, MaxMemoryMB: r.cfg().MaxTotalMemoryMB,
		Started: r.started, Starting: r.starting, Evicted: r.evicted,
	}
	if r.phase != phaseNew {
		st.Uptime = r.now().Sub(r.since)
	}
	for reason, n := range r.ended {
		st.Ended[reason] = n
	}
	for k, b := range r.boxes {
		st.States[b.stateLocked()]++
		st.Boxes[Class{b.stateLocked(), k.kind, b.flavor}]++
		st.Flavors[b.flavor]++
		if k.kind == KindSession {
			st.Sessions++
		} else {
			st.Contexts++
		}
		if b.disk.failures > 0 || b.disk.copyFailures > 0 {
			st.Unwritten++
		}
		l := b.flavor.Limits()
		st.MemoryMB += l.MemoryMB
		st.CPUs += l.CPUs
		queued := b.commands.Waiting()
		for _, k := range b.kernels {
			queued += k.runs.Waiting()
		}
		st.Queued += queued
		st.Running += b.use.calls - queued
	}
	return st
}
