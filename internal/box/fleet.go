package box

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/fleet"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// fleetTimeout bounds what methods without a context ask the fleet.
	fleetTimeout = 10 * time.Second
	// maxLookups bounds the lookups of boxes at once, of all owners: clients may name any id,
	// and each lookup asks the cluster.
	maxLookups = 8
	// unseenInterval is how often the log repeats the warning that lookups fail.
	unseenInterval = time.Minute
	// adoptAttempts bounds the attempts to adopt a guest that changes meanwhile, as
	// when the cluster updates its status.
	adoptAttempts = 5
	// maxRecordDescription bounds the description of a context in a record, in bytes.
	maxRecordDescription = 1024
)

// fleetRecord is what a server writes down with a guest, as JSON: all that another server needs to go
// on with the box.
type fleetRecord struct {
	Owner       Owner              `json:"owner,omitempty"`
	Kind        Kind               `json:"kind"`
	ID          string             `json:"id"`
	Name        string             `json:"name,omitempty"`
	Description string             `json:"description,omitempty"`
	Interpreter Interpreter        `json:"template"`
	Template    string             `json:"named,omitempty"`
	Flavor      Flavor             `json:"flavor"`
	Limits      snapshot.NetLimits `json:"limits,omitempty"`
	Created     time.Time          `json:"created"`
	Ran         bool               `json:"ran,omitempty"`     // code has run in the box's own interpreter
	Refused     bool               `json:"refused,omitempty"` // the box exceeds a limit, or its id is taken, and it is being removed
}

func (k key) tag() string { return fleet.Tag("box", string(k.owner), string(k.kind), k.id) }

func ownerTag(o Owner) string { return fleet.Tag("owner", string(o)) }

// parseFleetRecord reads the record of a guest. Others may have written it: each field passes the
// checks that a box of this server passes.
func parseFleetRecord(text string) (n fleetRecord, ok bool) {
	if json.Unmarshal([]byte(text), &n) != nil || n.ID == "" || checkID("", n.ID) != nil || n.Name != "" && checkName("", "context", n.Name) != nil || len(n.Template) > maxName || n.Kind != KindSession && n.Kind != KindContext {
		return n, false
	}
	interpreter, err := ParseInterpreter(string(n.Interpreter))
	if err != nil || interpreter == "" {
		return n, false
	}
	flavor, err := ParseFlavor(string(n.Flavor))
	if err != nil || flavor == "" {
		return n, false
	}
	n.Interpreter, n.Flavor, n.Description = interpreter, flavor, clip(n.Description, maxRecordDescription)
	return n, n.Limits.Check() == nil
}

func (n *fleetRecord) key() key { return key{n.Owner, n.Kind, n.ID} }

// spec describes the box of a record, which goes on with the guest.
func (n *fleetRecord) spec(g *fleet.Guest) *spec {
	return &spec{
		key: n.key(), name: n.Name, desc: n.Description, interpreter: n.Interpreter, template: n.Template,
		flavor: n.Flavor, limits: n.Limits, created: n.Created, origin: origin{adopted: g, ran: n.Ran},
	}
}

// info describes the box of a record that another server has.
func (n *fleetRecord) info() Info {
	return Info{
		ID: n.ID, Kind: n.Kind, Owner: n.Owner, Name: n.Name, Description: n.Description, Interpreter: n.Interpreter, Template: n.Template,
		Language: n.Interpreter.Language(), Flavor: n.Flavor, Limits: n.Limits, State: StateReady, Created: n.Created, LastUsed: n.Created,
	}
}

// fleetFailed returns the error of a call that needs to know what other servers have. The
// cause is for the operator: it may have texts of a cluster.
func (e *env) fleetFailed(op string, err error) *Error {
	e.warnUnreachable.Do(func() { e.log.Warn("boxes of other servers not found", logkey.Operation, op, logkey.Error, err) })
	return &Error{
		Code: CodeNotReady, Op: op, Msg: "The server is not ready: it cannot find out which boxes the other servers have",
		Hint: "Try again in a moment; nothing is lost. If it happens again, the operator finds the reason in the server's log.",
	}
}

