package box

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// ledger is a Networks that notes which networks are open.
type ledger struct {
	mu     sync.Mutex
	open   map[string]int                // guarded by mu; open networks, by owner and box
	opened map[string]int                // guarded by mu; all networks
	limits map[string]snapshot.NetLimits // guarded by mu; of the last network of a box
	active bool                          // guarded by mu
	refuse []Refusal                     // guarded by mu; of the next Take
	hold   chan struct{}                 // if not nil, networks of owners "slow…" close after it
}

type entry struct {
	ledger *ledger
	key    string
	once   sync.Once
}

// withLedger gives the boxes of a fixture networks, before the first box is made.
func withLedger(f *fixture) *ledger {
	l := &ledger{open: make(map[string]int), opened: make(map[string]int), limits: make(map[string]snapshot.NetLimits)}
	f.env.parts.Networks = l
	return l
}

// Parse accepts all entries but "bad".
func (l *ledger) Parse(entries []string) ([]string, error) {
	if slices.Contains(entries, "bad") {
		return nil, errors.New("bad is neither a preset nor a host")
	}
	return slices.Compact(append([]string{}, slices.Sorted(slices.Values(entries))...)), nil
}

// Within has a policy that allows a and b.
func (l *ledger) Within(_ Owner, limits snapshot.NetLimits, entries []string) (outside, allowed []string) {
	if slices.ContainsFunc(limits, func(limit snapshot.NetLimit) bool { return limit.Allow == nil }) {
		return entries, nil
	}
	for _, e := range entries {
		if e != "a" && e != "b" {
			outside = append(outside, e)
		}
	}
	return outside, []string{"a", "b"}
}

func (l *ledger) Open(owner Owner, box, template string, limits snapshot.NetLimits) Network {
	key := fmt.Sprintf("%s/%s/%s", owner, box, template)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[key]++
	l.opened[key]++
	l.limits[string(owner)+"/"+box] = limits
	return &entry{ledger: l, key: key}
}

// counts returns how many networks of a box are open, and were opened.
func (l *ledger) counts(key string) (open, opened int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open[key], l.opened[key]
}

func (l *ledger) set(active bool, refuse ...Refusal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.active, l.refuse = active, refuse
}

func (*entry) Lookup(context.Context, string) protocol.LookupResult {
	return protocol.LookupResult{Status: protocol.LookupRefused}
}

func (*entry) Serve(context.Context, protocol.Dial, net.Conn) error { return errors.ErrUnsupported }
func (*entry) Settings() protocol.Network                           { return protocol.Network{} }
func (*entry) Changed() <-chan struct{}                             { return nil }
func (*entry) Allowed() []string                                    { return nil }
func (*entry) Where() string                                        { return usualWhere }

func (e *entry) Active() bool {
	e.ledger.mu.Lock()
	defer e.ledger.mu.Unlock()
	return e.ledger.active
}

func (e *entry) Connected() bool { return e.ledger.hold != nil && strings.HasPrefix(e.key, "slow") }

func (e *entry) Take() []Refusal {
	e.ledger.mu.Lock()
	defer e.ledger.mu.Unlock()
	taken := e.ledger.refuse
	e.ledger.refuse = nil
	return taken
}

func (e *entry) Close() error {
	e.once.Do(func() {
		if e.ledger.hold != nil && strings.HasPrefix(e.key, "slow") {
			<-e.ledger.hold
		}
		e.ledger.mu.Lock()
		defer e.ledger.mu.Unlock()
		e.ledger.open[e.key]--
	})
	return nil
}

// want checks that a box has one open network, or none, and how many it has had.
func (l *ledger) want(t *testing.T, when, key string, open, opened int) {
	t.Helper()
	if o, all := l.counts(key); o != open || all != opened {
		t.Errorf("%s: %s has %d open networks of %d, want %d of %d", when, key, o, all, open, opened)
	}
}

// Boxes whose connections do not end hold no slot of the writers: boxes of other owners,
// and other boxes of the same owner, are written meanwhile.
func TestHibernate_SlowNetworkHoldsNoSlot(t *testing.T) {
	f, _ := newSnapFixture(t, func(c *Config) { c.PauseAfter = 0 })
	nets := withLedger(f)
	nets.hold = make(chan struct{})
	release := sync.OnceFunc(func() { close(nets.hold) })
	t.Cleanup(release)
	quick := []*Box{f.session(t, "bob", "a"), f.session(t, "bob", "b"), f.session(t, "carol", "c")}
	var slow []*Box
	for i := range writers() + 1 {
		slow = append(slow, f.session(t, "slow", fmt.Sprint(i)))
	}
	slow = append(slow, f.session(t, "slow too", "x")) // would hold the slot beyond the limit
	f.reg.mu.Lock()
	for _, b := range slow {
		f.life.unloadLocked(b, ReasonEvicted, "")
	}
	f.reg.mu.Unlock()
	within(t, "write boxes while others wait for their connections", func(ctx context.Context) error {
		var errs []error
		for _, b := range quick {
			errs = append(errs, f.unload(ctx, b))
		}
		return errors.Join(errs...)
	})
	for _, b := range slow {
		if state := f.stateOf(b); state != stateHibernating {
			t.Errorf("a box with open connections is %v", state)
		}
	}
	release()
	eventually(t, "all boxes are on disk", func() bool {
		return !slices.ContainsFunc(slow, func(b *Box) bool { return f.stateOf(b) != stateHibernated })
	})
}

