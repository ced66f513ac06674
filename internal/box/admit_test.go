package box

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
)

// wantIDs checks which boxes of an owner live.
func (f *fixture) wantIDs(t *testing.T, owner Owner, want ...string) {
	t.Helper()
	if got := slices.Sorted(maps.Keys(f.ids(owner))); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		t.Fatalf("boxes of %q: got %v, want %v", owner, got, want)
	}
}

func (f *fixture) wantLimit(t *testing.T, owner Owner, want SessionOptions, text string) {
	t.Helper()
	_, _, err := f.Session(t.Context(), owner, want)
	wantCode(t, err, CodeLimit)
	if err.Error() != text {
		t.Errorf("got %q, want %q", err, text)
	}
}

func TestEvict_LeastRecentlyUsed(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.MaxSessions = 3 })
	for _, id := range []string{"a", "b", "c"} {
		f.session(t, "", id)
	}
	f.session(t, "", "a") // reuse evicts nothing, but counts as use
	f.wantIDs(t, "", "a", "b", "c")
	f.session(t, "", "d")
	f.wantIDs(t, "", "a", "c", "d")
	run(t, f.session(t, "", "c"), "1")
	f.session(t, "", "e")
	f.wantIDs(t, "", "c", "d", "e")
	if _, _, peak := f.engine.counts(); peak != 3 {
		t.Errorf("guests at once: got %d, want 3", peak)
	}
	_, hold, err := f.Session(t.Context(), "", SessionOptions{ID: "b"})
	if err != nil || hold.Lost == nil || hold.Lost.Reason != ReasonEvicted || hold.Lost.Detail != "it was idle when room for a new session was needed" {
		t.Errorf("evicted session: got %+v, %v; want why it was evicted", hold, err)
	}
	if st := f.Stats(); st.Ended[ReasonEvicted] != 3 || st.Sessions != 3 || st.Started != 6 || st.Flavors[FlavorSmall] != 3 {
		t.Errorf("stats: got %+v", st)
	}
	if st := f.Stats(); st.Evicted != 3 || st.Boxes[Class{StateReady, KindSession, FlavorSmall}] != 3 || st.Starting != 0 {
		t.Errorf("stats: got %+v", st)
	}
}

func TestEvict_Context(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.MaxContexts = 1; c.MaxSessions = 1 })
	f.session(t, "", "s")
	c := f.context(t, "", "first")
	f.clock.add(3 * time.Minute)
	f.context(t, "", "second")
	_, _, err := f.Context(t.Context(), "", c.ID())
	wantCode(t, err, CodeNotFound, "it was evicted just now because", "create a new one")
	if !f.ids("")["s"] {
		t.Error("a context made a session go")
	}
	f.cfg().Evict = false
	_, err = f.CreateContext(t.Context(), "", ContextOptions{Name: "third"})
	wantCode(t, err, CodeLimit, "Contexts limit exceeded: 1 >= 1")
}

func TestEvict_NeverBusy(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.MaxSessions = 3 })
	running := f.session(t, "", "running")
	end := occupy(t, running)
	queued := background(t, running, "'queued'")
	held, hold, err := f.Session(t.Context(), "", SessionOptions{ID: "held"})
	if err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	f.engine.set(nil, gate)
	started := make(chan error, 1)
	go func() {
		_, _, err := f.Session(t.Context(), "", SessionOptions{ID: "starting"})
		started <- err
	}()
	eventually(t, "it starts", func() bool { return len(f.ids("")) == 3 })
	f.wantLimit(t, "", SessionOptions{ID: "x"}, "Sessions limit exceeded: 3 >= 3")
	f.wantIDs(t, "", "running", "held", "starting")
	hold.Release()
	close(gate)
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	f.session(t, "", "x") // the box that no call holds was evicted
	f.wantIDs(t, "", "running", "starting", "x")
	_, err = held.Run(t.Context(), RunRequest{Code: "1"})
	wantCode(t, err, CodeGone, "was evicted")
	end()
	if res, err := queued(); err != nil || !res.Success {
		t.Errorf("protected run: got %+v, %v", res, err)
	}
}

