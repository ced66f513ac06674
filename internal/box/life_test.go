package box

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
)

// The maintainer takes idle boxes out of memory, and neither used nor busy nor held ones.
// The expired box that the same pass removes proves that the pass has run.
func TestMaintainer_IdleBoxes(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.CleanupInterval = time.Millisecond }) // the maintainer itself
	live := func(n int) func() bool {
		return func() bool { _, live, _ := f.engine.counts(); return live == n }
	}
	f.session(t, "", "older")
	f.clock.add(time.Minute)
	f.session(t, "", "idle")
	used := f.session(t, "", "used")
	busy := f.session(t, "", "busy")
	result := background(t, busy, "import os, time\nwhile not os.path.exists('done'): time.sleep(0.01)")
	f.clock.add(29 * time.Minute)
	run(t, used, "x = 1")
	eventually(t, "the box that is a minute older is hibernated or ended", live(3))
	f.wantIDs(t, "", "idle", "used", "busy")
	f.clock.add(time.Minute)
	eventually(t, "the idle one is hibernated or ended", live(2))
	f.wantIDs(t, "", "used", "busy")
	if _, err := busy.WriteFile(t.Context(), WriteRequest{Path: "done"}, strings.NewReader("")); err != nil {
		t.Fatal(err)
	}
	if _, err := result(); err != nil {
		t.Errorf("busy box: %v", err)
	}
	_, hold, err := f.Session(t.Context(), "", SessionOptions{ID: "idle"})
	if err != nil || !hold.Created || hold.Lost == nil || hold.Lost.Reason != ReasonIdle {
		t.Fatalf("expired session: got %+v, %v", hold, err)
	}
	if got := hold.Lost.Explain(f.clock.Now()); got != "it expired just now because nobody used it for 30 min" {
		t.Errorf("explain: got %q", got)
	}
	f.clock.add(time.Hour)
	eventually(t, "all but the held one are hibernated or ended", live(1))
	f.wantIDs(t, "", "idle")
	hold.Release()
	eventually(t, "all are hibernated or ended", live(0))
}

func TestExpiry_BeforeMaintainerRuns(t *testing.T) {
	f := newFixture(t, nil)
	b := f.session(t, "", "x")
	run(t, b, "y = 1")
	c := f.context(t, "", "ctx")
	f.clock.add(31 * time.Minute)
	if got := f.List("", ""); len(got) != 0 {
		t.Errorf("expired boxes are listed: %+v", got)
	}
	_, _, err := f.Session(t.Context(), "", SessionOptions{ID: "x", Existing: true})
	wantCode(t, err, CodeNotFound, "it expired")
	f.wantIDs(t, "")
	s2, hold, err := f.Session(t.Context(), "", SessionOptions{ID: "x"})
	if err != nil || s2 == b || hold.Lost == nil || hold.Lost.Reason != ReasonIdle {
		t.Fatalf("got %+v, %v; want it made anew", hold, err)
	}
	wantOut(t, s2, "'y' in dir()", "False\n")
	_, _, err = f.Context(t.Context(), "", c.ID())
	wantCode(t, err, CodeNotFound, "it expired")
	f.clock.add(31 * time.Minute)
	if found, err := f.Stop(t.Context(), "", KindSession, "x"); found || err != nil {
		t.Errorf("stop an expired one: got %t, %v; want false", found, err)
	}
}

