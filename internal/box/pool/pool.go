package pool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// DefaultMaxAge is the age at which a waiting instance is replaced.
	DefaultMaxAge = time.Hour
	// readyAttempts is the number of failures in a row after which Ready gives up
	// on a class. With the backoff between them it takes 15 s, enough for
	// transient causes such as a host that is short of memory while it boots.
	readyAttempts = 5
	// aliveTimeout bounds the liveness check of one instance in Take. A healthy
	// instance answers within a millisecond.
	aliveTimeout = 5 * time.Second
	// freeTimeout bounds the wait for a machine to end, which normally takes well
	// under a second.
	freeTimeout = 30 * time.Second
)

var errClosed = errors.New("the pool is closed")

// Class identifies interchangeable instances: of the same interpreter and flavor.
type Class struct{ Interpreter, Flavor string }

func (c Class) String() string { return c.Interpreter + "/" + c.Flavor }

// Config configures a Pool. Only Make is required.
type Config struct {
	// Size is the number of instances of each class; 0 disables the pool.
	Size int
	// MaxAge is the age at which a waiting instance is replaced. The replacement
	// is created first if there is room for both. Take still returns an older
	// instance if there is no younger one. 0: DefaultMaxAge.
	MaxAge time.Duration
	// Make creates a machine and verifies it with a run. It must clean up after an
	// error. ctx bounds the call. One goroutine calls it.
	Make func(ctx context.Context, c Class) (*machine.Machine, error)
	// Yield blocks until the pool may create an instance without starving running
	// boxes. nil: no limit.
	Yield func(ctx context.Context) error
	// Pause pauses waiting instances so that they use no CPU. The engine must
	// support it.
	Pause bool
	Log   *slog.Logger     // nil: none
	Now   func() time.Time // nil: time.Now
}

// Pool keeps verified machines ready. All methods may be called concurrently. The
// owner must call Close.
type Pool struct {
	cfg  Config
	base context.Context // of background work; canceled by Close
	stop context.CancelCauseFunc
	wake chan struct{} // wakes the filler; capacity 1
	done chan struct{} // closed after Close, when all background work has ended

	wg sync.WaitGroup // Add only under mu while not closed, or from one of its goroutines

	mu       sync.Mutex
	classes  []*class      // guarded by mu; in the order of Start
	turn     int           // guarded by mu; index of the class to consider first
	taking   int           // guarded by mu; Take calls that check an instance
	changed  chan struct{} // guarded by mu; closed and replaced on every change
	closed   bool          // guarded by mu
	closeErr error         // guarded by mu; errors of freeing machines after Close
}

// class is the state of one Class. Pool.mu guards all fields but id.
type class struct {
	id     Class
	ready  []*instance // oldest first
	making bool
	begun  time.Time // start of the first fill
	filled bool      // was full at least once

	made, handed, failed, lost int

	streak   int           // failures since the class was last full
	warned   bool          // the streak was logged
	cause    error         // of the streak's last failure
	delay    time.Duration // current backoff
	failedAt time.Time     // when delay was set
	retry    time.Time     // no attempt before
}

// instance is a waiting machine. Removing it from class.ready transfers ownership.
type instance struct {
	*machine.Machine
	born    time.Time
	unwatch context.CancelFunc
}