// Each machine gets one network when it has an owner, from whatever it was made, and the
// network is closed when the box leaves memory.
func TestNetwork_OneForEachMachine(t *testing.T) {
	f, _ := newSnapFixture(t, func(c *Config) { c.PauseAfter = 0 })
	nets := withLedger(f)
	const key, copied = "bob/x/python", "bob/y/python"
	b := f.session(t, "bob", "x")
	wantOut(t, b, "print(1)", "1\n")
	nets.want(t, "new", key, 1, 1)

	f.clock.add(31 * time.Minute)
	f.maintainer.sweep()
	eventually(t, "the box is on disk", func() bool { return f.stateOf(b) == stateHibernated })
	nets.want(t, "hibernated", key, 0, 1)
	b = f.session(t, "bob", "x")
	nets.want(t, "woken", key, 1, 2)

	if _, err := f.fork(t.Context(), "bob", KindSession, "x", ForkOptions{ID: "y"}); err != nil {
		t.Fatal(err)
	}
	nets.want(t, "original of a fork", key, 1, 2)
	nets.want(t, "fork", copied, 1, 1)

	saved, err := f.saveSnapshot(t.Context(), "bob", KindSession, "y", SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Restore(t.Context(), "bob", KindSession, saved.ID, RestoreOptions{ID: "z"}); err != nil {
		t.Fatal(err)
	}
	nets.want(t, "restored", "bob/z/python", 1, 1)
	if _, err := f.Restore(t.Context(), "bob", KindSession, saved.ID, RestoreOptions{Into: "y"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the network of the box before the rollback is closed", func() bool {
		open, opened := nets.counts(copied)
		return open == 1 && opened == 2
	})

	if _, err := f.Stop(t.Context(), "bob", KindSession, "x"); err != nil {
		t.Fatal(err)
	}
	nets.want(t, "stopped", key, 0, 2)
	f.engine.set(errors.New("no machine today"), nil)
	if _, _, err := f.Session(t.Context(), "bob", SessionOptions{ID: "failed"}); err == nil {
		t.Fatal("a session without a machine")
	}
	nets.want(t, "not started", "bob/failed/python", 0, 0)
	f.engine.set(nil, nil)
	if err := f.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for key, n := range nets.open {
		if n != 0 {
			t.Errorf("after Close: %s has %d open networks", key, n)
		}
	}
}

// A box that cannot be written to disk stays in memory, and gets a new network in place of
// the one that was closed for the write.
func TestNetwork_BoxThatCannotHibernate(t *testing.T) {
	f, snaps := newSnapFixture(t, func(c *Config) { c.PauseAfter = 0 })
	nets := withLedger(f)
	b := f.session(t, "bob", "x")
	wantOut(t, b, "print(1)", "1\n")
	snaps.set(&snaps.failWrite, true)
	f.clock.add(31 * time.Minute)
	f.maintainer.sweep()
	f.unwritten(t, b, 1)
	nets.want(t, "not written", "bob/x/python", 1, 2)
	wantOut(t, b, "print(2)", "2\n")
}

// A transfer keeps an idle box awake, but not for ever.
func TestNetwork_TransferKeepsBoxAwake(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.PauseAfter = 0 })
	nets := withLedger(f)
	b := f.session(t, "bob", "x")
	wantOut(t, b, "print(1)", "1\n")
	f.maintainer.isIdle(t.Context(), b) // the first sample
	for _, step := range []struct {
		active bool
		after  time.Duration
		want   bool
	}{{false, 0, true}, {true, 0, false}, {true, activeNetwork - time.Second, false}, {true, time.Second, true}, {false, 0, true}} {
		nets.set(step.active)
		f.clock.add(step.after)
		if got := f.maintainer.isIdle(t.Context(), b); got != step.want {
			t.Errorf("active %t, %v later: idle is %t, want %t", step.active, step.after, got, step.want)
		}
	}
}

