//go:build linux && (amd64 || arm64) && !cgo

package chaos

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/hostdisk"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/box/image"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/box/template"
	"github.com/glovebox-dev/glovebox/internal/engine/gvisor"
	"github.com/glovebox-dev/glovebox/internal/guest/embed"
	"github.com/glovebox-dev/glovebox/internal/guest/embed/embedtest"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// callTimeout is the time-out of code and commands.
	callTimeout = 5 * time.Second
	// opTimeout is when the caller of an operation leaves.
	opTimeout = 12 * time.Second
	// callGrace is how much longer than opTimeout an operation may take: a cancelled call
	// ends its box after 6 s (cancelBackstop in package box), which reports it within 3 s.
	// The rest is for a busy machine.
	callGrace = 30 * time.Second
	// settleTimeout is opTimeout after the last fault, and of the control owner: a call waits
	// 30 s for room (wakeWait in package box) before it is refused.
	settleTimeout = 40 * time.Second
	// faultEvery is the number of operations for each fault.
	faultEvery = 30
	// failurePause is how long a caller waits after a failure, so that a fault does not
	// meet many operations that fail at once.
	failurePause = 100 * time.Millisecond
	// settleTime is how long the manager and the engine may take to free what they hold
	// after the last operation.
	settleTime = 45 * time.Second
	// workers is how many operations run at once.
	workers = 24
	// maxViolations ends a run.
	maxViolations = 5
	// diskMB is the size of the file system for the state directory, more than all boxes
	// take: only faults fill it. On a disk that stays full, an owner's newer boxes take
	// the place of its older ones, also of the control owner's.
	diskMB = 8000
)

// broken says how the manager or the engine is broken on purpose.
type broken struct {
	silent   bool          // reports of lost boxes are withheld
	before   string        // code that runs before that of each call
	refuses  bool          // no guest starts
	immortal bool          // guests are not destroyed
	atBoot   func()        // called when a guest has started; leaks something
	limit    time.Duration // replaces the time within which an operation has to return
}

// config is what a run consists of.
type config struct {
	seed     uint64
	ops      int
	round    int // operations of one round
	every    int // operations for each fault
	dir      string
	length   time.Duration // no operation begins later; 0: no limit
	most     int           // violations that end the run
	patience time.Duration // how long what was used may take to be freed
	out      io.Writer     // of progress
}

// run is a run of operations.
type run struct {
	config
	t        testing.TB
	agent    engine.Program
	broken   atomic.Pointer[broken]
	subjects []*subject
	busy     *subject // of the control owner: called all the time
	idle     *subject // of the control owner: hibernated in between
	began    time.Time

	// of the round
	engine  *faultyEngine
	manager *box.Manager
	faults  *faults

	next     atomic.Int64 // number of the latest operation
	ended    atomic.Int64 // operations that were performed
	inFlight sync.Map     // operations that have not returned: number -> inFlight
	controls atomic.Int64 // calls of the control owner
	late     atomic.Bool  // a call hangs: what follows proves nothing

	mu         sync.Mutex
	violations []string       // guarded by mu
	kinds      map[string]int // guarded by mu; of violations
	done       map[string]int // guarded by mu; operations
	struck     map[string]int // guarded by mu; faults of earlier rounds
	refused    map[string]int // guarded by mu; errors by code
	reported   map[string]int // guarded by mu; reports of lost boxes by reason

	guestOf sync.Map // from the id of a box to that of its latest guest
}

// inFlight is an operation that has begun.
type inFlight struct {
	what    string
	begun   time.Time
	limit   time.Duration // within which it has to return
	subject *subject
}

func newRun(t testing.TB, cfg config) *run {
	r := &run{
		config: cfg, t: t, began: time.Now(),
		kinds: map[string]int{}, done: map[string]int{}, struck: map[string]int{}, refused: map[string]int{}, reported: map[string]int{},
	}
	r.broken.Store(&broken{})
	add := func(owner box.Owner, kind box.Kind, name string) *subject {
		s := &subject{run: r, owner: owner, kind: kind, name: name, seen: map[string]int{}, good: time.Now()}
		return s
	}
	for _, owner := range []box.Owner{"alice", "bob", "carol"} {
		for i := range 4 {
			r.subjects = append(r.subjects, add(owner, box.KindSession, fmt.Sprintf("%s-%d", owner, i)))
		}
		r.subjects = append(r.subjects, add(owner, box.KindContext, fmt.Sprintf("%s-context", owner)))
	}
	r.busy, r.idle = add("control", box.KindSession, "busy"), add("control", box.KindSession, "idle")
	return r
}

