package pool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/engine/process"
	"github.com/glovebox-dev/glovebox/internal/guest/embed/embedtest"
	"github.com/glovebox-dev/glovebox/internal/polltest"
)

var (
	small = Class{Interpreter: "python", Flavor: "small"}
	large = Class{Interpreter: "node", Flavor: "large"}
)

// factory creates real machines from plain processes and records them.
type factory struct {
	maker machine.Maker
	dir   string // has an entry for each living guest
	log   lines

	mu    sync.Mutex
	made  []Class                     // guarded by mu; every attempt
	hook  func(Class) error           // guarded by mu; called before a machine is made
	alive map[string]*machine.Machine // guarded by mu; by id, all that were ever made
}

func newFactory(t testing.TB) *factory {
	t.Helper()
	agent := embedtest.Program(t)
	before := runtime.NumGoroutine()
	f := &factory{dir: filepath.Join(t.TempDir(), "guests"), alive: make(map[string]*machine.Machine)}
	e, err := process.Open(process.Config{Dir: f.dir})
	if err != nil {
		t.Fatal(err)
	}
	f.maker = machine.Maker{
		Engine: e, Agent: agent, Root: engine.Root{Key: "host", Tree: &engine.Tree{Dir: "/"}},
		Home: filepath.Join(filepath.Dir(f.dir), "home"), UID: -1, GID: -1,
	}
	t.Cleanup(func() {
		if left := f.guests(); len(left) > 0 {
			t.Errorf("leak: guests %q", left)
		}
		if err := e.Close(); err != nil {
			t.Errorf("close engine: %v", err)
		}
		wait(t, fmt.Sprintf("leak: no more goroutines than the %d before", before), func() bool { return runtime.NumGoroutine() <= before })
		if t.Failed() {
			t.Logf("the log:\n%s", strings.Join(f.log.all(), "\n"))
		}
	})
	return f
}

// pool returns a pool that is closed at the end of the test.
func (f *factory) pool(t testing.TB, cfg Config) *Pool {
	t.Helper()
	cfg.Make = f.make
	cfg.Log = slog.New(slog.NewTextHandler(&f.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	p := New(cfg)
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return p
}

func (f *factory) make(ctx context.Context, c Class) (*machine.Machine, error) {
	f.mu.Lock()
	f.made = append(f.made, c)
	id, hook := fmt.Sprintf("member-%d", len(f.made)), f.hook
	f.mu.Unlock()
	if hook != nil {
		if err := hook(c); err != nil {
			return nil, err
		}
	}
	m, err := f.maker.Boot(ctx, id, engine.Limits{})
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.alive[id] = m
	f.mu.Unlock()
	return m, nil
}

func (f *factory) setHook(hook func(Class) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = hook
}

func (f *factory) attempts() []Class {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.made)
}

// machine returns the machine of the i-th attempt, counted from 1.
func (f *factory) machine(i int) *machine.Machine {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.alive[fmt.Sprintf("member-%d", i)]
}

// guests lists the living guests.
func (f *factory) guests() []string {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		panic(err)
	}
	var ids []string
	for _, e := range entries {
		ids = append(ids, e.Name())
	}
	return ids
}

// lines records a log.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(strings.TrimSpace(l.b.String()), "\n")
}

// with returns the lines that contain all of words.
func (l *lines) with(words ...string) []string {
	var found []string
	for _, line := range l.all() {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			found = append(found, line)
		}
	}
	return found
}

// waitFor waits for a state of the pool, and checks it after each change.
func waitFor(t testing.TB, p *Pool, what string, ok func() bool) {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		changed := p.nextChange()
		if ok() {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("timed out waiting for %s; %+v", what, p.Stats())
		}
	}
}

// nextChange returns a channel that is closed at the next change of the pool.
func (p *Pool) nextChange() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// wait polls for a state outside the pool: processes, files, log.
func wait(t testing.TB, what string, ok func() bool) {
	t.Helper()
	polltest.Until(t, 30*time.Second, "waiting for "+what, ok)
}

