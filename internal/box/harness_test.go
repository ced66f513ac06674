package box

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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

// interpreters finds the real ones: what PATH says first may be a wrapper.
var interpreters = sync.OnceValue(func() map[string]string {
	found := map[string]string{}
	if out, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output(); err == nil {
		found[Python] = strings.TrimSpace(string(out))
	}
	if out, err := exec.Command("node", "-p", "process.execPath").Output(); err == nil {
		found[JavaScript] = strings.TrimSpace(string(out))
	}
	return found
})

// meter is an engine that counts what another one does and fails on demand.
type meter struct {
	engine.Engine

	mu      sync.Mutex
	created int                       // guarded by mu
	live    int                       // guarded by mu
	peak    int                       // guarded by mu
	err     error                     // guarded by mu; what Create returns
	hold    chan struct{}             // guarded by mu; Create waits for it
	held    int                       // guarded by mu; calls of Create that have waited for it
	guests  []*meterGuest             // guarded by mu
	adopts  bool                      // other engines take over its guests, and it leaves guests to them
	dial    func() io.ReadWriteCloser // connects to an agent in place of that of the guest; nil: none. Set before boxes are made
}

type meterGuest struct {
	engine.Guest
	m    *meter
	once sync.Once
	exit chan engine.Exit // ends Wait

	stuck chan struct{} // guarded by m.mu; Destroy waits for it; nil: it does not
}

// Unwrap returns the metered engine.
func (m *meter) Unwrap() engine.Engine { return m.Engine }

func (m *meter) Create(ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
	m.mu.Lock()
	err, hold := m.err, m.hold
	if hold != nil {
		m.held++
	}
	m.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	m.created++
	m.live++
	m.peak = max(m.peak, m.live)
	m.mu.Unlock()
	g, err := m.Engine.Create(ctx, id, spec)
	if err != nil {
		m.mu.Lock()
		m.live--
		m.mu.Unlock()
		return nil, err
	}
	mg := &meterGuest{Guest: g, m: m, exit: make(chan engine.Exit, 1)}
	m.mu.Lock()
	m.guests = append(m.guests, mg)
	m.mu.Unlock()
	return mg, nil
}

func (m *meter) counts() (created, live, peak int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.created, m.live, m.peak
}

// holds reports whether a call of Create waits, or has waited, for the channel of set.
func (m *meter) holds() bool { return m.waiting() > 0 }

// waiting returns how many calls of Create wait, or have waited, for the channel of set.
func (m *meter) waiting() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.held
}

func (m *meter) set(err error, hold chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err, m.hold = err, hold
}

func (m *meter) last() *meterGuest {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.guests[len(m.guests)-1]
}

// holdLast keeps the newest guest from being destroyed until the returned channel is closed.
func (m *meter) holdLast() chan<- struct{} {
	stuck := make(chan struct{})
	last := m.last()
	m.mu.Lock()
	defer m.mu.Unlock()
	last.stuck = stuck
	return stuck
}

func (g *meterGuest) Dial(ctx context.Context) (io.ReadWriteCloser, error) {
	if g.m.dial != nil {
		return g.m.dial(), nil
	}
	return g.Guest.Dial(ctx)
}

func (g *meterGuest) Destroy(ctx context.Context) error {
	g.m.mu.Lock()
	stuck := g.stuck
	g.m.mu.Unlock()
	if stuck != nil {
		<-stuck
	}
	err := g.Guest.Destroy(ctx)
	g.once.Do(func() {
		g.m.mu.Lock()
		g.m.live--
		g.m.mu.Unlock()
	})
	return err
}

func (g *meterGuest) Wait(ctx context.Context) (engine.Exit, error) {
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		exit engine.Exit
		err  error
	}
	real := make(chan answer, 1)
	go func() {
		exit, err := g.Guest.Wait(wctx)
		real <- answer{exit, err}
	}()
	select {
	case a := <-real:
		return a.exit, a.err
	case exit := <-g.exit:
		cancel()
		<-real
		return exit, nil
	}
}

// clock is a time that passes only when told.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// fixture is a Manager over the engine of plain processes and the real agent.
type fixture struct {
	*Manager
	engine *meter
	clock  *clock
	opened func() // called, unless nil, when the Manager is made and not started
}

// newFixture starts a Manager and checks at the end of the test that it leaves
// nothing behind.
func newFixture(t *testing.T, change func(*Config)) *fixture {
	t.Helper()
	return newFixtureWith(t, change, func(*fixture, *Parts) {})
}