// inFleet finds the box of an owner that callers name id, of a kind or, with "", of any: a
// session of that id, else a context of that id or unique name. The guest is nil if there is
// none, or the server shares its boxes with no others.
func (m *Manager) inFleet(ctx context.Context, op string, owner Owner, kind Kind, id string) (*fleet.Guest, fleetRecord, error) {
	f := m.parts.Fleet
	if f == nil {
		return nil, fleetRecord{}, nil
	}
	leave, err := m.lookups.Acquire(ctx, string(owner))
	if err != nil {
		return nil, fleetRecord{}, cancelled(op, key{owner, kind, id}, err)
	}
	defer leave()
	var tags []string
	for _, k := range []Kind{KindSession, KindContext} {
		if kind == "" || kind == k {
			tags = append(tags, key{owner, k, id}.tag())
		}
	}
	found, err := f.Boxes(ctx, tags...)
	if err != nil {
		return nil, fleetRecord{}, m.fleetFailed(op, err)
	}
	g, n, _ := choose(found, func(n *fleetRecord) bool { return n.Owner == owner && n.ID == id && (kind == "" || kind == n.Kind) })
	if g != nil || kind == KindSession || checkName(op, "context", id) != nil {
		return g, n, nil
	}
	if found, err = f.Owned(ctx, ownerTag(owner)); err != nil {
		return nil, fleetRecord{}, m.fleetFailed(op, err)
	}
	g, n, several := choose(found, func(n *fleetRecord) bool { return n.Owner == owner && n.Kind == KindContext && n.Name == id })
	if several {
		return nil, fleetRecord{}, ambiguous(op, id)
	}
	return g, n, nil
}

// choose returns the guest whose record matches, a session before contexts.
func choose(found []fleet.Guest, match func(*fleetRecord) bool) (g *fleet.Guest, n fleetRecord, several bool) {
	for i := range found {
		other, ok := parseFleetRecord(found[i].Text)
		if !ok || other.Refused || !match(&other) {
			continue
		}
		several = g != nil
		if g == nil || n.Kind != KindSession {
			g, n = &found[i], other
		}
	}
	return g, n, several
}

// Locate returns the name of the server that has the box of an owner which callers name id; ""
// if this one has it, or none. That server may be gone: then Adopt adopts the box.
//
// Errors: CodeNotReady if the other servers' boxes cannot be listed, CodeInvalid if several
// contexts have that name.
func (m *Manager) Locate(ctx context.Context, owner Owner, id string) (server string, err error) {
	const op = "find box"
	f := m.parts.Fleet
	if f == nil || id == DefaultContextID || m.reg.find(key{owner, KindSession, id}) || m.reg.find(key{owner, KindContext, id}) {
		return "", nil
	}
	g, _, err := m.inFleet(ctx, op, owner, "", id)
	if g == nil || err != nil || g.Server == f.Self() {
		return "", err
	}
	return g.Server, nil
}

// Adopt moves the box of an owner that callers name id to this server, if its server is gone.
// Without such a box it does nothing.
//
// Errors: CodeHeld if another server has adopted it, else as Session.
func (m *Manager) Adopt(ctx context.Context, owner Owner, id string) error {
	const op = "take over box"
	g, n, err := m.inFleet(ctx, op, owner, "", id)
	if g == nil || err != nil {
		return err
	}
	b, hold, err := m.acquire(ctx, search{op: op, key: n.key()})
	if err != nil || b == nil {
		return err
	}
	_, hold, err = b.await(ctx, op, hold)
	hold.Release()
	return err
}

