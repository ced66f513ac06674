package box

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
)

// The diagram in docs/architecture.md has the transitions of the table.
func TestTransitions_AreDrawnInArchitecture(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "```mermaid\n" + stateDiagram() + "```\n"; !bytes.Contains(doc, []byte(want)) {
		t.Errorf("docs/architecture.md does not draw the states of a box; it must contain:\n%s", want)
	}
}

func TestTransitions_EveryStateIsReachableAndEnds(t *testing.T) {
	reach := func(step func(from, to state) (state, state), start ...state) map[state]bool {
		seen := map[state]bool{}
		for len(start) > 0 {
			s := start[0]
			start = start[1:]
			if seen[s] {
				continue
			}
			seen[s] = true
			for _, tr := range transitions {
				if from, to := step(tr.from, tr.to); from == s {
					start = append(start, to)
				}
			}
		}
		return seen
	}
	reached := reach(func(from, to state) (state, state) { return from, to }, stateNew)
	ending := reach(func(from, to state) (state, state) { return to, from }, stateHibernated, stateGone)
	for s := range numStates {
		if !reached[s] || !ending[s] {
			t.Errorf("state %v: reached from new %t, ends %t; want both", s, reached[s], ending[s])
		}
	}
}

func TestSetState_PanicsOutsideOfTheTable(t *testing.T) {
	m := New(DefaultConfig(), Parts{})
	b := m.life.newBox(spec{})
	defer func() {
		if got := fmt.Sprint(recover()); !strings.Contains(got, "cannot become paused when it is new") {
			t.Errorf("got panic %q", got)
		}
	}()
	m.reg.mu.Lock()
	defer m.reg.mu.Unlock()
	m.reg.setState(b, statePaused)
}

// snapEngine adds snapshots to an engine that has none: what it restores is a fresh
// guest. It fails on demand.
type snapEngine struct {
	engine.Engine
	mu          sync.Mutex
	failWrite   bool // guarded by mu
	failRestore bool // guarded by mu
	failPause   bool // guarded by mu
	gone        bool // guarded by mu; a guest ends while it is written
	large       bool // guarded by mu; snapshots have largeSnapshot bytes

	failGuest string        // guarded by mu; the guest that cannot be written
	writes    int           // guarded by mu; attempts to write a guest
	hold      chan struct{} // guarded by mu; Snapshot waits for it
}

const largeSnapshot = 64 << 20

func (e *snapEngine) fails(which *bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if *which {
		return fmt.Errorf("as the test wants: %w", engine.ErrUnavailable)
	}
	return nil
}

func (e *snapEngine) set(which *bool, fail bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	*which = fail
}

// Unwrap returns the engine without snapshots.
func (e *snapEngine) Unwrap() engine.Engine { return e.Engine }

func (e *snapEngine) Restore(ctx context.Context, id string, spec *engine.Spec, snap engine.Snapshot) (engine.Guest, error) {
	if err := e.fails(&e.failRestore); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(snap.Dir, "memory")); err != nil {
		return nil, fmt.Errorf("%w: %w", err, engine.ErrInvalid)
	}
	return e.Create(ctx, id, spec)
}

func (e *snapEngine) Snapshot(_ context.Context, id, dir string) (string, error) {
	e.mu.Lock()
	e.writes++
	hold, gone, large, fail := e.hold, e.gone, e.large, e.failGuest == id
	e.mu.Unlock()
	if hold != nil {
		<-hold
	}
	if err := e.fails(&e.failWrite); err != nil {
		return "", err
	}
	if gone {
		return "", fmt.Errorf("write memory: %w", engine.ErrGone)
	}
	if fail {
		return "", engine.ErrExhausted
	}
	size := int64(1)
	if large {
		size = largeSnapshot
	}
	file := filepath.Join(dir, "memory")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return "", err
	}
	return "", os.Truncate(file, size) // without blocks on the disk
}

func (e *snapEngine) InspectSnapshot(context.Context, engine.Snapshot) (engine.SnapshotInfo, error) {
	return engine.SnapshotInfo{RootKey: "host"}, nil
}

func (e *snapEngine) CheckSnapshot(context.Context, *engine.Spec, engine.Snapshot) error { return nil }