// count adds one to a counter.
func (r *run) count(counter *map[string]int, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	(*counter)[name]++
}

// violate reports that an invariant does not hold.
func (r *run) violate(kind string, s *subject, format string, args ...any) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s (seed %d, operation %d)\n", kind, fmt.Sprintf(format, args...), r.seed, r.next.Load())
	if s != nil {
		s.mu.Lock()
		fmt.Fprintf(&b, "history of %v, guests %v:\n\t%s\n", s, s.guests, strings.Join(s.history, "\n\t"))
		s.mu.Unlock()
	}
	if kind == "hang" {
		buf := make([]byte, 1<<20)
		fmt.Fprintf(&b, "goroutines:\n%s\n", buf[:runtime.Stack(buf, true)])
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kinds[kind]++
	r.violations = append(r.violations, b.String())
	fmt.Fprintf(r.out, "VIOLATION %s", b.String())
}

// failed reports whether the run is over early.
func (r *run) failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.violations) >= r.most
}

// over reports whether no further operation begins.
func (r *run) over() bool {
	return r.failed() || r.late.Load() || r.length > 0 && time.Since(r.began) > r.length
}

// all runs all rounds.
func (r *run) all() {
	for n := 0; n*r.round < r.ops && !r.over(); n++ {
		r.oneRound(n, min((n+1)*r.round, r.ops))
	}
}

// oneRound opens engine and manager, runs the operations up to end, closes all and checks
// what is left. The boxes of the rounds before are on disk.
func (r *run) oneRound(n, end int) {
	rnd := rand.New(rand.NewPCG(r.seed, uint64(1)<<63|uint64(n)))
	before := holdings()
	h, err := r.open(rnd)
	if err != nil {
		r.t.Errorf("round %d: %v", n, err)
		r.late.Store(true)
		return
	}
	watching := make(chan struct{})
	var watchers sync.WaitGroup
	watchers.Go(func() { r.watch(watching) })
	// The control owner's boxes are there before the first fault.
	if r.prepareControl() {
		stopped := make(chan struct{})
		var controls, group sync.WaitGroup
		controls.Go(func() { r.control(r.busy, 50*time.Millisecond, stopped) })
		controls.Go(func() { r.control(r.idle, 6*time.Second, stopped) })
		for range workers {
			group.Go(func() {
				for op := int(r.next.Add(1)); op <= end && !r.over(); op = int(r.next.Add(1)) {
					r.operate(op)
					r.ended.Add(1)
				}
			})
		}
		group.Wait()
		r.next.Store(int64(end))
		r.faults.end()
		close(stopped)
		controls.Wait()
		r.settle()
	} else {
		r.faults.end()
	}
	r.mu.Lock()
	for what, times := range r.faults.struck {
		r.struck[what] += times
	}
	r.mu.Unlock()
	if !r.late.Load() {
		r.checkGuests()
		closing := &inFlight{what: "close", begun: time.Now(), limit: opTimeout + callGrace + time.Minute}
		r.inFlight.Store(-1, closing)
		if err := h.close(); err != nil {
			r.violate("leak", nil, "round %d: close: %v", n, err)
		}
		r.inFlight.Delete(-1)
	}
	if r.late.Load() { // what hangs may hang the close, too
		closed := make(chan struct{})
		go func() { defer close(closed); h.close() }()
		select {
		case <-closed:
		case <-time.After(settleTimeout):
		}
	}
	close(watching)
	watchers.Wait()
	if !r.late.Load() {
		r.checkHoldings(before)
	}
	r.faults.release()
	fmt.Fprintf(r.out, "%v: %d of %d operations, %d faults, %d violations, %d calls of the control owner\n",
		time.Since(r.began).Round(time.Second), r.ended.Load(), r.ops, sum(r.struck), len(r.violations), r.controls.Load())
}

func sum(m map[string]int) (n int) {
	for _, v := range m {
		n += v
	}
	return n
}

// logFault records a fault in the history of the box that it strikes.
func (r *run) logFault(guest, format string, args ...any) {
	for _, s := range append(slices.Clone(r.subjects), r.busy, r.idle) {
		s.mu.Lock()
		if guest == "" || slices.Contains(s.guests, guest) {
			s.noteLocked(format, args...)
		}
		s.mu.Unlock()
	}
}