func ready(t testing.TB, p *Pool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := p.Ready(ctx); err != nil {
		t.Fatalf("Ready: %v", err)
	}
}

// take takes an instance, checks that it answers, and closes it with the test.
func take(t testing.TB, p *Pool, c Class) *machine.Machine {
	t.Helper()
	m := p.Take(t.Context(), c)
	if m == nil {
		t.Fatalf("Take %s: got none; %+v", c, p.Stats())
	}
	t.Cleanup(func() { m.Close(context.Background()) })
	if _, err := m.Agent.Ping(t.Context()); err != nil {
		t.Fatalf("Take %s: machine does not answer: %v", c, err)
	}
	return m
}

func TestFill_ClassesTakeTurns(t *testing.T) {
	for _, pause := range []bool{false, true} {
		t.Run(fmt.Sprintf("pause=%t", pause), func(t *testing.T) {
			f := newFactory(t)
			p := f.pool(t, Config{Size: 2, Pause: pause})
			if m := p.Take(t.Context(), small); m != nil {
				t.Error("Take before Start: got a machine")
			}
			p.Start([]Class{small, large, small})
			ready(t, p)
			if got, want := f.attempts(), []Class{small, large, small, large}; !slices.Equal(got, want) {
				t.Errorf("order of creation: got %v, want %v", got, want)
			}
			for _, c := range []Class{small, large} {
				s := p.Stats().Of(c)
				if s.Wanted != 2 || s.Ready != 2 || s.Made != 2 || s.HandedOut != 0 || s.LastError != nil || s.Oldest < 0 {
					t.Errorf("stats of %s: got %+v", c, s)
				}
			}
			if m := p.Take(t.Context(), Class{Interpreter: "python", Flavor: "large"}); m != nil {
				t.Error("Take of another class: got a machine")
			}

			// Take returns the oldest; the pool replaces it.
			if m := take(t, p, small); m.ID != "member-1" {
				t.Errorf("Take: got %s, want member-1", m.ID)
			}
			waitFor(t, p, "a replacement", func() bool { s := p.Stats().Of(small); return s.Ready == 2 && s.HandedOut == 1 && s.Made == 3 })
			if m := take(t, p, small); m.ID != "member-3" {
				t.Errorf("Take: got %s, want member-3", m.ID)
			}

			for _, words := range [][]string{
				{"INFO", "pool begins to fill", "interpreter=python", "flavor=small", "size=2"},
				{"INFO", "pool instance is ready", "guest=member-4", "interpreter=node", "ready=2"},
				{"INFO", "pool is full", "interpreter=python"},
			} {
				if got := f.log.with(words...); len(got) != 1 {
					t.Errorf("log lines with %q: got %q, want one", words, got)
				}
			}
			if got := f.log.with("INFO", "member-5"); len(got) != 0 {
				t.Errorf("INFO lines after the first fill: %q", got)
			}
		})
	}
}

func TestFill_InstancesArePaused(t *testing.T) {
	f := newFactory(t)
	p := f.pool(t, Config{Size: 1, Pause: true})
	p.Start([]Class{small})
	ready(t, p)
	answer := make(chan error, 1)
	go func() {
		_, err := f.machine(1).Agent.Ping(t.Context())
		answer <- err
	}()
	select {
	case err := <-answer:
		t.Errorf("a waiting instance answers (%v), want it paused", err)
	case <-time.After(100 * time.Millisecond):
		take(t, p, small)
		if err := <-answer; err != nil {
			t.Errorf("a taken instance does not answer the earlier ping: %v", err)
		}
	}
}