func (e *snapEngine) RemoveSnapshot(context.Context, engine.Snapshot) error { return nil }

func (e *snapEngine) Pause(ctx context.Context, id string) error {
	if err := e.fails(&e.failPause); err != nil {
		return err
	}
	p, _ := engine.As[engine.Pauser](e.Engine)
	return p.Pause(ctx, id)
}

func (e *snapEngine) Resume(ctx context.Context, id string) error {
	p, _ := engine.As[engine.Pauser](e.Engine)
	return p.Resume(ctx, id)
}

// newSnapFixture is newFixture with boxes that can be written to disk.
func newSnapFixture(t *testing.T, change func(*Config)) (*fixture, *snapEngine) {
	t.Helper()
	return newSnapFixtureWith(t, change, func(*snapshot.Config) {})
}

// newSnapFixtureWith is newSnapFixture with another store.
func newSnapFixtureWith(t *testing.T, change func(*Config), with func(*snapshot.Config)) (*fixture, *snapEngine) {
	t.Helper()
	var snaps *snapEngine
	f := newFixtureWith(t, change, func(f *fixture, parts *Parts) { snaps = addSnapshots(t, f, parts, with) })
	return f, snaps
}

// addSnapshots gives parts a store, and their engine snapshots.
func addSnapshots(t *testing.T, f *fixture, parts *Parts, with func(*snapshot.Config)) *snapEngine {
	t.Helper()
	store := snapshot.Config{
		Dir: filepath.Join(t.TempDir(), "snapshots"), MaxBytes: 1 << 30, Now: f.clock.Now,
	}
	with(&store)
	var err error
	parts.Snapshots, err = snapshot.Open(store)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { parts.Snapshots.Close() })
	snaps := &snapEngine{Engine: parts.Machines.Engine}
	parts.Machines.Engine = snaps
	parts.Scratch = []string{t.TempDir()}
	return snaps
}

// history notes the transitions of all boxes and checks each state's invariants.
type history struct {
	mu   sync.Mutex
	seen map[[2]state]int
	errs []string
}

func (h *history) note(r *registry, b *Box, from, to state) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen[[2]state{from, to}]++
	fail := func(format string, args ...any) {
		h.errs = append(h.errs, fmt.Sprintf("%v -> %v: ", from, to)+fmt.Sprintf(format, args...))
	}
	closed := func(ch chan struct{}) bool {
		select {
		case <-ch:
			return true
		default:
			return false
		}
	}
	if got := r.boxes[b.key] == b; got != to.live() {
		fail("found by its key: %t", got)
	}
	if _, got := r.freeing[b]; got != to.freeing() {
		fail("among those being freed: %t", got)
	}
	if got := closed(b.aborted); got != !to.live() && to != stateHibernating {
		fail("told that it has ended: %t", got)
	}
	if got := closed(b.unloadDone); got != to.final() {
		fail("told that it is freed: %t", got)
	}
	if got := closed(b.ready); got == (to.starting() || to == stateEnding && !b.hasStarted) {
		fail("told that its start is over: %t", got)
	}
	if to == stateReady && b.machine == nil {
		fail("it has no machine")
	}
	if to == statePaused && b.use.calls > 0 {
		fail("it has %d calls", b.use.calls)
	}
}

// TestStates_RandomHistories has clients, the clock, the maintainer, failures and the end of
// the server act on boxes at random and at once. Every change of state passes the table,
// or setState panics; in every state its invariants hold; and every row of the table
// is walked, so that none stands for what never happens.
func TestStates_RandomHistories(t *testing.T) {
	h := &history{seen: map[[2]state]int{}}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rounds := 2
	if testing.Short() {
		rounds = 1
	}
	for round := range rounds {
		walkHistories(t, h, seed+uint64(round))
	}
	walkRareTransitions(t, h)
	for _, e := range h.errs[:min(len(h.errs), 20)] {
		t.Error(e)
	}
	for _, tr := range transitions {
		if h.seen[[2]state{tr.from, tr.to}] == 0 {
			t.Errorf("%v -> %v (%s) never happened", tr.from, tr.to, tr.cause)
		}
	}
}