// watch reports operations that do not return in time.
func (r *run) watch(stop <-chan struct{}) {
	for {
		select {
		case <-time.After(500 * time.Millisecond):
		case <-stop:
			return
		}
		r.inFlight.Range(func(_, v any) bool {
			f := v.(*inFlight)
			took := time.Since(f.begun)
			if took > f.limit && !r.late.Swap(true) {
				r.violate("hang", f.subject, "%s has not returned after %v", f.what, took.Round(time.Second))
			}
			return true
		})
	}
}

// inTurn is do for an operation that changes what the box remembers: one at a time.
func (r *run) inTurn(number int, what string, s *subject, do func(context.Context) error) {
	s.turn.Lock()
	defer s.turn.Unlock()
	r.do(number, what, s, do)
}

// do performs an operation within opTimeout, watched.
func (r *run) do(number int, what string, s *subject, do func(context.Context) error) {
	timeout := opTimeout
	switch strings.Fields(what)[0] {
	case "settle", "prepare", "control":
		timeout = settleTimeout
	}
	limit := timeout + callGrace
	if b := r.broken.Load(); b.limit > 0 {
		limit = b.limit
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	r.inFlight.Store(number, &inFlight{what, time.Now(), limit, s})
	defer r.inFlight.Delete(number)
	err := do(ctx)
	outcome := "ok"
	if err != nil {
		outcome = "failed"
		time.Sleep(failurePause)
	}
	r.count(&r.done, strings.Fields(what)[0]+" "+outcome)
}

// hot is how many of the boxes are used much more than the others, which therefore leave
// memory and are woken. Which ones they are changes every hotFor operations.
const (
	hot    = 7
	hotFor = 600
)

// operate performs an operation of the schedule.
func (r *run) operate(op int) {
	rnd := rand.New(rand.NewPCG(r.seed, uint64(op)))
	s := r.subjects[rnd.IntN(len(r.subjects))]
	if rnd.IntN(100) < 96 {
		s = r.subjects[(op/hotFor*3+rnd.IntN(hot))%len(r.subjects)]
	}
	pick, after := rnd.IntN(1000), upTo(rnd, 400*time.Millisecond)
	r.arrange(newFault(rnd, op, r.every), s)
	name := fmt.Sprint("op", op)
	b := s.last()
	switch {
	case pick >= 560 && pick < 900 && b == nil:
		r.inTurn(op, "call "+name, s, func(ctx context.Context) error { return s.callOrMake(ctx, name) })
	case pick < 560:
		r.inTurn(op, "call "+name, s, func(ctx context.Context) error { return s.callOrMake(ctx, name) })
	case pick < 700:
		r.do(op, "command "+name, s, func(ctx context.Context) error { return s.command(ctx, name, b) })
	case pick < 850:
		r.do(op, "files "+name, s, func(ctx context.Context) error { return s.files(ctx, name, b) })
	case pick < 900:
		r.do(op, "cancel "+name, s, func(ctx context.Context) error { return s.cancel(ctx, name, b, after) })
	case pick < 960:
		r.do(op, "list "+name, s, func(context.Context) error { r.manager.Stats(); _, err := r.manager.List(s.owner, ""); return err })
	case pick < 970:
		r.inTurn(op, "interrupt "+name, s, func(ctx context.Context) error { return s.interrupt(ctx, name, after) })
	case pick < 978:
		r.inTurn(op, "snapshot "+name, s, func(ctx context.Context) error { return s.snapshot(ctx, name) })
	case pick < 984:
		r.inTurn(op, "rollback "+name, s, func(ctx context.Context) error { return s.rollBack(ctx, name) })
	case pick < 992:
		r.inTurn(op, "fork "+name, s, func(ctx context.Context) error { return s.fork(ctx, name) })
	default:
		r.inTurn(op, "stop "+name, s, func(ctx context.Context) error { return s.stopBox(ctx, name) })
	}
}

// arrange lets a fault strike.
func (r *run) arrange(f *fault, s *subject) {
	switch {
	case f == nil:
	case f.stage == stageHost:
		r.faults.strikeHost(f)
	case f.stage != stageCall:
		r.faults.arm(f)
	case s.guest() != "":
		r.faults.strike(f, s.guest())
	}
}

// prepareControl calls the boxes of the control owner, which exist from then on.
func (r *run) prepareControl() bool {
	for _, s := range []*subject{r.busy, r.idle} {
		r.inTurn(-2, "prepare", s, func(ctx context.Context) error {
			err := s.callOrMake(ctx, "prepare")
			if err != nil {
				r.violate("neighbor", s, "a box of the control owner cannot be used: %v", err)
			}
			return err
		})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kinds["neighbor"] == 0
}

// control calls a box of the control owner until stop.
func (r *run) control(s *subject, every time.Duration, stop <-chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-time.After(every):
		case <-stop:
			return
		}
		if r.failed() || r.late.Load() {
			return
		}
		r.controlCall(-10-i, s)
	}
}