// Refused connections are in the result of the next call, once, in words and as data.
func TestNetwork_RefusalsAreInResults(t *testing.T) {
	f := newFixture(t, nil)
	nets := withLedger(f)
	b := f.session(t, "bob", "x")
	refused := []Refusal{
		{Host: "evil.example\x1b[31m", Port: 443, Why: "no_rule", Text: "Glovebox refused evil.example:443\x1b[31m: no rule allows it", Count: 3},
		{Host: "b.example", Why: "denied", Rule: "b.example", Text: "Glovebox refused b.example", Count: 1},
	}
	for range maxRefusals {
		refused = append(refused, Refusal{Host: "more.example", Port: 1, Why: "no_rule", Text: "and more", Count: 1})
	}
	nets.set(false, refused...)
	res := run(t, b, "print(1)")
	notes := strings.Join(res.Notes, "\n")
	if len(res.Notes) != maxRefusals+1 {
		t.Errorf("got %d notes, want one for each refusal and one for the rest: %q", len(res.Notes), res.Notes)
	}
	if len(res.Refused) != maxRefusals || res.Refused[0].Count != 3 || res.Refused[1].Rule != "b.example" {
		t.Errorf("refused: got %+v, want the first %d", res.Refused, maxRefusals)
	}
	if res.RefusedMore != 2 || !strings.HasSuffix(notes, "Glovebox refused, or could not resolve, at least 2 more destinations.") {
		t.Errorf("%d more, notes %q, want 2 more in both", res.RefusedMore, notes)
	}
	if !strings.Contains(notes, "no rule allows it (3 times)\n") || !strings.Contains(notes, "Glovebox refused b.example\n") || strings.Contains(notes, "\x1b") || strings.Contains(res.Refused[0].Host, "\x1b") {
		t.Errorf("notes: got %q and %q", notes, res.Refused[0].Host)
	}
	nets.set(false, refused[:maxRefusals+1]...)
	if res := run(t, b, "print(1)"); !slices.Contains(res.Notes, "Glovebox refused, or could not resolve, at least 1 more destination.") {
		t.Errorf("one more: got %q", res.Notes)
	}
	nets.set(false, refused[1])
	out, err := b.Exec(t.Context(), ExecRequest{Shell: "true"})
	if err != nil || len(out.Refused) != 1 || !slices.Contains(out.Notes, "Glovebox refused b.example") {
		t.Errorf("a command: got %+v, %v", out, err)
	}
	if res := run(t, b, "print(1)"); len(res.Refused) != 0 || len(res.Notes) != 0 {
		t.Errorf("the next call: got %+v, want no refusals", res)
	}
}

// Machines of the pool have no owner yet, and no network.
func TestNetwork_NoneBeforeTheOwner(t *testing.T) {
	f := newFixture(t, nil)
	nets := withLedger(f)
	mach, err := f.machines.poolInstance(t.Context(), (&Box{spec: spec{interpreter: InterpreterPython, flavor: FlavorSmall}}).class())
	if err != nil {
		t.Fatal(err)
	}
	f.machines.discard(mach)
	nets.mu.Lock()
	defer nets.mu.Unlock()
	if len(nets.opened) != 0 {
		t.Errorf("a machine without an owner opened %v", nets.opened)
	}
}

// Where a section of a file is for the box, the setting --network has no effect, and no note names it.
func TestHints_NamesTheSection(t *testing.T) {
	f := newFixture(t, nil)
	b := f.session(t, "bob", "x")
	n := networkState{where: "the section [default] in --network-file"}
	o := hintInput{failed: true, source: "pip install polars", stderr: "ERROR: No matching distribution found for polars"}
	if notes := b.hints(nil, o, n); len(notes) != 1 || !strings.HasSuffix(notes[0], "a network (the section [default] in --network-file: pypi,npm).") {
		t.Errorf("without a network: got %q", notes)
	}
	n.allowed = []string{"npm"}
	missing := hintInput{failed: true, stderr: "ModuleNotFoundError: No module named 'polars'"}
	if notes := b.hints(nil, missing, n); len(notes) != 1 || !strings.HasSuffix(notes[0], "for PyPI (the section [default] in --network-file: pypi).") {
		t.Errorf("without the index: got %q", notes)
	}
}

type placed struct {
	entry
	where string
}

func (p *placed) Where() string { return p.where }

func TestNetwork_SendsWhereItIsElsewhere(t *testing.T) {
	for where, want := range map[string]bool{usualWhere: false, "the section [default] in --network-file": true} {
		if got := (&boxNetwork{current: &placed{where: where}}).elsewhereLocked(); got != want {
			t.Errorf("%s: got %v, want %v", where, got, want)
		}
	}
}

// The notes about a failure depend on the network of the box.
func TestHints_WithNetwork(t *testing.T) {
	f := newFixture(t, nil)
	b := f.session(t, "bob", "x")
	o := hintInput{failed: true, stderr: "curl: (6) Could not resolve host: a.example"}
	on := networkState{allowed: []string{"npm", "db.example.org"}}
	if notes := b.hints(nil, o, on); len(notes) != 1 || !strings.Contains(notes[0], "Network: npm, db.example.org; everything else is refused.") {
		t.Errorf("a failure that no refusal explains: got %q", notes)
	}
	on.notes = []string{"Glovebox refused a.example"}
	if notes := b.hints(nil, o, on); len(notes) != 1 || notes[0] != on.notes[0] {
		t.Errorf("a refusal: got %q", notes)
	}
	missing := hintInput{failed: true, stderr: "ModuleNotFoundError: No module named 'polars'"}
	on.allowed = append(on.allowed, "pypi")
	if notes := b.hints(nil, missing, on); len(notes) != 2 || !strings.Contains(notes[1], "Install it") || strings.Contains(notes[1], "no network") {
		t.Errorf("a missing module: got %q", notes)
	}
}