// watched has all transitions of a fixture noted.
func (h *history) watched(t *testing.T, change func(*Config)) (*fixture, *snapEngine) {
	f, snaps := newSnapFixture(t, change)
	f.reg.mu.Lock()
	f.reg.onTransition = func(b *Box, from, to state) { h.note(f.reg, b, from, to) }
	f.reg.mu.Unlock()
	return f, snaps
}

// walkHistories has four clients do 40 random things each.
func walkHistories(t *testing.T, h *history, seed uint64) {
	f, snaps := h.watched(t, func(c *Config) {
		c.MaxSessions, c.MaxContexts = 3, 2
		c.StopWait, c.CleanupInterval, c.PauseAfter = 20*time.Millisecond, 29*time.Minute, time.Minute
	})
	var wg sync.WaitGroup
	for client := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(client)))
			for range 40 {
				act(t.Context(), f, snaps, r)
			}
		})
	}
	wg.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := f.Close(ctx); err != nil {
		t.Errorf("close (seed %d): %v", seed, err)
	}
	f.reg.mu.Lock()
	defer f.reg.mu.Unlock()
	if len(f.reg.boxes)+len(f.reg.freeing) > 0 {
		t.Errorf("after close (seed %d): %d boxes live, %d being freed", seed, len(f.reg.boxes), len(f.reg.freeing))
	}
}

// act does one random thing. Its errors are those of boxes that others end meanwhile.
func act(ctx context.Context, f *fixture, snaps *snapEngine, r *rand.Rand) {
	id := string(rune('a' + r.IntN(4)))
	short, cancel := context.WithTimeout(ctx, time.Duration(1+r.IntN(300))*time.Millisecond)
	defer cancel()
	use := func(b *Box, l Hold, err error) {
		if err != nil {
			return
		}
		defer l.Release()
		if r.IntN(4) == 0 {
			b.Exec(short, ExecRequest{Shell: "sleep 0.05"})
			return
		}
		b.List(short, ListRequest{Path: ".", Depth: 1})
	}
	switch n := r.IntN(20); {
	case n < 7:
		use(f.Session(ctx, "", SessionOptions{ID: id}))
	case n < 9:
		use(f.Session(short, "", SessionOptions{ID: id})) // may abandon the start
	case n < 11:
		b, l, err := f.Context(short, "", "ctx")
		if err != nil {
			b, err = f.CreateContext(short, "", ContextOptions{Name: "ctx"})
		}
		use(b, l, err)
	case n == 11:
		f.Stop(short, "", KindSession, id)
	case n == 12:
		f.Stop(short, "", KindContext, "ctx")
	case n == 13:
		f.clock.add(time.Duration(r.IntN(20)) * time.Minute)
		f.maintainer.sweep()
	case n == 14: // what the maintainer does with an idle box, without waiting for it to be idle
		if b := f.liveBox(id); b != nil {
			f.reg.mu.Lock()
			seq := b.use.seq
			f.reg.mu.Unlock()
			if f.maintainer.writeIfDue(b) {
				b.pause(short, seq)
			}
		}
	case n == 15:
		f.maintainer.evictForHost()
	case n == 16:
		if b := f.liveBox(id); b != nil {
			f.life.terminate(b, ReasonCrashed, "as the test wants")
		}
	case n == 17:
		f.fork(short, "", KindSession, id, ForkOptions{})
	case n == 18:
		if k, err := f.saveSnapshot(short, "", KindSession, id, SnapshotOptions{}); err == nil {
			f.Restore(short, "", KindSession, k.ID, RestoreOptions{Into: id})
			f.DeleteSnapshot("", k.ID)
		}
	case n == 19:
		which := []*bool{&snaps.failWrite, &snaps.failRestore, &snaps.failPause}[r.IntN(3)]
		snaps.set(which, r.IntN(2) == 0)
	}
}

// liveBox returns a session that is in memory and has started; nil if there is none.
func (f *fixture) liveBox(id string) *Box {
	f.reg.mu.Lock()
	defer f.reg.mu.Unlock()
	if b := f.reg.boxes[key{"", KindSession, id}]; b != nil && !b.state.starting() {
		return b
	}
	return nil
}