// controlCall calls a box of the control owner, which has to remember everything.
func (r *run) controlCall(number int, s *subject) {
	begun := time.Now()
	r.faults.sparing.Add(1)
	defer r.faults.sparing.Add(-1)
	r.inTurn(number, "control", s, func(ctx context.Context) error {
		highest := 0
		s.mu.Lock()
		for _, n := range s.seen {
			highest = max(highest, n)
		}
		s.mu.Unlock()
		b, err := s.acquire(ctx, "control")
		if err == nil {
			err = s.call(ctx, "control", b)
		}
		s.mu.Lock()
		same := s.n > highest && len(s.seen) == 1
		s.mu.Unlock()
		switch {
		case err != nil && !r.faults.near(begun.Add(-10*time.Second)):
			r.violate("neighbor", s, "a call of the control owner failed: %v", err)
		case err == nil && !same:
			r.violate("neighbor", s, "a box of the control owner lost its state")
		}
		return err
	})
	r.controls.Add(1)
}

// settle calls every box without faults: each answers, or says what became of it, so that
// nothing is stuck.
func (r *run) settle() {
	var group sync.WaitGroup
	var mu sync.Mutex
	var stuck []*subject // guarded by mu
	queue := make(chan *subject)
	for range workers {
		group.Go(func() {
			for s := range queue {
				if err := r.settled(s); err != nil {
					mu.Lock()
					stuck = append(stuck, s)
					mu.Unlock()
				}
			}
		})
	}
	for _, s := range append(slices.Clone(r.subjects), r.busy, r.idle) {
		s.mu.Lock()
		exists := s.exists
		s.mu.Unlock()
		if exists {
			queue <- s
		}
	}
	close(queue)
	group.Wait()
	// A sentry that is stopped for good holds up the writing of its box for two minutes.
	r.faults.release()
	for _, s := range stuck {
		var err error
		for range 3 {
			if err = r.settled(s); err == nil {
				break
			}
		}
		// There is no room while boxes stay in memory that could not be written.
		if err != nil && box.CodeOf(err) != box.CodeLimit {
			r.violate("hang", s, "the box does not answer without faults: %v", err)
		}
	}
}

// settled calls a box without faults.
func (r *run) settled(s *subject) (err error) {
	if r.late.Load() {
		return nil
	}
	r.inTurn(-1000-slices.Index(r.subjects, s), "settle", s, func(ctx context.Context) error {
		err = s.callOrMake(ctx, "settle")
		return err
	})
	return err
}

// opened is what a round has opened.
type opened struct {
	run       *run
	engine    *faultyEngine
	templates *template.Store
	snapshots *snapshot.Store
	manager   *box.Manager
}

