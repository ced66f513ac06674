package box

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/hostdisk"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
)

const (
	mib = 1 << 20
	// smallPart is what lendingEngine guarantees to a small box: 102.4 MiB.
	smallPart = 2048 * mib / 20
)

// lendingEngine is an engine whose disk guarantees a twentieth of its limit to each guest and lends
// the rest.
type lendingEngine struct {
	*meter
	size int64

	loans  sync.Mutex
	guests map[string]*loan // guarded by loans; those that live, by id
	base   int64            // guarded by loans; files that each further guest starts with
}

type loan struct{ part, base, written int64 } // base is part of written

func (g *loan) held() int64 { return max(g.part+g.base, g.written) }

var _ hostdisk.Engine = (*lendingEngine)(nil) // found by engine.As, which does not miss it otherwise

func (e *lendingEngine) Unwrap() engine.Engine { return e.meter }
func (e *lendingEngine) Unreserve()            {}

func (e *lendingEngine) roomLocked() int64 {
	room := e.size
	for _, g := range e.guests {
		room -= g.held()
	}
	return room
}

func (e *lendingEngine) Disk() (hostdisk.Use, error) {
	e.loans.Lock()
	defer e.loans.Unlock()
	return hostdisk.Use{Room: e.roomLocked(), Guaranteed: 0.05}, nil
}

func (e *lendingEngine) Reclaimable() map[string]int64 {
	e.loans.Lock()
	defer e.loans.Unlock()
	held := map[string]int64{}
	for id, g := range e.guests {
		held[id] = g.held()
	}
	return held
}

func (e *lendingEngine) Borrowed() map[string]int64 {
	e.loans.Lock()
	defer e.loans.Unlock()
	over := map[string]int64{}
	for id, g := range e.guests {
		if g.written > g.part {
			over[id] = g.written - g.part
		}
	}
	return over
}

func (e *lendingEngine) Create(ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
	e.loans.Lock()
	g := &loan{part: int64(spec.Limits.DiskMB) * mib / 20, base: e.base, written: e.base}
	if missing := g.held() - e.roomLocked(); missing > 0 {
		e.loans.Unlock()
		return nil, fmt.Errorf("create: %w: %w", &hostdisk.FullError{Need: g.held(), Missing: missing}, engine.ErrExhausted)
	}
	e.guests[id] = g
	e.loans.Unlock()
	made, err := e.meter.Create(ctx, id, spec)
	if err != nil {
		e.repay(id)
		return nil, err
	}
	return lentGuest{made, e}, nil
}

func (e *lendingEngine) repay(id string) {
	e.loans.Lock()
	defer e.loans.Unlock()
	delete(e.guests, id)
}

type lentGuest struct {
	engine.Guest
	e *lendingEngine
}

func (g lentGuest) Destroy(ctx context.Context) error {
	err := g.Guest.Destroy(ctx)
	g.e.repay(g.ID())
	return err
}

func (e *lendingEngine) write(b *Box, bytes int64) {
	e.loans.Lock()
	defer e.loans.Unlock()
	e.guests[b.guestID].written = bytes
}

// lendingFixture is a fixture with a disk of a size, which can hibernate boxes.
type lendingFixture struct {
	*fixture
	disk  *lendingEngine
	snaps *snapEngine
}

func newLendingFixture(t *testing.T, size int64) *lendingFixture {
	t.Helper()
	l := &lendingFixture{}
	l.fixture = newFixtureWith(t, neverIdle, func(f *fixture, p *Parts) {
		l.disk = &lendingEngine{meter: f.engine, size: size, guests: map[string]*loan{}}
		p.Machines.Engine = l.disk
		l.snaps = addSnapshots(t, f, p, func(*snapshot.Config) {})
	})
	return l
}

// busy returns a box in which a call runs, and which has written some bytes.
func (l *lendingFixture) busy(t *testing.T, owner Owner, id string, written int64) *Box {
	t.Helper()
	b := l.session(t, owner, id)
	occupy(t, b)
	l.disk.write(b, written)
	return b
}

// try starts a box and returns the error.
func (l *lendingFixture) try(t *testing.T, owner Owner, want SessionOptions) error {
	t.Helper()
	_, hold, err := l.Session(t.Context(), owner, want)
	hold.Release()
	return err
}

// wantNoneEnded starts a box for which there is no room, and which ends no other.
func (l *lendingFixture) wantNoneEnded(t *testing.T, owner Owner, want SessionOptions, boxes ...*Box) {
	t.Helper()
	wantCode(t, l.try(t, owner, want), CodeLimit, "Disk limit exceeded")
	for _, b := range boxes {
		if s := l.stateOf(b); !s.live() {
			t.Errorf("the box %q of %s is %v", b.key.id, b.key.owner, s)
		}
	}
}

