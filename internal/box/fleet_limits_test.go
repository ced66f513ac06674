package box

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/fleet"
)

// TestFleet_OwnerLimitsCountAllServers: an owner gets no more boxes by asking several servers.
func TestFleet_OwnerLimitsCountAllServers(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"boxes":  {func(c *Config) { c.MaxPerOwner = 2 }, "Limit per user exceeded: 2 >= 2 boxes (sessions and contexts), 1 of them at other servers"},
		"memory": {func(c *Config) { c.MaxMemoryPerOwnerMB = 2500 }, "Memory limit per user exceeded: 3072MB >= 2500MB, 1024MB of it at other servers"},
	} {
		t.Run(name, func(t *testing.T) {
			all := membersWith(t, 2, func(cfg *Config) { cfg.Evict = false; c.change(cfg) })
			a, b := all[0], all[1]
			a.session(t, "alice", "s1")
			b.session(t, "alice", "s2")
			for _, m := range all {
				_, _, err := m.Session(t.Context(), "alice", SessionOptions{ID: "s3"})
				wantCode(t, err, CodeLimit, c.want)
				_, err = m.CreateContext(t.Context(), "alice", ContextOptions{Name: "c"})
				wantCode(t, err, CodeLimit, c.want)
			}
			run(t, a.session(t, "alice", "s1"), "1") // the boxes go on
			run(t, b.session(t, "alice", "s2"), "1")
			b.session(t, "bob", "s1") // another owner has a limit of its own

			if _, err := a.Stop(t.Context(), "alice", KindSession, "s1"); err != nil {
				t.Fatal(err)
			}
			b.session(t, "alice", "s3") // there is room again
		})
	}
}

// TestFleet_OwnerLimitEvictsOwnIdleBoxes: boxes at other servers make the server evict those
// that it has of the owner.
func TestFleet_OwnerLimitEvictsOwnIdleBoxes(t *testing.T) {
	all := membersWith(t, 2, func(c *Config) { c.MaxPerOwner = 2 })
	a, b := all[0], all[1]
	a.session(t, "alice", "s1")
	b.session(t, "alice", "s2")
	a.session(t, "alice", "s3")
	if got := a.ids("alice"); len(got) != 2 || !got["s2"] || !got["s3"] {
		t.Errorf("the owner has %v, want the box at the other server and the new one", got)
	}
}

// TestFleet_OwnerLimitAllowsAdoption: a box that a server adopts is not one more.
func TestFleet_OwnerLimitAllowsAdoption(t *testing.T) {
	all := membersWith(t, 2, func(c *Config) { c.MaxPerOwner, c.Evict = 1, false })
	a, b := all[0], all[1]
	run(t, a.session(t, "alice", "s"), "x = 41")
	a.self.Kill()
	wantOut(t, b.session(t, "alice", "s"), "x + 1", "42\n")
}

// TestFleet_OwnerLimitAllowsAdoptionBeyondIt: a limit that was lowered ends nothing, and keeps an
// owner from none of the boxes of a server that is gone.
func TestFleet_OwnerLimitAllowsAdoptionBeyondIt(t *testing.T) {
	limit := 3
	all := membersWith(t, 2, func(c *Config) { c.MaxPerOwner = limit; limit-- })
	a, b := all[0], all[1]
	for _, id := range []string{"s1", "s2", "s3"} {
		run(t, a.session(t, "alice", id), "x = 41")
	}
	a.self.Kill()
	for _, id := range []string{"s1", "s2", "s3"} {
		wantOut(t, b.session(t, "alice", id), "x + 1", "42\n")
	}
	_, _, err := b.Session(t.Context(), "alice", SessionOptions{ID: "s4", Flavor: FlavorLarge})
	if err != nil { // it takes the place of idle ones
		t.Error(err)
	}
	if got := b.ids("alice"); len(got) != 2 || !got["s4"] {
		t.Errorf("the owner has %v, want the new box and one of the others", got)
	}
}