func TestEvict_ByMemory(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.MaxTotalMemoryMB = 4096 })
	medium := func(id string) { f.sessionOf(t, "", SessionOptions{ID: id, Flavor: FlavorMedium}) }
	medium("1")
	medium("2")
	medium("1")
	medium("3")
	f.wantIDs(t, "", "1", "3")
	f.sessionOf(t, "", SessionOptions{ID: "l", Flavor: FlavorLarge})
	f.wantIDs(t, "", "l")
	if st := f.Stats(); st.MemoryMB != 4096 || st.MaxMemoryMB != 4096 || st.CPUs != 4 {
		t.Errorf("stats: got %+v", st)
	}

	// Not enough even with all that may go: nothing goes.
	f.sessionOf(t, "", SessionOptions{ID: "m", Flavor: FlavorMedium})
	b := f.session(t, "", "s")
	done := occupy(t, b)
	f.wantLimit(t, "", SessionOptions{Flavor: FlavorLarge}, "Memory limit exceeded: 5120MB >= 4096MB")
	f.wantIDs(t, "", "m", "s")
	done()

	f.cfg().Evict = false
	f.session(t, "", "s2")
	f.wantLimit(t, "", SessionOptions{}, "Memory limit exceeded: 5120MB >= 4096MB")
	f.wantIDs(t, "", "m", "s", "s2")
}

func TestEvict_Off(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.MaxSessions = 2; c.Evict = false })
	f.session(t, "", "a")
	f.session(t, "", "b")
	f.wantLimit(t, "", SessionOptions{ID: "c"}, "Sessions limit exceeded: 2 >= 2")
	f.session(t, "", "a")
	f.wantIDs(t, "", "a", "b")
}

func TestAdmit_QuotaOfOwner(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.MaxPerOwner = 2; c.MaxSessions = 4 })
	f.session(t, "alice", "a1")
	f.session(t, "bob", "b1")
	f.session(t, "bob", "b2")
	f.session(t, "bob", "b3")
	f.wantIDs(t, "bob", "b2", "b3")
	f.wantIDs(t, "alice", "a1")
	f.context(t, "bob", "c")
	if got := f.List("bob", ""); len(got) != 2 {
		t.Errorf("bob's boxes: got %+v, want 2 of both kinds", got)
	}
	// At the global limit the own ones go first, though others are older.
	f.session(t, "bob", "b4")
	f.session(t, "alice", "a2")
	f.session(t, "bob", "b5")
	f.wantIDs(t, "alice", "a1", "a2")
	f.wantIDs(t, "bob", "b4", "b5")
	f.cfg().MaxPerOwner = 0
	f.session(t, "alice", "a3")
	f.wantIDs(t, "alice", "a2", "a3")
	f.wantIDs(t, "bob", "b4", "b5")
	// Without hibernation, no owner's box ends for another owner's.
	f.wantLimit(t, "carol", SessionOptions{}, "Sessions limit exceeded: 4 >= 4")
	_, _, err := f.Session(t.Context(), "carol", SessionOptions{})
	var e *Error
	if !errors.As(err, &e) || !strings.HasPrefix(e.Hint, "No idle box may be evicted for this one.") {
		t.Errorf("idle boxes of others: got hint %+v; want that none of them may be evicted", e)
	}
	f.wantIDs(t, "bob", "b4", "b5")
	f.wantIDs(t, "alice", "a2", "a3")

	f.cfg().MaxPerOwner = 1
	f.cfg().Evict = false
	f.wantLimit(t, "bob", SessionOptions{}, "Limit per user exceeded: 2 >= 1 boxes (sessions and contexts)")
	_, _, err = f.Session(t.Context(), "bob", SessionOptions{})
	if !errors.As(err, &e) || !strings.Contains(e.Hint, "get_sessions lists them, stop_session ends one") {
		t.Errorf("the limit of an owner: got hint %+v; want the tools that list and stop boxes", e)
	}
}

func TestAdmit_MemoryOfOwner(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.MaxMemoryPerOwnerMB = 2048 })
	f.session(t, "alice", "a")
	f.session(t, "bob", "b1")
	f.session(t, "bob", "b2")
	f.sessionOf(t, "bob", SessionOptions{ID: "b3", Flavor: FlavorMedium})
	f.wantIDs(t, "bob", "b3")
	f.wantIDs(t, "alice", "a")
	f.wantLimit(t, "bob", SessionOptions{Flavor: FlavorLarge}, "Memory limit per user exceeded: 4096MB >= 2048MB")
}