// adoptable looks for the box of a search that is neither in memory nor on disk. It returns
// the description of one that this server can adopt, or an attempt that is not to go on;
// neither if there is no such box.
func (m *Manager) adoptable(ctx context.Context, q *search) (*spec, *attempt) {
	g, n, err := m.inFleet(ctx, q.op, q.key.owner, q.key.kind, q.key.id)
	if err != nil {
		try := giveUp(err)
		return nil, &try
	}
	if g == nil {
		return nil, nil
	}
	// A guest of this server without a box in memory is that of a box that ends, which
	// Adopt refuses, or one that was left behind.
	if g.Server != m.parts.Fleet.Self() {
		server, err := m.parts.Fleet.Server(ctx, g.Server)
		if err != nil {
			try := giveUp(m.fleetFailed(q.op, err))
			return nil, &try
		}
		if !server.Gone {
			try := giveUp(q.key.heldElsewhere(q.op)) // waiting changes little: the caller knows where it is
			return nil, &try
		}
	}
	return n.spec(g), nil
}

// listElsewhere lists the boxes of an owner that the other servers of the fleet have.
func (m *Manager) listElsewhere(owner Owner, kind Kind) (infos []Info, err error) {
	if m.parts.Fleet == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(m.base, fleetTimeout)
	defer cancel()
	leave, err := m.lookups.Acquire(ctx, string(owner))
	if err != nil {
		return nil, m.fleetFailed("list boxes", err)
	}
	defer leave()
	found, err := m.parts.Fleet.Owned(ctx, ownerTag(owner))
	if err != nil {
		return nil, m.fleetFailed("list boxes", err)
	}
	for i := range found {
		n, ok := parseFleetRecord(found[i].Text)
		if ok && !n.Refused && n.Owner == owner && (kind == "" || n.Kind == kind) && found[i].Server != m.parts.Fleet.Self() {
			infos = append(infos, n.info())
		}
	}
	return infos, nil
}

// heldElsewhere returns the error of a box that another server of the fleet has.
func (k key) heldElsewhere(op string) *Error {
	return k.error(CodeHeld, op, "another server has it, or has just taken it over", "Call again in a moment.")
}