// newFixtureWith is newFixture with other parts.
func newFixtureWith(t *testing.T, change func(*Config), with func(*fixture, *Parts)) *fixture {
	t.Helper()
	agent := embedtest.Program(t)
	interps := interpreters()
	if interps[Python] == "" {
		t.Skip("no python3 on this machine")
	}
	before := runtime.NumGoroutine()
	dir := t.TempDir()
	eng, err := process.Open(process.Config{Dir: filepath.Join(dir, "guests")})
	if err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig()
	if change != nil {
		change(&cfg)
	}
	f := &fixture{
		engine: &meter{Engine: eng},
		clock:  &clock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
	}
	log := slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	parts := Parts{
		Machines: &machine.Maker{
			Engine: f.engine, Agent: agent, Root: engine.Root{Key: "host", Tree: &engine.Tree{Dir: "/"}},
			Interpreters: interps, Home: filepath.Join(dir, "home"), UID: -1, GID: -1, Log: log,
		},
		Log: log, Now: f.clock.Now,
	}
	with(f, &parts)
	f.Manager = New(cfg, parts)
	if f.opened != nil {
		f.opened()
	}
	if err := f.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := f.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
		if _, live, _ := f.engine.counts(); live != 0 && !f.engine.adopts {
			t.Errorf("after Close: %d guests are left", live)
		}
		if st := f.Stats(); len(st.States) != 0 || st.Running != 0 {
			t.Errorf("after Close: got %+v, want nothing left", st)
		}
		if err := eng.Close(); err != nil {
			t.Errorf("close engine: %v", err)
		}
		if !f.engine.adopts {
			noLeak(t, before)
		}
	})
	return f
}

// noLeak waits until no more goroutines run than before.
func noLeak(t *testing.T, before int) {
	t.Helper()
	if !polltest.Soon(5*time.Second, func() bool { return runtime.NumGoroutine() <= before }) {
		buf := make([]byte, 64<<10)
		t.Errorf("leak: %d goroutines run, %d ran before:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
	}
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	if os.Getenv("SANDBOX_TEST_LOG") != "" {
		w.t.Log(strings.TrimSpace(string(p)))
	}
	return len(p), nil
}

// session returns a session that is not held.
func (f *fixture) session(t *testing.T, owner Owner, id string) *Box {
	t.Helper()
	return f.sessionOf(t, owner, SessionOptions{ID: id})
}

func (f *fixture) sessionOf(t *testing.T, owner Owner, want SessionOptions) *Box {
	t.Helper()
	b, hold, err := f.Session(t.Context(), owner, want)
	if err != nil {
		t.Fatalf("session %+v: %v", want, err)
	}
	hold.Release()
	return b
}

func (f *fixture) context(t *testing.T, owner Owner, name string) *Box {
	t.Helper()
	b, err := f.CreateContext(t.Context(), owner, ContextOptions{Name: name})
	if err != nil {
		t.Fatalf("context %q: %v", name, err)
	}
	return b
}

// fork is Fork for a test that does not ask what the original had lost.
func (f *fixture) fork(ctx context.Context, owner Owner, kind Kind, id string, opts ForkOptions) (*Box, error) {
	b, hold, err := f.Fork(ctx, owner, kind, id, opts)
	hold.Release()
	return b, err
}

// saveSnapshot is SaveSnapshot for a test that does not ask what the box had lost.
func (f *fixture) saveSnapshot(ctx context.Context, owner Owner, kind Kind, id string, opts SnapshotOptions) (SavedSnapshot, error) {
	saved, hold, err := f.SaveSnapshot(ctx, owner, kind, id, opts)
	hold.Release()
	return saved, err
}

// List is Manager.List for tests whose disk works.
func (f *fixture) List(owner Owner, kind Kind) []Info {
	list, err := f.Manager.List(owner, kind)
	if err != nil {
		panic(err)
	}
	return list
}

// ids lists the living boxes of an owner.
func (f *fixture) ids(owner Owner) map[string]bool {
	ids := map[string]bool{}
	for _, i := range f.List(owner, "") {
		ids[i.ID] = true
	}
	return ids
}

func run(t *testing.T, b *Box, code string) *RunResult {
	t.Helper()
	return runReq(t, b, RunRequest{Code: code})
}

func runReq(t *testing.T, b *Box, req RunRequest) *RunResult {
	t.Helper()
	res, err := b.Run(t.Context(), req)
	if err != nil {
		t.Fatalf("run %q: %v", req.Code, err)
	}
	return res
}

// wantOut runs code and compares its stdout.
func wantOut(t *testing.T, b *Box, code, want string) {
	t.Helper()
	if res := run(t, b, code); res.Stdout != want || !res.Success {
		t.Fatalf("run %q: got %q, success %t, stderr %q, notes %q; want %q", code, res.Stdout, res.Success, res.Stderr, res.Notes, want)
	}
}

// wantCode checks an error's code and that its text has all of words.
func wantCode(t *testing.T, err error, want Code, words ...string) {
	t.Helper()
	if got := CodeOf(err); got != want {
		t.Fatalf("got error code %q (%v), want %q", got, err, want)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

// eventually waits for what another goroutine or process brings about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	polltest.Until(t, 10*time.Second, what, ok)
}

// background runs code until the returned function is called and has the
// result.
func background(t *testing.T, b *Box, code string) func() (*RunResult, error) {
	t.Helper()
	b.reg.mu.Lock()
	calls := b.use.calls
	b.reg.mu.Unlock()
	type answer struct {
		res *RunResult
		err error
	}
	done := make(chan answer, 1)
	go func() {
		res, err := b.Run(context.Background(), RunRequest{Code: code})
		done <- answer{res, err}
	}()
	eventually(t, "the run has begun", func() bool {
		b.reg.mu.Lock()
		defer b.reg.mu.Unlock()
		return b.use.calls > calls || b.tomb != nil || len(done) > 0
	})
	return sync.OnceValues(func() (*RunResult, error) {
		a := <-done
		return a.res, a.err
	})
}