// TestAdmit_HibernatesAtLimitOfOwner: at a limit of its owner, an idle box of the owner leaves
// memory for a new one, and returns as it was with the next call on it. The idle boxes of others
// stay.
func TestAdmit_HibernatesAtLimitOfOwner(t *testing.T) {
	for name, limit := range map[string]func(*Config){
		"boxes":  func(c *Config) { c.MaxPerOwner = 2 },
		"memory": func(c *Config) { c.MaxMemoryPerOwnerMB = 2048 },
	} {
		t.Run(name, func(t *testing.T) {
			f, _ := newSnapFixture(t, func(c *Config) { c.PauseAfter = 0; limit(c) })
			f.session(t, "alice", "a")
			f.session(t, "bob", "b1")
			f.session(t, "bob", "b2")
			f.session(t, "bob", "b3")
			f.wantStates(t, "bob", map[string]State{"b1": StateHibernated, "b2": StateReady, "b3": StateReady})
			_, hold, err := f.Session(t.Context(), "bob", SessionOptions{ID: "b1"})
			if err != nil || hold.Woken == nil || hold.Woken.Behind {
				t.Fatalf("the next call: got %+v, %v; want the box woken as it was", hold, err)
			}
			hold.Release()
			f.wantStates(t, "bob", map[string]State{"b1": StateReady, "b2": StateHibernated, "b3": StateReady})
			f.wantStates(t, "alice", map[string]State{"a": StateReady})
		})
	}
}

// TestAdmit_NoneToHibernateAtLimitOfOwner: at a limit of its owner, a new box is refused if each box
// of the owner is busy, or idle and not written to disk. It takes the place of none, and of no idle
// box of another owner.
func TestAdmit_NoneToHibernateAtLimitOfOwner(t *testing.T) {
	for _, tt := range []struct {
		name  string
		limit func(*Config)
		text  string
	}{
		{"boxes", func(c *Config) { c.MaxPerOwner = 2 }, "Limit per user exceeded: 2 >= 2 boxes (sessions and contexts)"},
		{"memory", func(c *Config) { c.MaxMemoryPerOwnerMB = 2048 }, "Memory limit per user exceeded: 3072MB >= 2048MB"},
		{"half of the sessions", func(c *Config) { c.Halves, c.MaxSessions = true, 5 }, "Sessions limit per user exceeded: 2 >= 2, half of those of the server"},
		{"half of the memory", func(c *Config) { c.Halves, c.MaxTotalMemoryMB = true, 4096 }, "Memory limit per user exceeded: 3072MB >= 2048MB, half of that of the server"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, _ := newSnapFixture(t, func(c *Config) { c.PauseAfter = 0; tt.limit(c) })
			f.session(t, "alice", "a")
			b1, b2 := f.session(t, "bob", "b1"), f.session(t, "bob", "b2")
			end := occupy(t, b1)
			occupy(t, b2)
			f.wantLimit(t, "bob", SessionOptions{ID: "b3"}, tt.text)
			end()
			f.reg.mu.Lock()
			b1.failedLocked(snapshot.ErrFull, false)
			f.reg.mu.Unlock()
			f.wantLimit(t, "bob", SessionOptions{ID: "b3"}, tt.text+"; an idle box could not be written to disk, which is full")
			f.wantStates(t, "bob", map[string]State{"b1": StateReady, "b2": StateRunning})
			f.wantStates(t, "alice", map[string]State{"a": StateReady})
			f.clock.add(firstBackoff) // it is tried again
			f.session(t, "bob", "b3")
			f.wantStates(t, "bob", map[string]State{"b1": StateHibernated, "b2": StateRunning, "b3": StateReady})
		})
	}
}

// TestAdmit_LeavingBoxesCount: boxes that are leaving memory take their owner's places until they have
// left, so that an owner whose boxes return since they cannot be written has no more than before.
func TestAdmit_LeavingBoxesCount(t *testing.T) {
	for set, limit := range map[string]func(*Config){
		"half of the server's": func(c *Config) { c.Halves, c.MaxSessions = true, 4 },
		"boxes":                func(c *Config) { c.MaxPerOwner, c.MaxSessions = 2, 4 },
		"memory":               func(c *Config) { c.MaxMemoryPerOwnerMB, c.MaxSessions = 2048, 4 },
	} {
		t.Run(set, func(t *testing.T) {
			f, snaps := newSnapFixture(t, func(c *Config) { neverIdle(c); limit(c) })
			f.session(t, "alice", "a")
			f.session(t, "alice", "b")
			hold := make(chan struct{})
			snaps.mu.Lock()
			snaps.hold, snaps.failWrite = hold, true
			snaps.mu.Unlock()
			var starts sync.WaitGroup
			for _, id := range []string{"c", "d"} {
				starts.Go(func() {
					_, h, err := f.Session(t.Context(), "alice", SessionOptions{ID: id})
					h.Release()
					if CodeOf(err) != CodeLimit {
						t.Errorf("a box in place of one that returns: %v, want that a limit is reached", err)
					}
				})
			}
			eventually(t, "both boxes leave memory", func() bool {
				f.reg.mu.Lock()
				defer f.reg.mu.Unlock()
				return len(f.reg.freeing) == 2
			})
			close(hold)
			starts.Wait()
			f.wantStates(t, "alice", map[string]State{"a": StateReady, "b": StateReady})
			f.session(t, "bob", "x")
			f.session(t, "bob", "y")
		})
	}
}