// open opens an engine and a manager, with settings that differ by round.
func (r *run) open(rnd *rand.Rand) (*opened, error) {
	r.faults = newFaults(r.dir, r.faults)
	r.faults.log = r.logFault
	log := slog.New(&follower{run: r})
	const reserve = 48 << 20
	e, err := gvisor.Open(context.Background(), gvisor.Config{StateDir: r.dir, Log: log, Disk: hostdisk.Policy{Guaranteed: 0.01, Reserve: reserve}})
	if err != nil {
		return nil, err
	}
	h := &opened{run: r, engine: &faultyEngine{Engine: e, faults: r.faults, broken: &r.broken}}
	img, err := image.Toolchain(context.Background(), image.ToolchainConfig{StateDir: r.dir})
	if err != nil {
		return nil, err
	}
	python := img.Interpreters[box.Python].Path
	maker := &machine.Maker{
		Engine: h.engine, Agent: r.agent, Root: img.Root, Interpreters: map[string]string{box.Python: python},
		Home: machine.Home, UID: engine.UserID, GID: engine.UserID, Log: log,
	}
	if r.seed%2 == 0 { // with a volume, a box has a gofer
		maker.Volumes = []engine.Mount{{Host: filepath.Join(r.dir, "volume"), Guest: "/volume", ReadOnly: true}}
	}
	if h.templates, err = template.Open(template.Config{Dir: filepath.Join(r.dir, "templates"), Maker: maker, Files: map[string][]string{box.Python: {python}}, Log: log}); err != nil {
		return nil, err
	}
	if h.snapshots, err = snapshot.Open(snapshot.Config{
		Dir: filepath.Join(r.dir, "snapshots"), MinFree: reserve, DiskGrace: time.Minute, Log: log,
	}); err != nil {
		return nil, err
	}
	cfg := box.DefaultConfig()
	// Boxes leave memory for others of their owner, and no owner takes another's place.
	cfg.MaxPerOwner = 2 + rnd.IntN(2)
	cfg.MaxSessions, cfg.MaxContexts = 3*cfg.MaxPerOwner+2, 3
	cfg.IdleTimeout, cfg.CleanupInterval, cfg.PauseAfter = 4*time.Second, time.Second, time.Second
	cfg.ExecTimeout, cfg.ContextTimeout, cfg.MaxTimeout = callTimeout, callTimeout, callTimeout
	cfg.StartTimeout, cfg.StopWait = 20*time.Second, 5*time.Second
	cfg.PoolSize, cfg.Preload = rnd.IntN(2), nil
	h.manager = box.New(cfg, box.Parts{
		Machines: maker, Snapshots: h.snapshots, Templates: h.templates, Scratch: []string{filepath.Join(r.dir, "scratch")},
		Tombstones: filepath.Join(r.dir, "tombstones.json"), Log: log,
	})
	r.engine, r.manager = h.engine, h.manager
	return h, h.manager.Start(context.Background())
}

func (o *opened) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
	defer cancel()
	err := o.manager.Close(ctx)
	for _, c := range []io.Closer{o.templates, o.snapshots, o.engine} {
		if e := c.Close(); e != nil && err == nil {
			err = e
		}
	}
	return err
}

// follower is a log that learns which guest is which box, and adds what it hears of a box
// to the history of that.
type follower struct {
	run   *run
	attrs []slog.Attr
}

func (f *follower) Enabled(context.Context, slog.Level) bool { return true }

func (f *follower) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &follower{f.run, append(slices.Clip(f.attrs), attrs...)}
}

func (f *follower) WithGroup(string) slog.Handler { return f }

func (f *follower) Handle(_ context.Context, rec slog.Record) error {
	attrs := map[string]string{}
	add := func(a slog.Attr) bool { attrs[a.Key] = a.Value.String(); return true }
	for _, a := range f.attrs {
		add(a)
	}
	rec.Attrs(add)
	id := strings.TrimSuffix(attrs[logkey.Box], forkSuffix)
	guest := attrs[logkey.Guest]
	if id != "" && guest != "" { // first: the subject of a new context may not know its id yet
		f.run.guestOf.Store(id, guest)
	}
	var about *subject
	for _, s := range append(slices.Clone(f.run.subjects), f.run.busy, f.run.idle) {
		s.mu.Lock()
		if id != "" && (s.name == id || s.kind == box.KindContext && s.id == id) || id == "" && guest != "" && slices.Contains(s.guests, guest) {
			about = s
		}
		s.mu.Unlock()
	}
	if about == nil || rec.Level < slog.LevelInfo {
		return nil
	}
	if guest != "" {
		about.hasGuest(guest)
		if about.owner == "control" {
			f.run.faults.spare(guest)
		}
	}
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(attrs)) {
		if k != logkey.Kind && k != logkey.Box && k != logkey.Interpreter && k != logkey.Flavor {
			fmt.Fprintf(&b, " %s=%s", k, attrs[k])
		}
	}
	if rec.Message == "hibernated box removed" {
		fmt.Fprintf(&b, " free=%d MiB", freeMB(f.run.dir))
	}
	about.note("log: %s%s", rec.Message, b.String())
	return nil
}

// agentFile returns the agent, copied to the state directory: another test may replace the
// one that is built.
func agentFile(t testing.TB, dir string) engine.Program {
	program, err := os.ReadFile(embedtest.Program(t).Path)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "agent")
	if err := os.WriteFile(path, program, 0o755); err != nil {
		t.Fatal(err)
	}
	return engine.Program{Path: path, Args: []string{embed.Name}}
}
