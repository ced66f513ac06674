package box

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/hostdisk"
)

// smallDiskEngine is an engine whose disk has room for a number of guests.
type smallDiskEngine struct {
	*meter
	room int
}

func (e smallDiskEngine) Unwrap() engine.Engine { return e.meter }

func (e smallDiskEngine) Create(ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
	if _, live, _ := e.counts(); live >= e.room {
		return nil, fmt.Errorf("create: %w (%w)", hostdisk.ErrFull, engine.ErrExhausted)
	}
	return e.meter.Create(ctx, id, spec)
}

func withSmallDisk(room int) func(*fixture, *Parts) {
	return func(f *fixture, p *Parts) { p.Machines.Engine = smallDiskEngine{f.engine, room} }
}

// TestEvict_ForDisk: without room on the disk, a new box takes the place of an idle one,
// and is refused where all are busy.
func TestEvict_ForDisk(t *testing.T) {
	f := newFixtureWith(t, nil, withSmallDisk(2))
	f.session(t, "", "a")
	f.session(t, "", "b")
	f.session(t, "", "c")
	f.wantIDs(t, "", "b", "c")
	if st := f.Stats(); st.Ended[ReasonEvicted] != 1 {
		t.Errorf("ended: %v, want one evicted box", st.Ended)
	}
	// Another owner's boxes are not lost for it: here they cannot be hibernated.
	_, _, err := f.Session(t.Context(), "other", SessionOptions{ID: "d"})
	wantCode(t, err, CodeLimit, "Disk limit exceeded", "'small'")
	f.wantIDs(t, "", "b", "c")

	var ends []func() (*RunResult, error)
	for _, id := range []string{"b", "c"} {
		ends = append(ends, background(t, f.session(t, "", id), "import time; time.sleep(1)"))
	}
	_, _, err = f.Session(t.Context(), "", SessionOptions{ID: "e"})
	wantCode(t, err, CodeLimit, "Disk limit exceeded")
	for _, end := range ends {
		if res, err := end(); err != nil || !res.Success {
			t.Errorf("a busy box: %+v, %v", res, err)
		}
	}
}

// TestDisk_EngineEndsBox: the tombstone of a box that the engine ended for lack of disk space
// gives the reason.
func TestDisk_EngineEndsBox(t *testing.T) {
	f := newFixture(t, nil)
	f.session(t, "", "a")
	f.engine.last().exit <- engine.Exit{Reason: engine.ExitDisk, Detail: "it wrote 7 MiB"}
	eventually(t, "the box ended", func() bool { return f.Stats().Ended[ReasonDisk] == 1 })
	_, hold, err := f.Session(t.Context(), "", SessionOptions{ID: "a"})
	if err != nil || hold.Lost == nil || hold.Lost.Reason != ReasonDisk {
		t.Fatalf("the next call: %+v, %v", hold, err)
	}
	hold.Release()
	if want := "it wrote more than the server's disk has room for (it wrote 7 MiB)"; hold.Lost.Detail != want {
		t.Errorf("got %q, want %q", hold.Lost.Detail, want)
	}
}

// diskEngine is an engine whose guests each hold some disk space, and which has no room
// unless enough of it is freed.
type diskEngine struct {
	*meter
	size, guest int64 // bytes
}

var _ hostdisk.Engine = diskEngine{} // found by engine.As, which does not miss it otherwise

func (e diskEngine) Unwrap() engine.Engine { return e.meter }

func (e diskEngine) Disk() (hostdisk.Use, error) { return hostdisk.Use{}, nil }
func (e diskEngine) Unreserve()                  {}
func (e diskEngine) Borrowed() map[string]int64  { return nil }

func (e diskEngine) Reclaimable() map[string]int64 {
	held := map[string]int64{}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, g := range e.guests {
		held[g.ID()] = e.guest
	}
	return held
}

// Create takes as much of the disk for a large guest as for three others.
func (e diskEngine) Create(ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
	need := e.guest
	if spec.Limits.MemoryMB >= FlavorLarge.Limits().MemoryMB {
		need *= 3
	}
	_, live, _ := e.counts()
	if missing := int64(live)*e.guest + need - e.size; missing > 0 {
		return nil, fmt.Errorf("create: %w: %w", &hostdisk.FullError{Need: need, Missing: missing}, engine.ErrExhausted)
	}
	return e.meter.Create(ctx, id, spec)
}

// TestEvictForDisk_OnlyIfThatSuffices: no box is evicted for a box that does not fit anyway,
// and otherwise no more than needed.
func TestEvictForDisk_OnlyIfThatSuffices(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct {
		name string
		size int64
		left []string
		code Code
	}{
		{"not enough", 29 * mb, []string{"a", "b"}, CodeLimit},
		{"all", 30 * mb, []string{"new"}, ""},
		{"one of two", 45 * mb, []string{"b", "new"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixtureWith(t, nil, func(f *fixture, p *Parts) { p.Machines.Engine = diskEngine{f.engine, c.size, 10 * mb} })
			f.session(t, "", "a")
			f.session(t, "", "b")
			_, hold, err := f.Session(t.Context(), "", SessionOptions{ID: "new", Flavor: FlavorLarge})
			hold.Release()
			wantCode(t, err, c.code)
			f.wantIDs(t, "", c.left...)
		})
	}
}

// TestEvictForDisk_StartingBoxesCount: an owner who starts many boxes at once gets no room
// from another owner who has fewer, though the starting boxes hold no disk space yet.
func TestEvictForDisk_StartingBoxesCount(t *testing.T) {
	const mb = 1 << 20
	f, _ := newSnapFixture(t, neverIdle)
	held := map[string]int64{}
	for _, id := range []string{"b1", "b2"} {
		held[f.session(t, "bob", id).guestID] = 10 * mb
	}
	gate := make(chan struct{})
	f.engine.set(nil, gate)
	var starts sync.WaitGroup
	start := func(id string) {
		starts.Go(func() {
			_, hold, err := f.Session(context.Background(), "alice", SessionOptions{ID: id})
			hold.Release()
			if err != nil {
				t.Error(err)
			}
		})
		eventually(t, "the start is admitted", func() bool { return f.ids("alice")[id] })
	}
	plan := func(id string) []*Box {
		f.reg.mu.Lock()
		defer f.reg.mu.Unlock()
		b := f.reg.boxes[key{owner: "alice", kind: KindSession, id: id}]
		return f.reg.planDiskLocked(b, &hostdisk.FullError{Need: 10 * mb, Missing: 10 * mb}, held)
	}
	start("a1")
	if got := plan("a1"); len(got) != 1 || got[0].key.owner != "bob" {
		t.Errorf("for the first box of an owner: got %d boxes to evict, want one of the owner who has two", len(got))
	}
	for i := range 7 {
		start(fmt.Sprint("a", i+2))
	}
	if got := plan("a8"); len(got) != 0 {
		t.Errorf("for the last of eight starts of an owner, %d boxes of an owner who has two are evicted", len(got))
	}
	if got := plan("a1"); len(got) != 1 {
		t.Errorf("for the first of eight starts of an owner, %d boxes are evicted, want one: all eight would be refused", len(got))
	}
	close(gate)
	starts.Wait()
}
