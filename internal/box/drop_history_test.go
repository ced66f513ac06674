package box

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
)

// historyOps is how many operations each user of TestDrop_Histories performs.
const historyOps = 150

// TestDrop_Histories: two owners whose boxes fill the store do random things. No box goes without a
// report, and no owner has more in memory than half, but for the machine of one rollback.
func TestDrop_Histories(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	f, snaps := newSnapFixtureWith(t, func(c *Config) {
		c.Halves, c.MaxSessions, c.MaxTotalMemoryMB = true, 8, 8192
		c.PauseAfter, c.IdleTimeout, c.CleanupInterval = time.Minute, 20*time.Minute, time.Minute
	}, func(c *snapshot.Config) { c.MaxBytes = 6*largeSnapshot + largeSnapshot/2 })
	snaps.set(&snaps.large, true)
	h := &history{seen: map[[2]state]int{}}
	f.reg.mu.Lock()
	f.reg.onTransition = func(b *Box, from, to state) {
		h.note(f.reg, b, from, to)
		mb := map[Owner]int{}
		for _, set := range []map[*Box]struct{}{live(f.reg), f.reg.freeing} {
			for o := range set {
				if !o.waits && o.machine != nil {
					mb[o.key.owner] += o.flavor.Limits().MemoryMB
				}
			}
		}
		for o, n := range mb {
			if n > 4096+1024 {
				h.mu.Lock()
				h.errs = append(h.errs, fmt.Sprintf("%v -> %v: %s has %d MB in memory", from, to, o, n))
				h.mu.Unlock()
			}
		}
	}
	f.reg.mu.Unlock()
	var users sync.WaitGroup
	for i, owner := range []Owner{"alice", "alice", "bob", "bob"} {
		u := &historyUser{f: f, snaps: snaps, owner: owner, lane: i, r: rand.New(rand.NewPCG(seed, uint64(i))), there: map[string]bool{}}
		users.Go(func() {
			for range historyOps {
				u.operate(t)
			}
		})
	}
	users.Wait()
	snaps.set(&snaps.failWrite, false)
	f.reg.mu.Lock()
	before, drops := live(f.reg), uint64(0)
	for b := range before {
		drops += b.disk.drops
	}
	f.reg.mu.Unlock()
	if err := f.Close(context.Background()); err != nil {
		t.Error(err)
	}
	t.Logf("%d drops of boxes in memory, at the end %d boxes", drops, len(before))
	for b := range before {
		r, err := f.records.find("test", b.key)
		if (err != nil || r == nil || r.Written.IsZero()) && f.reg.tombstoneOf(b.key) == nil {
			t.Errorf("box %v is gone without a tombstone: got %+v, %v", b.key, r, err)
		}
	}
	for _, e := range h.errs[:min(len(h.errs), 12)] {
		t.Error(e)
	}
}

// live returns the boxes in memory.
func live(r *registry) map[*Box]struct{} {
	set := map[*Box]struct{}{}
	for _, b := range r.boxes {
		set[b] = struct{}{}
	}
	return set
}

// historyUser uses boxes of its own, so that it knows which there are.
type historyUser struct {
	f     *fixture
	snaps *snapEngine
	owner Owner
	lane  int
	r     *rand.Rand
	there map[string]bool
	saved string // a snapshot; "": none
}

// operate does one thing.
func (u *historyUser) operate(t *testing.T) {
	id := fmt.Sprint(u.lane, "-", u.r.IntN(2))
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second)
	defer cancel()
	f := u.f
	switch n := u.r.IntN(20); {
	case n < 9:
		u.call(ctx, t, id)
	case n < 13:
		b, seq, ready := u.box(id)
		if b != nil && f.maintainer.writeIfDue(b) && ready && n < 11 {
			_ = b.pause(ctx, seq) // unless it was used meanwhile
		}
	case n == 13 || n == 14 && u.r.IntN(3) == 0:
		f.reg.mu.Lock()
		if b := f.reg.boxes[key{u.owner, KindSession, id}]; b != nil && b.evictableLocked() {
			f.life.unloadLocked(b, ReasonEvicted, "test")
		}
		f.reg.mu.Unlock()
	case n == 15 && u.saved != "":
		_ = f.DeleteSnapshot(u.owner, u.saved)
		u.saved = ""
	case n == 15:
		if s, hold, err := f.SaveSnapshot(ctx, u.owner, KindSession, id, SnapshotOptions{}); err == nil {
			u.saved = s.ID
			hold.Settle(false)
			hold.Release()
		}
	case n == 16 && u.saved != "" && u.there[id]:
		_, _ = f.Restore(ctx, u.owner, KindSession, u.saved, RestoreOptions{Into: id})
	case n == 17:
		f.clock.add(time.Duration(u.r.IntN(120)) * time.Second)
		f.maintainer.checkIdle()
	case n == 18 && u.r.IntN(8) == 0:
		u.snaps.set(&u.snaps.failWrite, u.r.IntN(4) == 0)
	case n == 18 && u.r.IntN(12) == 0:
		if _, err := f.Stop(ctx, u.owner, KindSession, id); err == nil {
			u.there[id] = false
		}
	case n == 19 && u.r.IntN(40) == 0:
		if made, _, _ := f.engine.counts(); made > 1 {
			select {
			case f.engine.last().exit <- engine.Exit{Reason: engine.ExitOOM}:
			default:
			}
		}
	}
}

// box returns the box of an id in memory, and whether it could be paused.
func (u *historyUser) box(id string) (b *Box, seq uint64, ready bool) {
	u.f.reg.mu.Lock()
	defer u.f.reg.mu.Unlock()
	if b = u.f.reg.boxes[key{u.owner, KindSession, id}]; b == nil {
		return nil, 0, false
	}
	return b, b.use.seq, b.state == stateReady
}

// call uses a session, which must be there, or say why it is not.
func (u *historyUser) call(ctx context.Context, t *testing.T, id string) {
	b, hold, err := u.f.Session(ctx, u.owner, SessionOptions{ID: id})
	if err != nil {
		if CodeOf(err) != CodeLimit {
			t.Logf("%s %s: %v", u.owner, id, err)
		}
		return
	}
	defer hold.Release()
	if hold.Created && u.there[id] && hold.Lost == nil {
		t.Errorf("%s's box %s was lost without a report", u.owner, id)
	}
	u.there[id] = true
	if u.r.IntN(2) == 0 {
		_, _ = b.List(ctx, ListRequest{Path: ".", Depth: 1})
	}
}