// recordInFleet writes down which box a guest is, and checks that no other server has given the id
// to a box at the same time, and the owner's limits: each writes first and checks then, so that at
// most one goes on.
func (l *lifecycle) recordInFleet(ctx context.Context, op string, b *Box, guest string, ran bool) error {
	if l.parts.Fleet == nil {
		return nil
	}
	l.reg.mu.Lock()
	b.noted = true
	l.reg.mu.Unlock()
	if err := l.noteInFleet(ctx, b, guest, func(n *fleetRecord) { n.Ran = ran }); err != nil || ran {
		return err
	}
	for wait := firstYield; ; wait *= 2 {
		refusal, younger, err := l.refusal(ctx, op, b, guest)
		switch {
		case err != nil || refusal == nil:
			return err
		case !younger || wait > lastYield:
			// Others need not wait until the guest has ended.
			if err := l.noteInFleet(ctx, b, guest, func(n *fleetRecord) { n.Refused = true }); err != nil {
				l.log.Debug("other servers do not know that a box is refused", logkey.Guest, guest, logkey.Error, err)
			}
			return refusal
		}
		select {
		case <-time.After(wait + rand.N(wait)): // or several would give up at once where one fits
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// refusal returns why a box whose record is written down must not go on beside the boxes of other
// servers, if it must not, and whether it could without boxes that are younger. Of boxes that are
// made at once, each sees those that were written down before. The oldest wait for the others to
// give up.
func (l *lifecycle) refusal(ctx context.Context, op string, b *Box, guest string) (refusal error, younger bool, err error) {
	if b.chosen {
		found, err := l.parts.Fleet.Boxes(ctx, b.key.tag())
		if err != nil {
			return nil, false, l.fleetFailed(op, err)
		}
		for _, g := range found {
			n, ok := parseFleetRecord(g.Text)
			if !ok || n.Refused || n.key() != b.key || g.State.ID == guest {
				continue
			}
			if older(n.Created, g.State.ID, b.created, guest) {
				return errIDTaken, false, nil
			}
			refusal = errIDTaken
		}
	}
	if refusal != nil || !l.cfg().limitsOwners() {
		return refusal, true, nil
	}
	return l.ownerExcess(ctx, op, b, guest)
}

// noteInFleet writes down which box a guest is.
func (l *lifecycle) noteInFleet(ctx context.Context, b *Box, guest string, set func(*fleetRecord)) error {
	n := fleetRecord{
		Owner: b.key.owner, Kind: b.key.kind, ID: b.key.id, Name: b.name, Description: clip(b.desc, maxRecordDescription),
		Interpreter: b.interpreter, Template: b.template, Flavor: b.flavor, Limits: b.limits, Created: b.created,
	}
	set(&n)
	text, err := json.Marshal(&n)
	if err == nil {
		err = l.parts.Fleet.Note(ctx, guest, fleet.Note{Box: b.key.tag(), Owner: ownerTag(b.key.owner), Text: string(text)})
	}
	if err != nil {
		return fmt.Errorf("tell other servers of the box: %w", err)
	}
	return nil
}

// noteRan writes down, once, that code has run in the box's own interpreter: a server that
// adopts the box then reports it if the interpreter has ended. It does not wait.
func (b *Box) noteRan() {
	if b.env.parts.Fleet == nil || b.ranNoted.Swap(true) {
		return
	}
	b.env.wg.Go(func() {
		ctx, cancel := context.WithTimeout(b.env.base, fleetTimeout)
		defer cancel()
		if err := b.life.recordInFleet(ctx, "run code", b, b.machine.ID, true); err != nil {
			b.env.log.Debug("other servers do not know that code has run in a box", logkey.Guest, b.machine.ID, logkey.Error, err)
		}
	})
}

// adopt makes the machine of a box whose server is gone.
func (f *machineFactory) adopt(ctx context.Context, b *Box) (made startedMachine, err error) {
	made.source, made.ran = SourceAdopted, b.origin.ran
	made.maker = f.makerFor(b.key.owner)
	from := *b.origin.adopted
	guest, err := f.parts.Fleet.Adopt(ctx, from)
	for attempt := 1; errors.Is(err, fleet.ErrChanged) && attempt < adoptAttempts; attempt++ {
		now, findErr := f.parts.Fleet.Boxes(ctx, b.key.tag())
		if findErr != nil {
			return made, findErr
		}
		err = errIDTaken
		for _, g := range now {
			n, ok := parseFleetRecord(g.Text)
			if ok && !n.Refused && g.State.ID == from.State.ID && g.Server == from.Server {
				guest, err = f.parts.Fleet.Adopt(ctx, g)
			}
		}
	}
	if errors.Is(err, fleet.ErrChanged) || errors.Is(err, engine.ErrExists) {
		err = errIDTaken // or this server is still freeing it
	}
	if err != nil {
		return made, err
	}
	made.machine, err = made.maker.Adopt(ctx, guest, b.flavor.Limits())
	if err != nil { // the box may be reached later
		f.handOverGuest(guest.ID())
	}
	return made, err
}

// handOver releases the machine of a box for another server to adopt.
func (e *env) handOver(made startedMachine) {
	e.closeNetwork(made.network, made.machine.ID)
	made.machine.Agent.Close() // its error says that the guest is gone already
	e.handOverGuest(made.machine.ID)
}

func (e *env) handOverGuest(id string) {
	ctx, cancel := context.WithTimeout(context.Background(), fleetTimeout)
	defer cancel()
	if err := e.parts.Fleet.Leave(ctx, id); err != nil {
		e.log.Warn("box not handed over to the other servers", logkey.Guest, id, logkey.Error, err)
	}
}

// handsOver reports whether a box that ends for the reason goes on at another server.
func (e *env) handsOver(t *Tombstone, made startedMachine) bool {
	return e.parts.Fleet != nil && t != nil && t.Reason == ReasonShutdown && made.machine != nil
}