// TestAdmit_HalvesLeaveOneBox: half of the server's is at least one box.
func TestAdmit_HalvesLeaveOneBox(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.Halves, c.MaxSessions, c.MaxTotalMemoryMB = true, 1, 1024 })
	f.session(t, "alice", "a")
}

// TestAdmit_HalfOfContexts: an owner gets half of the server's contexts.
func TestAdmit_HalfOfContexts(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.Halves, c.MaxSessions, c.MaxContexts = true, 10, 2 })
	occupy(t, f.context(t, "alice", "a"))
	_, err := f.CreateContext(t.Context(), "alice", ContextOptions{Name: "b"})
	wantCode(t, err, CodeLimit, "Contexts limit per user exceeded")
	f.context(t, "bob", "b")
}

// TestAdmit_LimitsReplaceHalves: a limit of an owner that is set counts in place of half of the
// server's.
func TestAdmit_LimitsReplaceHalves(t *testing.T) {
	for set, limit := range map[string]func(*Config){
		"boxes":  func(c *Config) { c.MaxPerOwner = 2 },
		"memory": func(c *Config) { c.MaxMemoryPerOwnerMB, c.MaxSessions, c.MaxTotalMemoryMB = 2048, 6, 2048 },
	} {
		t.Run(set, func(t *testing.T) {
			f := newFixture(t, func(c *Config) { c.Halves, c.MaxSessions = true, 2; limit(c) })
			occupy(t, f.session(t, "alice", "a"))
			occupy(t, f.session(t, "alice", "b"))
		})
	}
}

// wantStates checks the states of an owner's sessions.
func (f *fixture) wantStates(t *testing.T, owner Owner, want map[string]State) {
	t.Helper()
	got := map[string]State{}
	for _, b := range f.List(owner, KindSession) {
		got[b.ID] = b.State
	}
	if !maps.Equal(got, want) {
		t.Errorf("sessions of %s: got %v, want %v", owner, got, want)
	}
}

