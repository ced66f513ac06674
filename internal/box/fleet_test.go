package box

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/engine/process"
	"github.com/glovebox-dev/glovebox/internal/fleet"
	"github.com/glovebox-dev/glovebox/internal/fleet/fleettest"
)

// member is a Manager that shares its boxes with those of the other members.
type member struct {
	*fixture
	self *fleettest.Server
}

// members starts Managers that share boxes.
func members(t *testing.T, n int) []*member { return membersWith(t, n, nil) }

// membersWith is members with a configuration that change changes.
func membersWith(t *testing.T, n int, change func(*Config)) []*member {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "guests")
	before := runtime.NumGoroutine()
	last, err := process.Open(process.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // ends what the members have left
		left, err := last.List(context.Background())
		if err != nil {
			t.Error(err)
		}
		for _, state := range left {
			if _, err := last.Recover(context.Background(), state); err != nil {
				t.Error(err)
			}
		}
		if err := last.Close(); err != nil {
			t.Error(err)
		}
		noLeak(t, before)
	})
	cluster := new(fleettest.Cluster)
	var all []*member
	for range n {
		e, err := process.Open(process.Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
		m := &member{}
		m.fixture = newFixtureWith(t, change, func(f *fixture, p *Parts) {
			if err := f.engine.Engine.Close(); err != nil {
				t.Error(err)
			}
			f.engine.Engine = e
			m.self = cluster.Join(e)
			p.Fleet = m.self
		})
		m.engine.adopts = true
		all = append(all, m)
	}
	return all
}

// TestFleet_BoxGoesOnAtAnotherServer has a server take over a session, a context and their
// variables.
func TestFleet_BoxGoesOnAtAnotherServer(t *testing.T) {
	all := members(t, 2)
	a, b := all[0], all[1]
	run(t, a.session(t, "alice", "s"), "x = 41")
	c := a.context(t, "alice", "notes")
	run(t, c, "y = 1")

	for _, id := range []string{"s", c.ID(), "notes"} {
		if server, err := b.Locate(t.Context(), "alice", id); err != nil || server != a.self.Self() {
			t.Errorf("%s is at %q, %v; want the first server", id, server, err)
		}
		if server, err := b.Locate(t.Context(), "bob", id); err != nil || server != "" {
			t.Errorf("%s of another owner is at %q, %v", id, server, err)
		}
		if server, err := a.Locate(t.Context(), "alice", id); err != nil || server != "" {
			t.Errorf("the first server looks for its own %s at %q, %v", id, server, err)
		}
	}
	if got := b.ids("alice"); len(got) != 2 || !got["s"] || !got[c.ID()] {
		t.Errorf("the second server lists %v", got)
	}
	if kind, err := b.Find("alice", "notes"); kind != KindContext || err != nil {
		t.Errorf("the context is found as %q, %v", kind, err)
	}

	a.self.Kill()
	s, hold, err := b.Session(t.Context(), "alice", SessionOptions{ID: "s"})
	if err != nil || hold.Created || hold.Lost != nil || hold.Woken != nil {
		t.Fatalf("the session is taken over with %+v, %v", hold, err)
	}
	hold.Release()
	wantOut(t, s, "x + 1", "42\n")
	if again := b.session(t, "alice", "s"); again != s {
		t.Error("it is taken over twice")
	}
	taken, hold, err := b.Context(t.Context(), "alice", "notes")
	if err != nil {
		t.Fatal(err)
	}
	hold.Release()
	wantOut(t, taken, "y", "1\n")
	if taken.ID() != c.ID() || taken.Info().Name != "notes" || taken.Info().Source != SourceAdopted {
		t.Errorf("the context is %+v", taken.Info())
	}
}

// slowFleet answers lookups when the test lets it.
type slowFleet struct {
	fleet.Fleet
	asked  chan struct{} // has an element for each lookup that waits
	answer chan struct{}
}

func (f *slowFleet) Boxes(ctx context.Context, tags ...string) ([]fleet.Guest, error) {
	f.asked <- struct{}{}
	<-f.answer
	return f.Fleet.Boxes(ctx, tags...)
}