// walkRareTransitions brings about the transitions that random histories seldom have.
func walkRareTransitions(t *testing.T, h *history) {
	f, snaps := h.watched(t, func(c *Config) {
		c.PauseAfter, c.CleanupInterval, c.StopWait = time.Minute, 29*time.Minute, 50*time.Millisecond
	})

	// A start that fails, and a wake that fails.
	f.engine.set(fmt.Errorf("as the test wants"), nil)
	_, _, err := f.Session(t.Context(), "", SessionOptions{ID: "fails"})
	wantCode(t, err, CodeStartFailed)
	f.engine.set(nil, nil)
	b := f.session(t, "", "wakes")
	f.evict(t, b)
	snaps.set(&snaps.failRestore, true)
	_, _, err = f.Session(t.Context(), "", SessionOptions{ID: "wakes"})
	wantCode(t, err, CodeStartFailed, "Failed to wake python sandbox (small)")
	snaps.set(&snaps.failRestore, false)
	b = f.session(t, "", "wakes")

	// Pausing that fails, then works; a stop, a crash and an eviction of a paused box.
	pause := func(b *Box) error {
		f.reg.mu.Lock()
		seq := b.use.seq
		f.reg.mu.Unlock()
		return b.pause(t.Context(), seq)
	}
	snaps.set(&snaps.failPause, true)
	if err := pause(b); err == nil {
		t.Error("pause: got no error")
	}
	snaps.set(&snaps.failPause, false)
	if err := pause(b); err != nil {
		t.Fatal(err)
	}
	if _, err := b.List(t.Context(), ListRequest{Path: "."}); err != nil {
		t.Error(err)
	}
	if err := pause(b); err != nil {
		t.Fatal(err)
	}
	f.evict(t, b)
	b = f.session(t, "", "wakes")
	if err := pause(b); err != nil {
		t.Fatal(err)
	}
	f.life.terminate(b, ReasonCrashed, "as the test wants") // its record stays
	<-b.unloadDone
	if got := f.List("", KindSession); len(got) != 1 || got[0].State != StateHibernated {
		t.Errorf("after a crash: got %+v, want the box as it was written", got)
	}

	// A rollback.
	f.session(t, "", "rolls-back")
	saved, err := f.saveSnapshot(t.Context(), "", KindSession, "rolls-back", SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Restore(t.Context(), "", KindSession, saved.ID, RestoreOptions{Into: "rolls-back"}); err != nil {
		t.Error(err)
	}

	// A box that cannot be written when it leaves memory stays, paused or not.
	b = f.session(t, "", "unwritten")
	snaps.set(&snaps.failWrite, true)
	f.evict(t, b)
	f.clock.add(lastBackoff)
	if err := pause(b); err != nil {
		t.Fatal(err)
	}
	f.reg.mu.Lock()
	b.disk.filesSeq = b.use.seq // or it resumes to store them
	f.reg.mu.Unlock()
	f.evict(t, b)
	if got := f.stateOf(b); got != statePaused {
		t.Errorf("a paused box that could not be written is %v", got)
	}
	snaps.set(&snaps.failWrite, false)

	// A rollback of a paused box that fails.
	saved, err = f.saveSnapshot(t.Context(), "", KindSession, "rolls-back", SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := pause(b); err != nil {
		t.Fatal(err)
	}
	snaps.set(&snaps.failRestore, true)
	_, err = f.Restore(t.Context(), "", KindSession, saved.ID, RestoreOptions{Into: "unwritten"})
	wantCode(t, err, CodeStartFailed)
	if got := f.stateOf(b); got != statePaused {
		t.Errorf("after a rollback that failed, a paused box is %v", got)
	}
	snaps.set(&snaps.failRestore, false)

	// A stop that gives up; one that is cancelled as the last call ends; a crash and a
	// shutdown while a stop waits.
	c := f.context(t, "", "drains")
	end := func() func() {
		end, err := c.begin(t.Context(), "test")
		if err != nil {
			t.Fatal(err)
		}
		return end
	}
	done := end()
	_, err = f.Stop(t.Context(), "", KindContext, c.ID())
	wantCode(t, err, CodeStopFailed)
	done()
	done = end()
	f.reg.mu.Lock()
	ctx, cancel := context.WithCancel(t.Context())
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		f.reg.mu.Lock()
		defer f.reg.mu.Unlock()
		f.reg.drainBoxLocked(ctx, "test", c)
		f.reg.undrainBoxLocked(c) // the caller has changed its mind
	}()
	f.reg.mu.Unlock()
	eventually(t, "the drain waits", func() bool { return f.stateOf(c) == stateDraining })
	done()
	<-drained
	cancel()

	drain := func(c *Box) {
		end, err := c.begin(t.Context(), "test")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(end)
		go f.Stop(context.Background(), "", KindContext, c.ID())
		eventually(t, "the stop waits", func() bool { return f.stateOf(c) == stateDraining })
	}
	f.cfg().StopWait = time.Minute
	drain(c)
	f.life.terminate(c, ReasonCrashed, "as the test wants")
	drain(f.context(t, "", "drains at the end"))

	// A crash while a call is in flight.
	crashing := f.session(t, "", "crashes-in-a-call")
	inFlight, err := crashing.begin(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	f.life.terminate(crashing, ReasonCrashed, "as the test wants")
	inFlight()
	<-crashing.unloadDone

	last := f.session(t, "", "last")
	cut, err := last.begin(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer cut()
	snaps.set(&snaps.failWrite, true) // of "unwritten" nothing is left
	ending, cancelEnding := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancelEnding()
	if err := f.Close(ending); err == nil {
		t.Error("close with calls in flight: got no error")
	}
}

// evict evicts a box and waits until it is out of memory, or stays after all.
func (f *fixture) evict(t *testing.T, b *Box) {
	t.Helper()
	f.reg.mu.Lock()
	freed := b.unloadDone
	f.life.unloadLocked(b, ReasonEvicted, "as the test wants")
	f.reg.mu.Unlock()
	<-freed
}

func (f *fixture) stateOf(b *Box) state {
	f.reg.mu.Lock()
	defer f.reg.mu.Unlock()
	return b.state
}

// A box that is stopped while a call wakes it does not come back.
func TestStop_WhileWaking(t *testing.T) {
	f, _ := newSnapFixture(t, nil)
	f.evict(t, f.session(t, "", "x"))
	block := make(chan struct{})
	f.engine.set(nil, block)
	waking := make(chan error, 1)
	go func() {
		_, _, err := f.Session(context.Background(), "", SessionOptions{ID: "x"})
		waking <- err
	}()
	eventually(t, "the box is being woken", func() bool {
		f.reg.mu.Lock()
		defer f.reg.mu.Unlock()
		b := f.reg.boxes[key{"", KindSession, "x"}]
		return b != nil && b.state == stateWaking
	})
	if found, err := f.Stop(t.Context(), "", KindSession, "x"); !found || err != nil {
		t.Errorf("stop: got %t, %v", found, err)
	}
	wantCode(t, <-waking, CodeGone, "was stopped")
	f.engine.set(nil, nil)
	if got := f.List("", ""); len(got) != 0 {
		t.Errorf("after the stop: got %+v, want nothing", got)
	}
}

// TestSetState_InvalidTransition: a change outside the table leaves the box and the
// server as they are, and is logged.
func TestSetState_InvalidTransition(t *testing.T) {
	panicOnInvalidTransition = false
	defer func() { panicOnInvalidTransition = true }()
	var log bytes.Buffer
	e := newEnv(DefaultConfig(), Parts{Log: slog.New(slog.NewTextHandler(&log, nil))})
	r := newRegistry(e)
	b := &Box{spec: spec{key: key{id: "b1"}}, state: stateGone}
	r.mu.Lock()
	r.setState(b, stateReady)
	r.mu.Unlock()
	r.wg.Wait() // for the log
	if b.state != stateGone || len(r.boxes) > 0 || !strings.Contains(log.String(), `box \"b1\" cannot become ready when it is gone`) {
		t.Errorf("the box is %v, the log has %s", b.state, &log)
	}
}

// stateDiagram draws the transitions as Mermaid does.
func stateDiagram() string {
	var b strings.Builder
	b.WriteString("stateDiagram-v2\n    [*] --> new\n")
	for _, t := range transitions {
		fmt.Fprintf(&b, "    %v --> %v: %s\n", t.from, t.to, t.cause)
	}
	b.WriteString("    gone --> [*]\n")
	return b.String()
}