// New returns an empty pool.
func New(cfg Config) *Pool {
	if cfg.MaxAge <= 0 {
		cfg.MaxAge = DefaultMaxAge
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	p := &Pool{cfg: cfg, wake: make(chan struct{}, 1), done: make(chan struct{}), changed: make(chan struct{})}
	p.base, p.stop = context.WithCancelCause(context.Background())
	return p
}

// Start fills the pool in the background, one instance at a time, alternating
// between classes. Start must be called at most once.
func (p *Pool) Start(ids []Class) {
	if p.cfg.Size <= 0 || len(ids) == 0 {
		return
	}
	var classes []*class
	for i, id := range ids {
		if !slices.Contains(ids[:i], id) {
			classes = append(classes, &class{id: id, begun: p.cfg.Now()})
			p.cfg.Log.Info("pool begins to fill", logkey.Interpreter, id.Interpreter, logkey.Flavor, id.Flavor, logkey.Size, p.cfg.Size)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	if p.classes != nil {
		panic("pool: started twice")
	}
	p.classes = classes
	p.wg.Go(p.fill)
}

// Take returns a live, running machine of a class and transfers ownership to the
// caller. It returns nil if none is ready or ctx is done, and never waits for one
// to be created. The pool refills in the background.
func (p *Pool) Take(ctx context.Context, id Class) *machine.Machine {
	if !p.enter() {
		return nil
	}
	defer p.wg.Done()
	for ctx.Err() == nil {
		c, m := p.pop(id)
		if m == nil {
			return nil
		}
		err := p.resume(ctx, m.Machine)
		p.mu.Lock()
		p.taking--
		p.changeLocked()
		switch {
		case err == nil:
			c.handed++
		case ctx.Err() != nil:
			p.retire(m) // it may be running or paused
		default:
			p.recordLossLocked(c, m, err)
		}
		p.mu.Unlock()
		if err == nil {
			return m.Machine
		}
	}
	return nil
}

// enter registers a call that may start goroutines; false: the pool is closed.
func (p *Pool) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.wg.Add(1)
	}
	return !p.closed
}

// pop removes and returns the oldest instance younger than MaxAge; if there is
// none, the oldest.
func (p *Pool) pop(id Class) (*class, *instance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.classLocked(id)
	if c == nil || len(c.ready) == 0 {
		return nil, nil
	}
	p.taking++
	now := p.cfg.Now()
	young := func(m *instance) bool { return now.Sub(m.born) < p.cfg.MaxAge }
	return c, p.removeLocked(c, max(0, slices.IndexFunc(c.ready, young)))
}

// resume resumes a machine and checks that its agent answers.
func (p *Pool) resume(ctx context.Context, m *machine.Machine) error {
	ctx, cancel := context.WithTimeoutCause(ctx, aliveTimeout, fmt.Errorf("no answer within %s", aliveTimeout))
	defer cancel()
	if p.cfg.Pause {
		if err := m.Resume(ctx); err != nil {
			return err
		}
	}
	// Ping waits for its answer even after ctx is done, unless the connection closes.
	stop := context.AfterFunc(ctx, func() { m.Agent.Close() })
	_, err := m.Agent.Ping(ctx)
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("ping instance: %w", err)
	}
	return nil
}

// Ready waits until every class is full; instances taken meanwhile count. It gives
// up on a class after five failures in a row. Once all classes are full or given
// up, it returns an error with each failed class and its last cause. The pool
// itself continues to retry.
func (p *Pool) Ready(ctx context.Context) error {
	for {
		p.mu.Lock()
		closed, changed := p.closed, p.changed
		var waiting, failed []error
		for _, c := range p.classes {
			switch {
			case len(c.ready)+c.handed >= p.cfg.Size:
			case c.streak >= readyAttempts:
				failed = append(failed, fmt.Errorf("fill the pool of %s: %d attempts failed: %w", c.id, c.streak, c.cause))
			default:
				waiting = append(waiting, c.shortError(p.cfg.Size))
			}
		}
		p.mu.Unlock()
		if closed {
			return fmt.Errorf("fill the pool: %w", errClosed)
		}
		if len(waiting) == 0 {
			return errors.Join(failed...)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("fill the pool: %w: %w", context.Cause(ctx), errors.Join(append(failed, waiting...)...))
		}
	}
}

// shortError reports how many instances are missing and the last failure, if any.
func (c *class) shortError(size int) error {
	err := fmt.Errorf("%s has %d of %d instances", c.id, len(c.ready)+c.handed, size)
	if c.cause != nil {
		err = fmt.Errorf("%w: %w", err, c.cause)
	}
	return err
}

// Trim ends up to n instances to free memory, each time the oldest of the fullest
// class, and returns how many ended; ctx bounds the wait. The pool creates new
// ones when Yield permits.
func (p *Pool) Trim(ctx context.Context, n int) int {
	if !p.enter() {
		return 0
	}
	defer p.wg.Done()
	var gone []<-chan error
	for range n {
		m := p.popFullest()
		if m == nil {
			break
		}
		gone = append(gone, p.retire(m))
	}
	freed := 0
	for _, g := range gone {
		select {
		case err := <-g:
			if err == nil {
				freed++
			}
		case <-ctx.Done():
			return freed
		}
	}
	return freed
}