// TestFleet_LookupsAreBounded: calls with invented ids ask the cluster a few at a time, and
// another owner's does not wait for them.
func TestFleet_LookupsAreBounded(t *testing.T) {
	const calls = 5 * maxLookups
	var slow *slowFleet
	f := newFixtureWith(t, nil, func(f *fixture, p *Parts) {
		slow = &slowFleet{Fleet: new(fleettest.Cluster).Join(f.engine.Engine), asked: make(chan struct{}, 2*calls), answer: make(chan struct{})}
		p.Fleet = slow
	})
	var wg sync.WaitGroup
	find := func(owner Owner) {
		wg.Go(func() {
			if server, err := f.Locate(t.Context(), owner, "invented"); server != "" || err != nil {
				t.Errorf("%s: %q, %v", owner, server, err)
			}
		})
	}
	for range calls {
		find("alice")
	}
	for range maxLookups {
		<-slow.asked
	}
	find("bob")
	<-slow.asked
	eventually(t, "all calls wait", func() bool { return f.lookups.Waiting("alice") == calls-maxLookups })
	if n := len(slow.asked); n > 0 {
		t.Errorf("%d lookups more than %d at once", n, maxLookups)
	}
	close(slow.answer)
	wg.Wait()
}

// FuzzParseFleetRecord reads records that others might have written.
func FuzzParseFleetRecord(f *testing.F) {
	f.Add(`{"owner":"o","kind":"context","id":"c1","name":"notes","template":"python","flavor":"small","limits":[{"of":"box"}]}`)
	f.Add(`{"kind":"session","id":"../x","template":"python","flavor":"small"}`)
	f.Fuzz(func(t *testing.T, text string) {
		n, ok := parseFleetRecord(text)
		if !ok {
			return
		}
		info := n.info()
		if checkID("", info.ID) != nil || info.ID == "" || info.Name != "" && checkName("", "context", info.Name) != nil || len(info.Description) > maxRecordDescription+3 {
			t.Errorf("%q is read as %+v", text, info)
		}
		if n.Kind != KindSession && n.Kind != KindContext || n.Limits.Check() != nil {
			t.Errorf("%q is read as %+v", text, n)
		}
	})
}

// TestFleet_CloseLeavesBoxes: a server that ends in good order ends no box.
func TestFleet_CloseLeavesBoxes(t *testing.T) {
	all := members(t, 2)
	a, b := all[0], all[1]
	run(t, a.session(t, "", "s"), "x = 41")
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.self.Kill()
	wantOut(t, b.session(t, "", "s"), "x + 1", "42\n")
}

// TestFleet_HeldByALivingServer: no server takes a box from one that lives.
func TestFleet_HeldByALivingServer(t *testing.T) {
	all := members(t, 2)
	a, b := all[0], all[1]
	run(t, a.session(t, "", "s"), "x = 41")
	_, _, err := b.Session(t.Context(), "", SessionOptions{ID: "s"})
	wantCode(t, err, CodeHeld, "another server has it")
	wantOut(t, a.session(t, "", "s"), "x + 1", "42\n")
}

// TestFleet_OneOfTwoTakesTheBox: servers that find out at once that a third one is gone do not
// both go on with its box.
func TestFleet_OneOfTwoTakesTheBox(t *testing.T) {
	all := members(t, 3)
	run(t, all[0].session(t, "", "s"), "x = 41")
	all[0].self.Kill()
	errs := make([]error, 2)
	var both sync.WaitGroup
	for i, m := range all[1:] {
		both.Go(func() { errs[i] = m.Adopt(t.Context(), "", "s") })
	}
	both.Wait()
	winner := 1
	if errs[0] != nil {
		winner = 2
	}
	if errs[winner-1] != nil || CodeOf(errs[2-winner]) != CodeHeld {
		t.Fatalf("the servers report %v; want success and %s", errs, CodeHeld)
	}
	if server, err := all[3-winner].Locate(t.Context(), "", "s"); err != nil || server != all[winner].self.Self() {
		t.Errorf("the other server finds the box at %q, %v", server, err)
	}
	wantOut(t, all[winner].session(t, "", "s"), "x + 1", "42\n")
}