// TestBorrowed_YieldsToGuarantee: a start ends the busy box of another owner that has written beyond
// its guarantee, if the disk has no room for the guarantee of the new or woken box. The next call on
// the ended box returns the reason.
func TestBorrowed_YieldsToGuarantee(t *testing.T) {
	for _, hibernated := range []bool{false, true} {
		t.Run(fmt.Sprintf("hibernated=%t", hibernated), func(t *testing.T) {
			f := newLendingFixture(t, 300*mib)
			if hibernated {
				b := f.session(t, "bob", "b")
				run(t, b, "x = 1")
				within(t, "bob's box is hibernated", func(ctx context.Context) error { return f.unload(ctx, b) })
			}
			a := f.session(t, "alice", "a")
			result := background(t, a, "import time; time.sleep(60)")
			f.disk.write(a, 250*mib)
			got, hold, err := f.Session(t.Context(), "bob", SessionOptions{ID: "b"})
			if err != nil {
				t.Fatalf("bob's box: %v", err)
			}
			hold.Release()
			if woken := got.source == SourceWoken; woken != hibernated {
				t.Errorf("bob's box comes from %q", got.source)
			}
			_, err = result()
			wantCode(t, err, CodeGone, "it wrote more than the server's disk has room for")
			if st := f.Stats(); st.Ended[ReasonDisk] != 1 || st.Ended[ReasonEvicted] != 0 {
				t.Errorf("ended: %v, want one box for lack of disk space", st.Ended)
			}
			_, hold, err = f.Session(t.Context(), "alice", SessionOptions{ID: "a"})
			if err != nil || hold.Lost == nil || hold.Lost.Reason != ReasonDisk {
				t.Fatalf("alice's next call: %+v, %v", hold, err)
			}
			hold.Release()
			const want = "it wrote more than the server's disk has room for (it had written 250 MiB, of which 102 MiB were guaranteed, " +
				"when the disk had no room for the guaranteed space of another box)"
			if hold.Lost.Detail != want {
				t.Errorf("the next call returns the reason %q, want %q", hold.Lost.Detail, want)
			}
			f.wantIDs(t, "bob", "b")
		})
	}
}

// TestBorrowed_EndsNone: no box ends for one of the same owner, of an owner who has borrowed as much
// or will have, or if that would not make room; nor does one within its guarantee.
func TestBorrowed_EndsNone(t *testing.T) {
	t.Run("same owner", func(t *testing.T) {
		f := newLendingFixture(t, 300*mib)
		f.wantNoneEnded(t, "alice", SessionOptions{ID: "new"}, f.busy(t, "alice", "a", 250*mib))
	})
	t.Run("no tokens", func(t *testing.T) {
		f := newLendingFixture(t, 300*mib)
		f.wantNoneEnded(t, "", SessionOptions{ID: "new"}, f.busy(t, "", "a", 250*mib))
	})
	t.Run("borrowed as much", func(t *testing.T) {
		f := newLendingFixture(t, 550*mib)
		a, b := f.busy(t, "alice", "a", 250*mib), f.busy(t, "bob", "b", 250*mib)
		f.wantNoneEnded(t, "bob", SessionOptions{ID: "new"}, a, b)
		f.disk.write(a, 251*mib)
		if err := f.try(t, "bob", SessionOptions{ID: "new"}); err != nil {
			t.Errorf("when alice has borrowed more: %v", err)
		}
	})
	t.Run("files as large", func(t *testing.T) {
		f := newLendingFixture(t, 400*mib)
		a := f.busy(t, "alice", "a", 250*mib)
		f.disk.loans.Lock()
		f.disk.base = 250 * mib
		f.disk.loans.Unlock()
		f.wantNoneEnded(t, "bob", SessionOptions{ID: "new"}, a)
		f.disk.write(a, 251*mib)
		if err := f.try(t, "bob", SessionOptions{ID: "new"}); err != nil {
			t.Errorf("when alice has borrowed more: %v", err)
		}
	})
	t.Run("not enough", func(t *testing.T) {
		f := newLendingFixture(t, 420*mib)
		a, c := f.busy(t, "alice", "a", 250*mib), f.busy(t, "carol", "c", 0)
		f.wantNoneEnded(t, "bob", SessionOptions{ID: "new", Flavor: FlavorLarge}, a, c)
	})
	t.Run("more than two", func(t *testing.T) {
		f := newLendingFixture(t, 420*mib)
		var boxes []*Box
		for i := range 3 {
			boxes = append(boxes, f.busy(t, "alice", fmt.Sprint("a", i), 110*mib))
		}
		f.wantNoneEnded(t, "bob", SessionOptions{ID: "large", Flavor: FlavorLarge}, boxes...) // 409 MiB: needs the end of all
		if err := f.try(t, "bob", SessionOptions{ID: "medium", Flavor: FlavorMedium}); err != nil {
			t.Errorf("a box that needs the end of two: %v", err)
		}
		if left := len(f.ids("alice")); left != 1 {
			t.Errorf("alice has %d boxes, want one", left)
		}
	})
	t.Run("within the guarantee", func(t *testing.T) {
		f := newLendingFixture(t, 250*mib)
		f.wantNoneEnded(t, "bob", SessionOptions{ID: "new"}, f.busy(t, "alice", "a1", smallPart), f.busy(t, "alice", "a2", 0))
	})
}