// TestTake_SkipsUnresponsiveInstance checks that Take neither returns an instance that
// does not answer nor waits for it for long, and that Take has priority over filling.
func TestTake_SkipsUnresponsiveInstance(t *testing.T) {
	f := newFactory(t)
	p := f.pool(t, Config{Size: 2})
	p.Start([]Class{small})
	ready(t, p)
	if err := f.machine(1).Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.setHook(func(Class) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.taking > 0 {
			t.Error("an instance is created while Take checks another")
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if m := p.Take(ctx, small); m != nil {
		t.Errorf("Take: got %s, which does not answer", m.ID)
	}
	ready(t, p)
	f.setHook(nil)
	wait(t, "the unresponsive instance to be freed", func() bool { return !slices.Contains(f.guests(), "member-1") })
	if m := take(t, p, small); m.ID != "member-2" {
		t.Errorf("Take: got %s, want member-2", m.ID)
	}
}

func TestPool_SizeZeroDisables(t *testing.T) {
	f := newFactory(t)
	p := f.pool(t, Config{})
	p.Start([]Class{small})
	ready(t, p)
	if m := p.Take(t.Context(), small); m != nil || len(f.attempts()) != 0 || p.Trim(t.Context(), 3) != 0 {
		t.Errorf("a pool of size 0 created machines: %v", f.attempts())
	}
}

func TestTake_DoesNotWait(t *testing.T) {
	f := newFactory(t)
	making, release := make(chan struct{}, 1), make(chan struct{})
	f.setHook(func(Class) error { making <- struct{}{}; <-release; return nil })
	p := f.pool(t, Config{Size: 1})
	p.Start([]Class{small})
	<-making
	if m := p.Take(t.Context(), small); m != nil {
		t.Errorf("Take: got %s, which is still being created", m.ID)
	}
	if s := p.Stats().Of(small); s.Making != 1 || s.Ready != 0 {
		t.Errorf("stats: got %+v, want one being created", s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := p.Ready(ctx)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "python/small has 0 of 1 instances") {
		t.Errorf("Ready: got %v", err)
	}
	close(release)
	ready(t, p)
	if m := p.Take(ctx, small); m != nil {
		t.Error("Take with a canceled context: got a machine")
	}
	take(t, p, small)
}

// TestFill_ReplacesLostInstances ends instances without telling the pool.
func TestFill_ReplacesLostInstances(t *testing.T) {
	destroy := func(m *machine.Machine) { m.Guest.Destroy(context.Background()) }
	for _, c := range []struct {
		name  string
		pause bool
		kill  func(*machine.Machine)
		want  string
	}{
		{"guest", false, destroy, "destroyed"},
		{"paused guest", true, destroy, "destroyed"},
		{"connection", false, func(m *machine.Machine) { m.Agent.Close() }, "connection to the guest lost"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFactory(t)
			p := f.pool(t, Config{Size: 2, Pause: c.pause})
			p.Start([]Class{small})
			ready(t, p)
			c.kill(f.machine(1))
			if m := take(t, p, small); m.ID != "member-2" {
				t.Errorf("Take: got %s, want member-2", m.ID)
			}
			waitFor(t, p, "the lost instance to be replaced", func() bool { s := p.Stats().Of(small); return s.Ready == 2 && s.Lost == 1 })
			died := func() []string {
				return f.log.with("WARN", "pool instance ended while it waited", "guest=member-1")
			}
			wait(t, "the loss to be logged", func() bool { return len(died()) > 0 })
			if got := died(); len(got) != 1 || !strings.Contains(got[0], c.want) {
				t.Errorf("log lines on the loss: got %q, want one with %q", got, c.want)
			}
			if got := f.log.with("INFO", "pool is full again"); len(got) != 1 {
				t.Errorf("log lines on the recovery: got %q, want one", got)
			}
			if s := p.Stats().Of(small); s.LastError != nil || s.Failed != 0 {
				t.Errorf("stats: got %+v, want no error once the pool is full", s)
			}
			wait(t, "the lost instance to be freed", func() bool { return !slices.Contains(f.guests(), "member-1") })
		})
	}
}

// TestFill_FailingClassDoesNotBlockOthers also checks that the pool recovers.
func TestFill_FailingClassDoesNotBlockOthers(t *testing.T) {
	f := newFactory(t)
	broken := errors.New("no such interpreter")
	f.setHook(func(c Class) error {
		if c == large {
			return broken
		}
		return nil
	})
	p := f.pool(t, Config{Size: 2})
	p.Start([]Class{large, small})
	waitFor(t, p, "the working class to be full", func() bool { return p.Stats().Of(small).Ready == 2 })
	waitFor(t, p, "the failing class to fail twice", func() bool { return p.Stats().Of(large).Failed >= 2 })
	if s := p.Stats().Of(large); !errors.Is(s.LastError, broken) || s.Ready != 0 {
		t.Errorf("stats: got %+v", s)
	}
	f.setHook(nil)
	ready(t, p)
	if got := f.log.with("WARN"); len(got) != 1 || !strings.Contains(got[0], "no such interpreter") || !strings.Contains(got[0], "interpreter=node") {
		t.Errorf("warnings: got %q, want one with the cause", got)
	}
	if got := f.log.with("INFO", "pool is full", "interpreter=node", "failures="); len(got) != 1 {
		t.Errorf("log lines on the recovery: got %q, want one", got)
	}
}

// clock is a manual clock.
type clock struct {
	mu  sync.Mutex
	now time.Time // guarded by mu
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// pass advances the clock and wakes the pool.
func (c *clock) pass(p *Pool, d time.Duration) {
	c.mu.Lock()
	c.now = c.now.Add(d)
	c.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changeLocked()
}

func TestFill_ReplacesExpiredInstances(t *testing.T) {
	for _, room := range []bool{true, false} {
		t.Run(fmt.Sprintf("room=%t", room), func(t *testing.T) {
			f := newFactory(t)
			c := &clock{now: time.Now()}
			p := f.pool(t, Config{Size: 2, Now: c.Now})
			p.Start([]Class{small})
			ready(t, p)
			c.pass(p, DefaultMaxAge-time.Minute)
			if s := p.Stats().Of(small); s.Oldest != DefaultMaxAge-time.Minute || s.Made != 2 {
				t.Errorf("stats: got %+v", s)
			}
			var beside []int // ready instances at each attempt
			f.setHook(func(Class) error {
				beside = append(beside, p.Stats().Of(small).Ready)
				if !room && len(f.guests()) == 2 {
					return fmt.Errorf("no memory: %w", engine.ErrExhausted)
				}
				return nil
			})
			c.pass(p, 2*time.Minute)
			wait(t, "both instances to be replaced", func() bool {
				s := p.Stats().Of(small)
				return s.Made == 4 && s.Ready == 2 && s.Oldest == 0 && len(f.guests()) == 2
			})
			want := []int{2, 2}
			if !room {
				want = []int{2, 1, 2, 1}
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if !slices.Equal(beside, want) {
				t.Errorf("ready instances at each attempt: got %v, want %v", beside, want)
			}
			if got := f.log.with("WARN"); got != nil {
				t.Errorf("got warnings: %q", got)
			}
		})
	}
}

// TestTake_ReturnsExpiredInstanceIfNoneYounger checks which instance Take returns
// while expired ones cannot be replaced.
func TestTake_ReturnsExpiredInstanceIfNoneYounger(t *testing.T) {
	f := newFactory(t)
	c := &clock{now: time.Now()}
	p := f.pool(t, Config{Size: 2, Now: c.Now})
	p.Start([]Class{small})
	ready(t, p)
	made := 0
	f.setHook(func(Class) error {
		if made++; made > 1 {
			return errors.New("broken")
		}
		return nil
	})
	c.pass(p, DefaultMaxAge)
	waitFor(t, p, "one replacement and one failure", func() bool { s := p.Stats().Of(small); return s.Made == 3 && s.Failed == 1 })
	if m := take(t, p, small); m.ID != "member-3" {
		t.Errorf("Take: got %s, want member-3, which has not expired", m.ID)
	}
	if m := take(t, p, small); m.ID != "member-2" {
		t.Errorf("Take: got %s, want member-2, the only one", m.ID)
	}
}

func TestTrim(t *testing.T) {
	f := newFactory(t)
	gate := make(chan struct{}, 10)
	for range 6 {
		gate <- struct{}{}
	}
	p := f.pool(t, Config{Size: 3, Yield: func(ctx context.Context) error {
		select {
		case <-gate:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}})
	p.Start([]Class{small, large})
	ready(t, p)
	take(t, p, small) // leaves small with instances 3 and 5, large with 2, 4 and 6
	if n := p.Trim(t.Context(), 2); n != 2 {
		t.Errorf("Trim: got %d, want 2", n)
	}
	if got, want := f.guests(), []string{"member-1", "member-4", "member-5", "member-6"}; !slices.Equal(got, want) {
		t.Errorf("guests after Trim: got %v, want %v", got, want)
	}
	if n := p.Trim(t.Context(), 9); n != 3 {
		t.Errorf("Trim of more than exist: got %d, want 3", n)
	}
	if m := p.Take(t.Context(), small); m != nil {
		t.Error("Take: got a machine after Trim ended all")
	}
	for range 6 {
		gate <- struct{}{}
	}
	waitFor(t, p, "the pool to be full again", func() bool { s := p.Stats(); return s.Of(small).Ready == 3 && s.Of(large).Ready == 3 })
	if got := f.log.with("WARN"); got != nil {
		t.Errorf("got warnings: %q", got)
	}
}

func TestClose(t *testing.T) {
	f := newFactory(t)
	p := f.pool(t, Config{Size: 2, Pause: true})
	p.Start([]Class{small})
	ready(t, p)
	mine := take(t, p, small)

	// One is being created.
	entered, hold := make(chan struct{}), make(chan struct{})
	var once sync.Once
	f.setHook(func(Class) error {
		once.Do(func() { close(entered) })
		<-hold
		return nil
	})
	take(t, p, small)
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Close with a canceled context while an instance is created: got %v", err)
	}
	close(hold)
	for range 2 {
		if err := p.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if m := p.Take(t.Context(), small); m != nil {
		t.Error("Take after Close: got a machine")
	}
	if err := p.Ready(t.Context()); !errors.Is(err, errClosed) {
		t.Errorf("Ready after Close: got %v", err)
	}
	if n := p.Trim(t.Context(), 1); n != 0 {
		t.Errorf("Trim after Close: got %d", n)
	}
	if got := f.guests(); len(got) != 2 {
		t.Errorf("after Close: got guests %q, want only the taken ones", got)
	}
	if _, err := mine.Agent.Ping(t.Context()); err != nil {
		t.Errorf("a machine taken before Close does not answer: %v", err)
	}
	if got := f.log.with("WARN"); got != nil {
		t.Errorf("got warnings: %q", got)
	}
}

// TestPool_ConcurrentTakeTrimAndLoss runs Take and Trim concurrently: no machine is returned
// twice, each one answers, and nothing is left.
func TestPool_ConcurrentTakeTrimAndLoss(t *testing.T) {
	f := newFactory(t)
	p := f.pool(t, Config{Size: 3, Pause: true})
	p.Start([]Class{small, large})
	ready(t, p)

	var mu sync.Mutex
	got := make(map[string]int) // guarded by mu
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			c := []Class{small, large}[i%2]
			for n := 0; n < 5; {
				changed := p.nextChange()
				m := p.Take(t.Context(), c)
				if m == nil {
					<-changed
					continue
				}
				n++
				if _, err := m.Agent.Ping(t.Context()); err != nil {
					t.Errorf("Take: machine does not answer: %v", err)
				}
				mu.Lock()
				got[m.ID]++
				mu.Unlock()
				if err := m.Close(context.Background()); err != nil {
					t.Errorf("close taken machine: %v", err)
				}
			}
		})
	}
	trimmed := p.Trim(t.Context(), 2)
	wg.Wait()
	for id, n := range got {
		if n != 1 {
			t.Errorf("Take returned %s %d times", id, n)
		}
	}
	if len(got) != 30 {
		t.Errorf("Take returned %d machines, want 30", len(got))
	}
	ready(t, p)
	made, handed := 0, 0
	for _, s := range p.Stats() {
		made += s.Made
		handed += s.HandedOut
	}
	if handed != 30 || made < 30+trimmed {
		t.Errorf("stats: %d handed out and %d made, %d trimmed", handed, made, trimmed)
	}
}