// TestFleet_OwnerLimitWithBoxesOfAGoneServer: the limit ignores boxes of a server that is gone, and
// counts them when another server has adopted them.
func TestFleet_OwnerLimitWithBoxesOfAGoneServer(t *testing.T) {
	all := membersWith(t, 2, func(c *Config) { c.MaxPerOwner, c.Evict = 1, false })
	a, b := all[0], all[1]
	a.session(t, "alice", "s1")
	_, _, err := b.Session(t.Context(), "alice", SessionOptions{ID: "s2"})
	wantCode(t, err, CodeLimit, "1 of them at other servers")
	a.self.Kill()
	b.session(t, "alice", "s2")
	b.session(t, "alice", "s1") // adopted
	_, _, err = b.Session(t.Context(), "alice", SessionOptions{ID: "s3"})
	wantCode(t, err, CodeLimit, "Limit per user exceeded: 2 >= 1 boxes (sessions and contexts)")
}

// TestFleet_OwnerLimitCountsAdoptedBoxesOnce: boxes that are adopted at once do not evict a third
// one that fits beside them.
func TestFleet_OwnerLimitCountsAdoptedBoxesOnce(t *testing.T) {
	all := membersWith(t, 2, func(c *Config) { c.MaxPerOwner = 3 })
	a, b := all[0], all[1]
	a.session(t, "alice", "s1")
	a.session(t, "alice", "s2")
	b.session(t, "alice", "s3")
	a.self.Kill()
	var wg sync.WaitGroup
	for _, id := range []string{"s1", "s2"} {
		wg.Go(func() {
			if err := b.Adopt(t.Context(), "alice", id); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := b.ids("alice"); len(got) != 3 {
		t.Errorf("the owner has %v, want all three", got)
	}
}

// TestFleet_RefusedBoxLeavesItsID: the guest of a refused box that its server could not remove
// does not keep others from the id.
func TestFleet_RefusedBoxLeavesItsID(t *testing.T) {
	all := members(t, 2)
	a, b := all[0], all[1]
	s := a.session(t, "alice", "s")
	if err := a.life.noteInFleet(t.Context(), s, s.machine.ID, func(n *fleetRecord) { n.Refused = true }); err != nil {
		t.Fatal(err)
	}
	b.session(t, "alice", "s")
}

// TestFleet_OwnerLimitHoldsAtOnce: of boxes that several servers make at once, those that fit
// go on.
func TestFleet_OwnerLimitHoldsAtOnce(t *testing.T) {
	const limit = 2
	all := membersWith(t, 3, func(c *Config) { c.MaxPerOwner, c.Evict = limit, false })
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	for _, m := range all {
		for i := range 2 {
			wg.Go(func() {
				_, hold, err := m.Session(t.Context(), "alice", SessionOptions{ID: fmt.Sprintf("%s-%d", m.self.Self(), i)})
				hold.Release()
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			})
		}
	}
	wg.Wait()
	made := 0
	for _, err := range errs {
		if err == nil {
			made++
		} else {
			wantCode(t, err, CodeLimit, "Limit per user exceeded")
		}
	}
	if made != limit {
		t.Errorf("%d boxes were made, want %d", made, limit)
	}
	eventually(t, "no other box is left", func() bool { return len(all[0].ids("alice")) == limit })
}

// TestFleet_OwnerLimitHoldsAtOnceAtOneServer: boxes that one server makes at once, where another
// server has made one meanwhile, do not all go on, and do not all give up.
func TestFleet_OwnerLimitHoldsAtOnceAtOneServer(t *testing.T) {
	all := membersWith(t, 2, func(c *Config) { c.MaxPerOwner, c.Evict = 2, false })
	a, b := all[0], all[1]
	b.clock.add(-time.Hour) // its box is the oldest
	goOn := make(chan struct{})
	a.engine.set(nil, goOn)
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			_, hold, err := a.Session(t.Context(), "alice", SessionOptions{ID: fmt.Sprintf("a%d", i)})
			hold.Release()
			errs[i] = err
		})
	}
	eventually(t, "both are admitted", func() bool { return a.engine.waiting() == 2 })
	b.session(t, "alice", "b") // the others are not written down yet
	a.engine.set(nil, nil)
	close(goOn)
	wg.Wait()
	if (errs[0] == nil) == (errs[1] == nil) {
		t.Errorf("the boxes end with %v, want one of them and one refusal", errs)
	}
	for _, err := range errs {
		if err != nil {
			wantCode(t, err, CodeLimit, "Limit per user exceeded: 2 >= 2 boxes (sessions and contexts), 1 of them at other servers")
		}
	}
	if got := b.ids("alice"); len(got) != 2 || !got["b"] {
		t.Errorf("the owner has %v, want the box of the other server and one more", got)
	}
	eventually(t, "no guest of another box is left", func() bool { return b.ownedIn(t, "alice") == 2 })
}