// TestBorrowed_OwnerWithMost: the box that ends has borrowed most, of the owner whose boxes have
// borrowed most together.
func TestBorrowed_OwnerWithMost(t *testing.T) {
	f := newLendingFixture(t, 850*mib)
	for _, b := range []struct {
		owner   Owner
		id      string
		written int64
	}{{"alice", "a1", 200}, {"alice", "a2", 220}, {"carol", "c", 280}, {"dave", "d", 103}} {
		f.busy(t, b.owner, b.id, b.written*mib)
	}
	if err := f.try(t, "bob", SessionOptions{ID: "new"}); err != nil {
		t.Fatal(err)
	}
	f.wantIDs(t, "alice", "a1")
	f.wantIDs(t, "carol", "c")
	f.wantIDs(t, "dave", "d")
}

// TestBorrowed_IdleBoxIsHibernated: a box that has borrowed and is idle, but is not evicted since its
// owner uses less, goes to disk; if it cannot be written, it ends.
func TestBorrowed_IdleBoxIsHibernated(t *testing.T) {
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprintf("fails=%t", fails), func(t *testing.T) {
			f := newLendingFixture(t, 600*mib)
			for i := range 3 {
				f.busy(t, "bob", fmt.Sprint("b", i), 0)
			}
			a := f.session(t, "alice", "a")
			run(t, a, "x = 1")
			f.disk.write(a, 250*mib)
			f.snaps.set(&f.snaps.failWrite, fails)
			if err := f.try(t, "bob", SessionOptions{ID: "new"}); err != nil {
				t.Fatal(err)
			}
			want, ended := stateHibernated, 0
			if fails {
				want, ended = stateGone, 1
			}
			if got := f.stateOf(a); got != want {
				t.Errorf("alice's box is %v, want %v", got, want)
			}
			if got := f.Stats().Ended[ReasonDisk]; int(got) != ended {
				t.Errorf("%d boxes ended for lack of disk space, want %d", got, ended)
			}
		})
	}
}

// TestBorrowed_WaitsForWhatIsFreed: while a box is leaving memory whose space suffices, a further
// start ends no other one; nor does it if the space has become free since it was refused.
func TestBorrowed_WaitsForWhatIsFreed(t *testing.T) {
	f := newLendingFixture(t, 500*mib)
	second := f.busy(t, "alice", "second", 200*mib)
	f.busy(t, "alice", "first", 250*mib)
	stuck := f.engine.holdLast()
	release := sync.OnceFunc(func() { close(stuck) })
	defer release()
	cause := fmt.Errorf("create: %w", &hostdisk.FullError{Need: smallPart, Missing: smallPart - 50*mib})
	take := func() ([]<-chan struct{}, diskClaim) {
		b := f.life.newBox(spec{key: key{owner: "bob", kind: KindSession, id: "new"}, flavor: FlavorSmall})
		defer b.cancelStart(nil)
		var c diskClaim
		leaving, again := f.life.takeBorrowers(t.Context(), b, cause, &c)
		if !again {
			t.Error("nothing is left to wait for")
		}
		return leaving, c
	}
	ended, c := take()
	if len(ended) != 1 || c != (diskClaim{ends: 1}) {
		t.Fatalf("for the first start, %d boxes leave: %+v", len(ended), c)
	}
	leaving, c := take()
	if !slices.Equal(leaving, ended) || c != (diskClaim{waits: 1}) {
		t.Errorf("for the second start, %d boxes leave: %+v, want a wait for the same one", len(leaving), c)
	}
	release()
	within(t, "the first box leaves memory", func(ctx context.Context) error {
		if !allLeft(ctx, leaving) {
			return context.Cause(ctx)
		}
		return nil
	})
	if leaving, c := take(); len(leaving) != 0 || c != (diskClaim{waits: 1}) {
		t.Errorf("when there is room, %d boxes leave: %+v", len(leaving), c)
	}
	if s := f.stateOf(second); s != stateRunning {
		t.Errorf("the box that need not end is %v", s)
	}
}
