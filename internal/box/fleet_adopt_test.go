package box

import (
	"context"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/fleet"
)

// heldFleet holds an adoption when the guest is this server's, until the test lets it go on.
type heldFleet struct {
	fleet.Fleet
	taken chan struct{} // has an element for each adoption that waits
	goOn  chan struct{}
}

func (f *heldFleet) Adopt(ctx context.Context, g fleet.Guest) (engine.Guest, error) {
	guest, err := f.Fleet.Adopt(ctx, g)
	f.taken <- struct{}{}
	<-f.goOn
	return guest, err
}

// holdAdoptions holds the adoptions of a server from now on.
func (m *member) holdAdoptions() *heldFleet {
	held := &heldFleet{Fleet: m.self, taken: make(chan struct{}, 8), goOn: make(chan struct{})}
	m.env.parts.Fleet = held
	return held
}

// ownedIn returns how many boxes of an owner the servers have written down and live.
func (m *member) ownedIn(t *testing.T, owner Owner) int {
	t.Helper()
	found, err := m.self.Owned(t.Context(), ownerTag(owner))
	if err != nil {
		t.Fatal(err)
	}
	return len(found)
}

// TestFleet_AdoptionGoesOnWithoutItsCaller: a box whose server changes is one of the new server
// also if the caller gives up, so that it counts and can be evicted.
func TestFleet_AdoptionGoesOnWithoutItsCaller(t *testing.T) {
	all := membersWith(t, 2, func(c *Config) { c.MaxPerOwner, c.Evict = 1, false })
	a, b := all[0], all[1]
	run(t, a.session(t, "alice", "s"), "x = 41")
	a.self.Kill()
	held := b.holdAdoptions()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- b.Adopt(ctx, "alice", "s") }()
	<-held.taken
	cancel()
	wantCode(t, <-ended, CodeCancelled)
	close(held.goOn)

	_, _, err := b.Session(t.Context(), "alice", SessionOptions{ID: "s2"})
	wantCode(t, err, CodeLimit)
	eventually(t, "the box is ready", func() bool {
		list := b.List("alice", "")
		return len(list) == 1 && list[0].State == StateReady
	})
	wantOut(t, b.session(t, "alice", "s"), "x + 1", "42\n")
}

// TestFleet_StopDuringAdoptionEndsTheBox: a box that is stopped while a server adopts it does not
// come back.
func TestFleet_StopDuringAdoptionEndsTheBox(t *testing.T) {
	all := members(t, 2)
	a, b := all[0], all[1]
	run(t, a.session(t, "alice", "s"), "x = 41")
	a.self.Kill()
	held := b.holdAdoptions()
	adopted := make(chan error)
	go func() { adopted <- b.Adopt(t.Context(), "alice", "s") }()
	<-held.taken
	stopped := make(chan bool)
	go func() {
		was, err := b.Stop(t.Context(), "alice", KindSession, "s")
		if err != nil {
			t.Error(err)
		}
		stopped <- was
	}()
	time.Sleep(50 * time.Millisecond) // the stop has begun
	close(held.goOn)
	<-adopted
	if !<-stopped {
		t.Error("Stop found no box")
	}
	if n := b.ownedIn(t, "alice"); n != 0 {
		t.Errorf("%d boxes are left", n)
	}
}

// closingNetworks has the server close before the agent of a box gets the settings of its network.
type closingNetworks struct {
	*ledger
	m      *member
	closed chan struct{}
}

func (n *closingNetworks) Open(owner Owner, box, template string, limits snapshot.NetLimits) Network {
	go func() {
		defer close(n.closed)
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // the caller waits for the adoption
		_ = n.m.Close(ctx)
	}()
	<-n.m.env.base.Done()
	return &elsewhereNetwork{n.ledger.Open(owner, box, template, limits)}
}

// elsewhereNetwork is a Network whose settings the agent needs.
type elsewhereNetwork struct{ Network }

func (*elsewhereNetwork) Where() string { return "a file" }

// TestFleet_CloseDuringAdoptionLeavesTheBox: a server that ends before the network of a box is ready
// leaves the box to the others.
func TestFleet_CloseDuringAdoptionLeavesTheBox(t *testing.T) {
	all := members(t, 3)
	run(t, all[0].session(t, "alice", "s"), "x = 41")
	all[0].self.Kill()
	n := &closingNetworks{ledger: withLedger(all[1].fixture), m: all[1], closed: make(chan struct{})}
	all[1].env.parts.Networks = n
	if err := all[1].Adopt(t.Context(), "alice", "s"); err == nil {
		t.Error("the box was adopted by a server that ends")
	}
	<-n.closed
	all[1].self.Kill()
	wantOut(t, all[2].session(t, "alice", "s"), "x + 1", "42\n")
}