func TestStop_WhileRunning(t *testing.T) {
	f := newFixture(t, nil)
	b := f.session(t, "", "x")
	result := background(t, b, "import time; time.sleep(60)")
	queued := background(t, b, "1")
	start := time.Now()
	if found, err := f.Stop(t.Context(), "", KindSession, "x"); !found || err != nil {
		t.Errorf("stop: got %t, %v", found, err)
	}
	for _, r := range []func() (*RunResult, error){result, queued} {
		_, err := r()
		wantCode(t, err, CodeGone, "was stopped")
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestAgent_Killed(t *testing.T) {
	f := newFixture(t, nil)
	b := f.session(t, "", "x")
	result := background(t, b, "import os, signal, time\ntime.sleep(0.2)\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(60)")
	_, err := result()
	wantCode(t, err, CodeGone)
	e, _ := errors.AsType[*Error](err)
	if r := Reason(e.Context["reason"]); r != ReasonExited && r != ReasonCrashed {
		t.Errorf("reason: got %q of %v", r, err)
	}
	if b.Info().State != StateError {
		t.Errorf("state: got %q, want error", b.Info().State)
	}
	if len(f.ids("")) != 0 {
		t.Errorf("it is still listed: %v", f.ids(""))
	}
	s2, hold, err := f.Session(t.Context(), "", SessionOptions{ID: "x"})
	if err != nil || hold.Lost == nil {
		t.Fatalf("again: got %+v, %v", hold, err)
	}
	wantOut(t, s2, "1+1", "2\n")
}

func TestGuest_Ends(t *testing.T) {
	f := newFixture(t, nil)
	for _, tt := range []struct {
		exit   engine.Exit
		reason Reason
		text   string
	}{
		{engine.Exit{Reason: engine.ExitOOM, Detail: "cgroup\x1b[31m"}, ReasonOOM, "ran out of memory just now because it used more than the 1024 MB of its flavor 'small' (cgroup)"},
		{engine.Exit{Reason: engine.ExitCrashed, Detail: "sentry panic"}, ReasonCrashed, "crashed just now because its isolation ended (sentry panic)"},
		{engine.Exit{Reason: engine.ExitCrashed, Detail: "two\nlines, \u202eturned" + strings.Repeat("x", 1000)}, ReasonCrashed, `(two\nlines, turned` + strings.Repeat("x", 183) + `…)`},
		{engine.Exit{Reason: engine.ExitExited, Code: 3}, ReasonExited, "ended just now because its agent ended with code 3"},
		{engine.Exit{Reason: engine.ExitDestroyed}, ReasonCrashed, "destroyed from outside"},
	} {
		b := f.session(t, "", "x")
		result := background(t, b, "import time; time.sleep(60)")
		f.engine.last().exit <- tt.exit
		_, err := result()
		wantCode(t, err, CodeGone, tt.text)
		if e, _ := errors.AsType[*Error](err); e.Context["reason"] != string(tt.reason) || e.Context["session_id"] != "x" {
			t.Errorf("%s: got %v", tt.exit.Reason, e.Context)
		}
	}
	eventually(t, "all is freed", func() bool { _, live, _ := f.engine.counts(); return live == 0 })
}

// An agent that hangs is found out by the backstop.
func TestAgent_Hangs(t *testing.T) {
	f := newFixture(t, nil)
	f.answerGrace, f.kernelStart = 300*time.Millisecond, 0
	b := f.session(t, "", "x")
	run(t, b, "1")
	result := make(chan error, 1)
	start := time.Now()
	go func() {
		_, err := b.Run(context.Background(), RunRequest{
			Code:    "import os, signal, time\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(60)",
			Timeout: 500 * time.Millisecond,
		})
		result <- err
	}()
	wantCode(t, <-result, CodeGone, "crashed", "did not answer in time")
	if took := time.Since(start); took > 8*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestClose_Drains(t *testing.T) {
	f := newFixture(t, nil)
	b := f.session(t, "", "x")
	held, hold, err := f.Session(t.Context(), "", SessionOptions{ID: "held"})
	if err != nil {
		t.Fatal(err)
	}
	result := background(t, b, "import time; time.sleep(0.4); 'whole'")
	closed := make(chan error, 2)
	for range 2 {
		go func() { closed <- f.Close(context.Background()) }()
	}
	eventually(t, "it drains", func() bool {
		f.reg.mu.Lock()
		defer f.reg.mu.Unlock()
		return f.reg.phase == phaseDraining
	})
	_, _, err = f.Session(t.Context(), "", SessionOptions{ID: "x"})
	wantCode(t, err, CodeNotReady, "shutting down")
	_, err = f.CreateContext(t.Context(), "", ContextOptions{Name: "x"})
	wantCode(t, err, CodeNotReady)
	_, _, err = f.DefaultContext(t.Context(), "", nil)
	wantCode(t, err, CodeNotReady)
	_, err = b.Run(t.Context(), RunRequest{Code: "1"})
	wantCode(t, err, CodeNotReady)
	wantOut(t, held, "'admitted before'", "'admitted before'\n")
	hold.Release()
	if res, err := result(); err != nil || res.Stdout != "'whole'\n" {
		t.Errorf("running call: got %+v, %v", res, err)
	}
	for range 2 {
		if err := <-closed; err != nil {
			t.Errorf("close: %v", err)
		}
	}
	_, err = b.Run(t.Context(), RunRequest{Code: "1"})
	wantCode(t, err, CodeGone, "closed with the server")
	if found, err := f.Stop(t.Context(), "", KindSession, "x"); found || err != nil {
		t.Errorf("stop after close: got %t, %v", found, err)
	}
}

func TestClose_CutsOffCalls(t *testing.T) {
	f := newFixture(t, nil)
	b := f.session(t, "", "x")
	result := background(t, b, "import time; time.sleep(60)")
	f.engine.set(nil, make(chan struct{}))
	starting := make(chan error, 1)
	go func() {
		_, _, err := f.Session(context.Background(), "", SessionOptions{ID: "y"})
		starting <- err
	}()
	eventually(t, "it starts", func() bool { return len(f.ids("")) == 2 })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := f.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "2 calls were cut off") {
		t.Errorf("close: got %v", err)
	}
	_, err := result()
	wantCode(t, err, CodeGone, "closed with the server")
	wantCode(t, <-starting, CodeNotReady)
}

func TestManager_NotStarted(t *testing.T) {
	m := New(DefaultConfig(), Parts{Machines: &machine.Maker{Interpreters: interpreters()}})
	_, _, err := m.Session(t.Context(), "", SessionOptions{})
	wantCode(t, err, CodeNotReady, "not started")
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := m.Start(t.Context()); err == nil {
		t.Error("start after close: got no error")
	}
}

func TestConfig_Validate(t *testing.T) {
	for _, tt := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) {}, ""},
		{func(c *Config) { c.MaxSessions = -3 }, "max sessions must be a positive integer, got -3"},
		{func(c *Config) { c.MaxContexts = 0 }, "max contexts must be a positive integer, got 0"},
		{func(c *Config) { c.IdleTimeout = 0 }, "session timeout must be positive, got 0s"},
		{func(c *Config) { c.CleanupInterval = time.Hour }, "cleanup interval (1h0m0s) must be less than session timeout (30m0s)"},
		{func(c *Config) { c.ExecTimeout = time.Hour }, "execution timeout (1h0m0s) must not exceed max timeout (5m0s)"},
		{func(c *Config) { c.ContextTimeout = time.Hour }, "context timeout (1h0m0s) must not exceed max timeout (5m0s)"},
		{func(c *Config) { c.DefaultFlavor = "xl" }, `default flavor must be 'small', 'medium' or 'large', got "xl"`},
		{func(c *Config) { c.MaxTotalMemoryMB = 512 }, "max total memory (512MB) must be at least the memory of the default flavor small (1024MB)"},
		{func(c *Config) { c.MaxPerOwner = -1 }, "max per owner must not be negative, got -1"},
		{func(c *Config) { c.MaxMemoryPerOwnerMB = 1000 }, "max memory per owner (1000MB) must be at least the memory of the default flavor small (1024MB)"},
	} {
		c := DefaultConfig()
		tt.change(&c)
		got := ""
		if err := New(c, Parts{}).cfg().Validate(); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

func TestTombstones_AreBounded(t *testing.T) {
	c := &clock{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	g := newTombstones(c.Now)
	for i := range 3 * maxTombstones {
		g.add(&Tombstone{Kind: KindSession, ID: string(rune(i)), Reason: ReasonIdle, At: c.Now()})
	}
	if n := g.lru.Len(); n != maxTombstones {
		t.Errorf("got %d tombstones, want %d", n, maxTombstones)
	}
	if g.get(key{"", KindSession, string(rune(3*maxTombstones - 1))}) == nil {
		t.Error("the newest tombstone is gone")
	}
	c.add(tombstoneAge + time.Second)
	if g.sweep(); g.lru.Len() != 0 {
		t.Errorf("got %d tombstones after their time", g.lru.Len())
	}
}