// TestFleet_InterpreterThatEndedIsReported: a call that was under way may have cost the
// variables.
func TestFleet_InterpreterThatEndedIsReported(t *testing.T) {
	all := members(t, 2)
	a, b := all[0], all[1]
	s := a.session(t, "", "s")
	run(t, s, "x = 41")
	eventually(t, "the note that code has run", func() bool {
		_, n, err := b.inFleet(t.Context(), "test", "", KindSession, "s")
		return err == nil && n.Ran
	})
	pid := strings.TrimSpace(run(t, s, "import os; os.getpid()").Stdout)
	if _, err := s.Exec(t.Context(), ExecRequest{Shell: "kill -9 " + pid}); err != nil {
		t.Fatal(err)
	}
	a.self.Kill()
	res := run(t, b.session(t, "", "s"), "1")
	if res.Lost == "" || len(res.Notes) != 1 || !strings.Contains(res.Notes[0], "variables were lost") {
		t.Errorf("the loss is reported as %q, %q", res.Lost, res.Notes)
	}
}

// TestFleet_UnknownBoxesAreNotMadeTwice: without an answer of the cluster, no server knows whether
// the box exists.
func TestFleet_UnknownBoxesAreNotMadeTwice(t *testing.T) {
	m := members(t, 1)[0]
	m.self.Fail(errors.New("node-17.internal refuses"))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, _, err := m.Session(ctx, "", SessionOptions{ID: "s"})
	wantCode(t, err, CodeNotReady, "which boxes the other servers have")
	if strings.Contains(err.Error(), "node-17") {
		t.Errorf("the client learns of the cluster: %v", err)
	}
	if created, _, _ := m.engine.counts(); created != 0 {
		t.Errorf("%d boxes were made", created)
	}
	m.self.Fail(nil)
}

// TestFleet_RefusedBoxIsNotFound: a box that exceeds a limit of its owner is none to forward calls
// to, or to adopt.
func TestFleet_RefusedBoxIsNotFound(t *testing.T) {
	all := members(t, 2)
	a, b := all[0], all[1]
	s := a.session(t, "", "s")
	if err := a.life.noteInFleet(t.Context(), s, s.machine.ID, func(n *fleetRecord) { n.Refused = true }); err != nil {
		t.Fatal(err)
	}
	if server, err := b.Locate(t.Context(), "", "s"); server != "" || err != nil {
		t.Errorf("the box is at %q, %v", server, err)
	}
	if got := b.ids(""); len(got) != 0 {
		t.Errorf("the other server lists %v", got)
	}
}

func TestParseNote_ForgedNotes(t *testing.T) {
	good := fleetRecord{Kind: KindSession, ID: "s", Interpreter: InterpreterPython, Flavor: FlavorSmall}
	for name, c := range map[string]struct {
		change func(*fleetRecord)
		ok     bool
	}{
		"own":         {func(*fleetRecord) {}, true},
		"kind":        {func(n *fleetRecord) { n.Kind = "pod" }, false},
		"no id":       {func(n *fleetRecord) { n.ID = "" }, false},
		"long id":     {func(n *fleetRecord) { n.ID = strings.Repeat("a", maxID+1) }, false},
		"odd id":      {func(n *fleetRecord) { n.ID = "a\n" }, false},
		"odd name":    {func(n *fleetRecord) { n.Name = "a\x1b[31m" }, false},
		"name":        {func(n *fleetRecord) { n.Name = "my notes" }, true},
		"long name":   {func(n *fleetRecord) { n.Name = strings.Repeat("a", maxName+1) }, false},
		"long named":  {func(n *fleetRecord) { n.Template = strings.Repeat("a", maxName+1) }, false},
		"template":    {func(n *fleetRecord) { n.Interpreter = "../x" }, false},
		"no template": {func(n *fleetRecord) { n.Interpreter = "" }, false},
		"flavor":      {func(n *fleetRecord) { n.Flavor = "huge" }, false},
		"no flavor":   {func(n *fleetRecord) { n.Flavor = "" }, false},
		"limits":      {func(n *fleetRecord) { n.Limits = snapshot.NetLimits{{Of: strings.Repeat("a", 4096)}} }, false},
	} {
		n := good
		c.change(&n)
		text, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := parseFleetRecord(string(text)); ok != c.ok {
			t.Errorf("%s: read %t, want %t", name, ok, c.ok)
		}
	}
	for _, text := range []string{"", "{", "[]", "null"} {
		if _, ok := parseFleetRecord(text); ok {
			t.Errorf("%q is read", text)
		}
	}
}