func (p *Pool) popFullest() *instance {
	p.mu.Lock()
	defer p.mu.Unlock()
	var fullest *class
	for _, c := range p.classes {
		if len(c.ready) > 0 && (fullest == nil || len(c.ready) > len(fullest.ready)) {
			fullest = c
		}
	}
	if fullest == nil {
		return nil
	}
	return p.removeLocked(fullest, 0)
}

// Stats are the statistics of all classes, in the order of Start.
type Stats []ClassStats

// ClassStats are the statistics of one class. Counters start at Start.
type ClassStats struct {
	Class  Class
	Wanted int // configured number of instances
	Ready  int // waiting instances
	Making int // instances being created

	Made      int // instances that became ready
	HandedOut int // instances returned by Take
	Failed    int // failed attempts to create one
	Lost      int // instances that ended while they waited

	LastError error         // last failure since the class was last full
	Oldest    time.Duration // age of the oldest waiting instance
}

// Of returns the statistics of a class, zero for an unknown one.
func (s Stats) Of(c Class) ClassStats {
	if i := slices.IndexFunc(s, func(cs ClassStats) bool { return cs.Class == c }); i >= 0 {
		return s[i]
	}
	return ClassStats{Class: c}
}

// Stats returns a snapshot of the pool's statistics.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.cfg.Now()
	var all Stats
	for _, c := range p.classes {
		cs := ClassStats{
			Class: c.id, Wanted: p.cfg.Size, Ready: len(c.ready),
			Made: c.made, HandedOut: c.handed, Failed: c.failed, Lost: c.lost, LastError: c.cause,
		}
		if c.making {
			cs.Making = 1
		}
		if len(c.ready) > 0 {
			cs.Oldest = now.Sub(c.ready[0].born)
		}
		all = append(all, cs)
	}
	return all
}

// Close stops filling, ends all instances and waits for them; ctx bounds the wait.
// Take returns nil from then on. Close may be called more than once.
func (p *Pool) Close(ctx context.Context) error {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		p.stop(errClosed)
		for _, c := range p.classes {
			for len(c.ready) > 0 {
				p.freeLocked(p.removeLocked(c, 0).Machine)
			}
		}
		p.changeLocked()
		go func() { // ends with the last goroutine of wg
			p.wg.Wait()
			close(p.done)
		}()
	}
	p.mu.Unlock()
	select {
	case <-p.done:
	case <-ctx.Done():
		return fmt.Errorf("close the pool: %w", context.Cause(ctx))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closeErr
}

func (p *Pool) classLocked(id Class) *class {
	for _, c := range p.classes {
		if c.id == id {
			return c
		}
	}
	return nil
}

// removeLocked removes the i-th instance of a class and stops watching it.
func (p *Pool) removeLocked(c *class, i int) *instance {
	m := c.ready[i]
	c.ready = slices.Delete(c.ready, i, i+1)
	m.unwatch()
	p.changeLocked()
	return m
}

// changeLocked wakes the filler and every waiter on changed.
func (p *Pool) changeLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
	select {
	case p.wake <- struct{}{}:
	default: // a wake-up is already pending
	}
}

// retire ends a removed instance in the background; the channel receives the
// result.
func (p *Pool) retire(m *instance) <-chan error {
	done := make(chan error, 1)
	p.wg.Go(func() {
		err := p.free(m.Machine)
		if err != nil {
			p.cfg.Log.Error("pool instance was not freed", logkey.Guest, m.ID, logkey.Error, err)
		}
		done <- err
	})
	return done
}

// freeLocked ends a machine in the background after Close, which reports its error.
func (p *Pool) freeLocked(m *machine.Machine) {
	p.wg.Go(func() {
		err := p.free(m)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.closeErr = errors.Join(p.closeErr, err)
	})
}

// free ends a machine, also while the pool closes.
func (p *Pool) free(m *machine.Machine) error {
	ctx, cancel := context.WithTimeout(context.Background(), freeTimeout)
	defer cancel()
	return m.Close(ctx)
}
