package box

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestContexts(t *testing.T) {
	f := newFixture(t, nil)
	c, err := f.CreateContext(t.Context(), "", ContextOptions{Name: "my analysis", Description: "numbers"})
	if err != nil {
		t.Fatal(err)
	}
	if ok, _ := regexp.MatchString(`^ctx-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, c.ID()); !ok {
		t.Errorf("id: got %q, want ctx-<uuid4>", c.ID())
	}
	if i := c.Info(); i.Name != "my analysis" || i.Description != "numbers" || i.Language != Python || i.State != StateReady {
		t.Errorf("info: got %+v", i)
	}
	run(t, c, "x = 5")
	for _, id := range []string{c.ID(), "my analysis"} {
		got, hold, err := f.Context(t.Context(), "", id)
		if err != nil || got != c || hold.Created {
			t.Fatalf("context %q: got %v, %+v, %v", id, got, hold, err)
		}
		hold.Release()
		wantOut(t, got, "x", "5\n")
	}

	f.clock.add(time.Second)
	twin := f.context(t, "", "my analysis")
	_, _, err = f.Context(t.Context(), "", "my analysis")
	wantCode(t, err, CodeInvalid, "Ambiguous")
	if got := f.List("", KindContext); len(got) != 2 || got[0].ID != twin.ID() || got[1].ID != c.ID() {
		t.Errorf("list: got %+v, want the newest first", got)
	}
	if found, err := f.Stop(t.Context(), "", KindContext, twin.ID()); !found || err != nil {
		t.Errorf("stop: got %t, %v", found, err)
	}
	if found, err := f.Stop(t.Context(), "", KindContext, "my analysis"); !found || err != nil {
		t.Errorf("stop by name: got %t, %v", found, err)
	}
	f.clock.add(time.Hour)
	for _, id := range []string{c.ID(), "my analysis"} {
		_, _, err = f.Context(t.Context(), "", id)
		wantCode(t, err, CodeNotFound, "Context not found: "+id+"; it was stopped 1 hour ago", "create a new one")
	}
	f.clock.add(24 * time.Hour)
	_, _, err = f.Context(t.Context(), "", c.ID())
	if err.Error() != "Context not found: "+c.ID() {
		t.Errorf("after a day: got %q", err)
	}
	f.maintainer.sweep()
	if n := f.reg.tombstones.lru.Len(); n != 0 {
		t.Errorf("tombstones after a day: got %d", n)
	}
}

func TestContext_InvalidOptions(t *testing.T) {
	f := newFixture(t, nil)
	for _, name := range []string{"", " ", " x", "x ", "a/b", "a\nb", "ü", "x;y", strings.Repeat("x", 65)} {
		_, err := f.CreateContext(t.Context(), "", ContextOptions{Name: name})
		wantCode(t, err, CodeInvalid, "Invalid context name")
		if e, _ := errors.AsType[*Error](err); e.Context["field"] != "name" {
			t.Errorf("field: got %q, want name", e.Context["field"])
		}
	}
	_, err := f.CreateContext(t.Context(), "", ContextOptions{Name: "x", Language: "ruby"})
	wantCode(t, err, CodeUnsupportedLanguage, "Unsupported language: ruby. Must be 'python' or 'javascript'")
	_, err = f.CreateContext(t.Context(), "", ContextOptions{Name: "x", Description: strings.Repeat("d", maxDescription+1)})
	wantCode(t, err, CodeInvalid, "description")
	_, err = f.CreateContext(t.Context(), "", ContextOptions{Name: "x", Flavor: "tiny"})
	wantCode(t, err, CodeInvalid, "tiny")
	_, _, err = f.Context(t.Context(), "", "ctx-nope")
	wantCode(t, err, CodeNotFound, "Context not found: ctx-nope")
}

// Each client has a default context of its own, which any client of the same owner can
// use by its id.
func TestDefaultContext(t *testing.T) {
	f := newFixture(t, nil)
	var one, other Client
	var mu sync.Mutex
	var wg sync.WaitGroup
	made := map[*Box]int{}
	for range 5 {
		wg.Go(func() {
			b, hold, err := f.DefaultContext(t.Context(), "", &one)
			if err != nil {
				t.Error(err)
				return
			}
			hold.Release()
			mu.Lock()
			defer mu.Unlock()
			made[b]++
		})
	}
	wg.Wait()
	d, hold, err := f.DefaultContext(t.Context(), "", &one)
	if err != nil || hold.Created || made[d] != 5 || d.ID() != one.ContextID() {
		t.Fatalf("default context: got %v, %+v, %v; calls at once got %v", d, hold, err, made)
	}
	run(t, d, "x = 1")
	e, hold, err := f.DefaultContext(t.Context(), "", &other)
	if err != nil || !hold.Created || e == d || e.Info().Name == d.Info().Name {
		t.Fatalf("another client: got %v, %+v, %v; want a context of the client's own", e, hold, err)
	}
	hold.Release()
	if again, hold, err := f.Context(t.Context(), "", one.ContextID()); err != nil || again != d || hold.Created {
		t.Errorf("by its id: got %v, %+v, %v", again, hold, err)
	}
	if found, _ := f.Stop(t.Context(), "", KindContext, one.ContextID()); !found {
		t.Error("stop the default context: not found")
	}
	d, hold, err = f.DefaultContext(t.Context(), "", &one)
	if err != nil || !hold.Created || hold.Lost == nil || d.ID() != one.ContextID() {
		t.Errorf("made anew: got %v, %+v, %v; want the same id and what was lost", d, hold, err)
	}
	hold.Release()
}

// A client that cannot be recognized across calls gets a new context for each call.
func TestDefaultContext_UnknownClient(t *testing.T) {
	f := newFixture(t, nil)
	ids := map[string]bool{}
	for range 2 {
		b, hold, err := f.DefaultContext(t.Context(), "", nil)
		if err != nil || !hold.Created {
			t.Fatalf("got %+v, %v; want a new context", hold, err)
		}
		hold.Release()
		ids[b.ID()] = true
	}
	if len(ids) != 2 {
		t.Errorf("two calls got the contexts %v", ids)
	}
}

func TestDefaultContext_Off(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.DefaultContext = false })
	for _, client := range []*Client{nil, {}} {
		_, _, err := f.DefaultContext(t.Context(), "", client)
		wantCode(t, err, CodeInvalid, "Missing context_id")
	}
}

func TestStop_ContextWaitsForCalls(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.StopWait = 300 * time.Millisecond })
	c := f.context(t, "", "busy")
	result := background(t, c, "import time\ntime.sleep(0.8); print('whole')")
	start := time.Now()
	found, err := f.Stop(t.Context(), "", KindContext, "busy")
	if wantCode(t, err, CodeStopFailed, "still runs"); !found || time.Since(start) < 300*time.Millisecond {
		t.Errorf("stop: got %t after %v", found, time.Since(start))
	}
	if c.Info().State != StateRunning {
		t.Errorf("state: got %q, want running", c.Info().State)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = f.Stop(ctx, "", KindContext, "busy")
	wantCode(t, err, CodeCancelled)

	f.cfg().StopWait = 10 * time.Second
	stopped := make(chan error, 1)
	go func() {
		_, err := f.Stop(context.Background(), "", KindContext, c.ID())
		stopped <- err
	}()
	eventually(t, "stop waits", func() bool {
		f.reg.mu.Lock()
		defer f.reg.mu.Unlock()
		return c.state == stateDraining
	})
	_, err = c.Run(t.Context(), RunRequest{Code: "1"})
	wantCode(t, err, CodeBusy, "being stopped")
	_, _, err = f.Context(t.Context(), "", c.ID())
	wantCode(t, err, CodeBusy, "being stopped")
	if res, err := result(); err != nil || res.Stdout != "whole\n" {
		t.Errorf("the run: got %+v, %v; want a complete result", res, err)
	}
	if err := <-stopped; err != nil {
		t.Errorf("stop: %v", err)
	}
	if len(f.ids("")) != 0 {
		t.Errorf("after stop: got %v", f.ids(""))
	}
}