// TestEvict_VictimByOwner checks which owner's box makes room, where all can be
// hibernated.
func TestEvict_VictimByOwner(t *testing.T) {
	box := func(owner Owner, use uint64, flavor Flavor) *Box {
		b := &Box{spec: spec{key: key{owner: owner, kind: KindSession, id: fmt.Sprint(owner, use)}, flavor: flavor}}
		b.use.seq = use
		return b
	}
	small := func(owner Owner, uses ...uint64) (boxes []*Box) {
		for _, use := range uses {
			boxes = append(boxes, box(owner, use, FlavorSmall))
		}
		return boxes
	}
	for _, c := range []struct {
		name       string
		idle, busy []*Box
		owner      Owner
		want       string
	}{
		{"one's own, the oldest", slices.Concat(small("a", 5, 3), small("b", 1, 2)), nil, "a", "a3"},
		{"of who has most", slices.Concat(small("a", 5, 6), small("b", 1)), nil, "c", "a5"},
		{"the oldest of two who have as much", slices.Concat(small("a", 5), small("b", 1)), nil, "c", "b1"},
		{"the busy count as well", slices.Concat(small("a", 5), small("b", 1)), small("a", 7), "c", "a5"},
		{"of nobody who has less", small("b", 1, 2), small("a", 5, 6), "a", ""},
		{"of nobody who has less, but of others", slices.Concat(small("b", 1), small("c", 7, 8, 9)), small("a", 5, 6), "a", "c7"},
		{"memory counts, not boxes", slices.Concat(small("b", 1, 2, 3), []*Box{box("c", 9, FlavorLarge)}), nil, "a", "c9"},
		{"nobody", nil, small("b", 1), "a", ""},
	} {
		u := newUsage()
		for _, b := range slices.Concat(c.idle, c.busy) {
			u.add(&b.spec, 1)
		}
		u.add(&box(c.owner, 100, FlavorSmall).spec, 1)
		got := ""
		if v := victim(c.idle, c.owner, u.ownersMB, func(*Box) bool { return true }); v != nil {
			got = v.key.id
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestAdmit_ManyConcurrently(t *testing.T) {
	for _, evict := range []bool{false, true} {
		t.Run(fmt.Sprintf("evict=%t", evict), func(t *testing.T) {
			f := newFixture(t, func(c *Config) { c.MaxSessions = 10; c.Evict = evict })
			var wg sync.WaitGroup
			var mu sync.Mutex
			made, refused := 0, 0
			for range 50 {
				wg.Go(func() {
					_, hold, err := f.Session(t.Context(), "", SessionOptions{})
					mu.Lock()
					defer mu.Unlock()
					switch {
					case err == nil:
						made++
						hold.Release()
					case CodeOf(err) == CodeLimit && strings.HasPrefix(err.Error(), "Sessions limit exceeded: 10 >= 10"):
						refused++
					default:
						t.Error(err)
					}
				})
			}
			wg.Wait()
			_, live, peak := f.engine.counts()
			if made+refused != 50 || made < 10 || peak > 10 || live > 10 || !evict && made != 10 {
				t.Errorf("got %d made, %d refused, %d live, %d at once; want at most 10 at once", made, refused, live, peak)
			}
		})
	}
}

// begin begins to make a session, and returns when it is admitted.
func (f *fixture) begin(t *testing.T, owner Owner, id string) (done <-chan error) {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		_, hold, err := f.Session(context.Background(), owner, SessionOptions{ID: id})
		hold.Release()
		ended <- err
	}()
	eventually(t, id+" is admitted", func() bool { return f.ids(owner)[id] })
	return ended
}

// TestStart_TakesFirstFreePlace: a box that slowly leaves memory does not delay a start
// for which another one has made room.
func TestStart_TakesFirstFreePlace(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.MaxSessions = 2 })
	f.session(t, "", "slow")
	stuck := f.engine.holdLast()
	f.session(t, "", "quick")

	first := f.begin(t, "", "first") // evicts the slow one
	second := f.begin(t, "", "second")
	select {
	case err := <-first:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the first start waits for the slow box, though the quick one has left")
	}
	select {
	case err := <-second:
		t.Errorf("the second start did not wait for a place: %v", err)
	default:
	}
	if _, live, _ := f.engine.counts(); live > 2 {
		t.Errorf("%d guests live at once, want at most 2", live)
	}
	close(stuck)
	if err := <-second; err != nil {
		t.Error(err)
	}
}

// TestStart_OtherOwnerTakesOwnPlace: an owner whose evicted box leaves memory slowly does not
// take the place that another owner freed with a box of its own.
func TestStart_OtherOwnerTakesOwnPlace(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.MaxSessions = 2 })
	f.session(t, "alice", "slow")
	stuck := f.engine.holdLast()
	f.session(t, "bob", "quick")

	alice := f.begin(t, "alice", "new") // evicts the slow box
	bob := f.begin(t, "bob", "new")     // evicts the quick one
	select {
	case err := <-bob:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the start waits, though its owner's box has left")
	}
	select {
	case err := <-alice:
		t.Errorf("the start of the other owner did not wait for its slow box: %v", err)
	default:
	}
	close(stuck)
	if err := <-alice; err != nil {
		t.Error(err)
	}
}

// TestLimit_HidesOtherOwners: the error of a box that is not admitted is the same whether
// another owner's box could be written to disk or not.
func TestLimit_HidesOtherOwners(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.MaxSessions = 1 })
	b := f.session(t, "alice", "secret")
	refusal := func() string {
		t.Helper()
		_, _, err := f.Session(t.Context(), "bob", SessionOptions{ID: "b"})
		wantCode(t, err, CodeLimit)
		return fmt.Sprintf("%v %#v", err, err.(*Error).Context) + err.(*Error).Hint
	}
	before := refusal()
	f.reg.mu.Lock()
	b.failedLocked(snapshot.ErrFull, false)
	f.reg.mu.Unlock()
	if after := refusal(); after != before || strings.Contains(after, "secret") || strings.Contains(after, "alice") {
		t.Errorf("another owner reads %q, and %q when it could", after, before)
	}
	// Its owner learns why it is not evicted.
	_, _, err := f.Session(t.Context(), "alice", SessionOptions{ID: "a"})
	wantCode(t, err, CodeLimit, "an idle box could not be written to disk")
}