// meetingFleet returns from writing down a server's first box when all servers have written down one.
type meetingFleet struct {
	fleet.Fleet
	noted *sync.WaitGroup
	first sync.Once
}

func (f *meetingFleet) Note(ctx context.Context, guest string, n fleet.Note) error {
	err := f.Fleet.Note(ctx, guest, n)
	f.first.Do(func() {
		f.noted.Done()
		f.noted.Wait()
	})
	return err
}

// TestFleet_SameIDAtOnce: of boxes of one id that two servers make at once, one goes on, and the
// other server then finds it. A limit of the owner changes nothing.
func TestFleet_SameIDAtOnce(t *testing.T) {
	for name, limit := range map[string]int{"no limit": 0, "at the limit": 1} {
		t.Run(name, func(t *testing.T) {
			all := membersWith(t, 2, func(c *Config) { c.MaxPerOwner, c.Evict = limit, false })
			errs := make([]error, len(all))
			var wg, noted sync.WaitGroup
			noted.Add(len(all))
			for _, m := range all {
				m.env.parts.Fleet = &meetingFleet{Fleet: m.self, noted: &noted}
			}
			for i, m := range all {
				wg.Go(func() {
					_, hold, err := m.Session(t.Context(), "alice", SessionOptions{ID: "s"})
					hold.Release()
					errs[i] = err
				})
			}
			wg.Wait()
			winner := 0
			if errs[0] != nil {
				winner = 1
			}
			if errs[winner] != nil {
				t.Fatalf("no box goes on: %v", errs)
			}
			wantCode(t, errs[1-winner], CodeHeld, "another server has it")
			if server, err := all[1-winner].Locate(t.Context(), "alice", "s"); err != nil || server != all[winner].self.Self() {
				t.Errorf("the other server finds the box at %q, %v", server, err)
			}
			run(t, all[winner].session(t, "alice", "s"), "1")
			eventually(t, "no guest of the other box is left", func() bool { return all[0].ownedIn(t, "alice") == 1 })
		})
	}
}

// TestFleet_OwnerLimitWithoutAnswer: a limit is not exceeded because the cluster does not answer.
func TestFleet_OwnerLimitWithoutAnswer(t *testing.T) {
	m := membersWith(t, 1, func(c *Config) { c.MaxPerOwner = 2 })[0]
	m.self.Fail(errors.New("node-17.internal refuses"))
	_, err := m.CreateContext(t.Context(), "alice", ContextOptions{Name: "c"})
	wantCode(t, err, CodeNotReady, "which boxes the other servers have")
	m.self.Fail(nil)
	m.context(t, "alice", "c")
}

func TestOlder_OrdersAllBoxes(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		at      time.Time
		id      string
		want    bool
		reverse bool
	}{
		{now.Add(-1), "b", true, false},
		{now.Add(1), "a", false, true},
		{now, "a", true, false},
		{now, "c", false, true},
		{now, "b", false, false},
	} {
		if got, back := older(c.at, c.id, now, "b"), older(now, "b", c.at, c.id); got != c.want || back != c.reverse {
			t.Errorf("%v %s: older %t and %t, want %t and %t", c.at, c.id, got, back, c.want, c.reverse)
		}
	}
}
