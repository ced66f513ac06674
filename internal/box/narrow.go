package box

import (
	"fmt"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
)

// A box may be narrower than the policy of its owner: by the limit of its template, and by
// one of its own. The limits are part of the box wherever it is described: in memory, in
// its record, in snapshots and copies of it, and in its tombstone. A box that is made of it
// or in its place has them too, and none is ever taken away.

// narrow adds the limit that a client asks for to a new box. It returns the limit in its
// canonical form, nil if none is asked for, also after an error about the owner's policy.
func (m *Manager) narrow(op string, sp *spec, entries []string) ([]string, error) {
	if entries == nil {
		return nil, nil
	}
	nets := m.parts.Networks
	if nets == nil {
		if len(entries) == 0 {
			return entries, nil
		}
		return nil, networkError(op, "Boxes of this server have no network", "Leave the network out.")
	}
	canonical, err := nets.Parse(entries)
	if err != nil {
		return nil, networkError(op, "Invalid network: "+clip(err.Error(), maxRefusal), "List presets such as pypi and npm, or hosts such as example.org; an empty list allows nothing.")
	}
	outside, allowed := nets.Within(sp.key.owner, sp.limits, canonical)
	sp.limits, err = narrower(op, sp.limits, snapshot.NetLimits{{Of: snapshot.OfBox, Allow: canonical}})
	if len(outside) > 0 {
		may := "may reach: " + strings.Join(allowed, ", ")
		if len(allowed) == 0 {
			may = "have no network"
		}
		what := clip(strings.Join(outside, ", "), maxRefusal)
		msg, hint := "The policy does not allow "+what,
			fmt.Sprintf("Boxes here %s. Leave it out of the network; the operator can add it to the policy (--network or --network-file).", clip(may, maxRefusal))
		if ofPolicy, _ := nets.Within(sp.key.owner, nil, canonical); len(ofPolicy) == 0 { // the limits are those of the template
			msg, hint = fmt.Sprintf("The template %s does not allow %s", sp.template, what),
				fmt.Sprintf("Boxes of it %s. Leave out the network, or use another template.", clip(may, maxRefusal))
		}
		err = networkError(op, msg, hint)
	}
	return canonical, err
}

// narrower returns limits with others.
func narrower(op string, limits, others snapshot.NetLimits) (snapshot.NetLimits, error) {
	both := limits.And(others)
	if err := both.Check(); err != nil {
		return nil, networkError(op, "The network lists of the box are too long: "+err.Error(), "Narrow it to fewer hosts.")
	}
	return both, nil
}

func networkError(op, msg, hint string) error {
	return &Error{Code: CodeInvalid, Op: op, Msg: msg, Hint: hint, Context: map[string]string{"field": "network"}}
}

// inheritNetLimitsLocked gives a new box the limits of the box of that id that it takes the place
// of, unless the owner stopped that one.
func (l *lifecycle) inheritNetLimitsLocked(op string, b *Box) (err error) {
	if b.origin.record != nil || b.origin.adopted != nil { // its own limits are in its record, or in that of the fleet
		return nil
	}
	if t := l.reg.tombstones.get(b.key); t != nil && t.Reason != ReasonStopped {
		b.limits, err = narrower(op, b.limits, t.Limits)
	}
	return err
}

// hasNetwork returns an error if the box was not narrowed to entries, which are in their
// canonical form.
func (s *spec) hasNetwork(op string, entries []string) error {
	if entries == nil {
		return nil
	}
	var own []snapshot.NetLimit
	for _, limit := range s.limits {
		if limit.Of == snapshot.OfBox {
			own = append(own, limit)
		}
	}
	if len(own) == 1 && slices.Equal(own[0].Allow, entries) {
		return nil
	}
	has := "the network that the policy allows"
	if len(own) > 0 {
		has = "the network " + describeLimits(own)
	}
	e := s.error(CodeInvalid, op, fmt.Sprintf("%s %s was made with %s, not %s", capitalized(s.key.kind), s.key.id, has, describeLimits(snapshot.NetLimits{{Allow: entries}})),
		fmt.Sprintf("A box keeps its network for life. Leave out the network, or use another %s.", s.key.kind), nil)
	e.Context["field"] = "network"
	return e
}

// describeLimits lists the entries of limits, for people.
func describeLimits(limits snapshot.NetLimits) string {
	var texts []string
	for _, limit := range limits {
		texts = append(texts, "["+strings.Join(limit.Allow, ", ")+"]")
	}
	return clip(strings.Join(texts, " and "), maxRefusal)
}

func capitalized(k Kind) string { return strings.ToUpper(string(k[:1])) + string(k[1:]) }

// MatchesNetwork returns an error unless the box was narrowed to entries; nil entries ask
// for nothing.
func (b *Box) MatchesNetwork(entries []string) error {
	const op = "find box"
	if entries == nil {
		return nil
	}
	canonical := entries
	if nets := b.env.parts.Networks; nets != nil {
		var err error
		if canonical, err = nets.Parse(entries); err != nil {
			return networkError(op, "Invalid network: "+clip(err.Error(), maxRefusal), "Leave out the network.")
		}
	}
	return b.hasNetwork(op, canonical)
}

// Reachable lists what the programs of the box can reach now, in words for people; it is
// empty if the box has no network.
func (b *Box) Reachable() []string {
	b.reg.mu.Lock()
	n := b.startedMachine.network
	b.reg.mu.Unlock()
	if current := n.now(); current != nil {
		return current.Allowed()
	}
	return nil
}
