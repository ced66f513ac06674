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
)

const (
	// DefaultMaxAge is how long a member waits before it is replaced.
	DefaultMaxAge = time.Hour
	// readyAttempts is how often a class may fail before Ready gives it up: with
	// the delays between them that is a quarter of a minute, enough for what
	// passes, such as a host that is short of memory while it starts.
	readyAttempts = 5
	// aliveTimeout bounds what Take spends on one member, which answers within a
	// millisecond unless the host is in trouble.
	aliveTimeout = 5 * time.Second
	// freeTimeout bounds the waiting for the end of a machine; it takes well under
	// a second unless the host is in trouble.
	freeTimeout = 30 * time.Second
)

var errClosed = errors.New("the pool is closed")

// Class says what members are interchangeable by.
type Class struct{ Template, Flavor string }

func (c Class) String() string { return c.Template + "/" + c.Flavor }

// Config is how a pool is kept. Only Make is required.
type Config struct {
	// Size is how many members each class has; with 0 there is no pool.
	Size int
	// MaxAge is how long a member waits before it is replaced, the new one first
	// where there is room for both; until then it may still be taken if there is
	// no younger one. 0: DefaultMaxAge.
	MaxAge time.Duration
	// Make makes a new machine that has been proven by a run. After an error
	// nothing is left. ctx bounds the call. It is called by one goroutine.
	Make func(ctx context.Context, c Class) (*machine.Machine, error)
	// Yield waits until the pool may make a member without starving running
	// boxes. nil: it always may.
	Yield func(ctx context.Context) error
	// Pause has members stand still while they wait, so that they take no CPU.
	// Their engine must be able to.
	Pause bool
	Log   *slog.Logger     // nil: none
	Now   func() time.Time // nil: time.Now
}

// Pool keeps machines. All methods may be called concurrently. The owner closes
// it.
type Pool struct {
	cfg  Config
	base context.Context // of all that goes on in the background; ended by Close
	stop context.CancelCauseFunc
	wake chan struct{} // a token for the filler: there may be something to do
	done chan struct{} // closed when, after Close, nothing goes on any more

	wg sync.WaitGroup // add under mu while not closed, or as one of its goroutines

	mu       sync.Mutex
	shelves  []*shelf      // guarded by mu; in the order of Start
	turn     int           // guarded by mu; the shelf that is looked at first
	taking   int           // guarded by mu; members that are being handed out
	changed  chan struct{} // guarded by mu; closed and replaced with every change
	closed   bool          // guarded by mu
	closeErr error         // guarded by mu; what Close could not free
}

// shelf holds the members of one class. All fields but class are guarded by
// Pool.mu.
type shelf struct {
	class   Class
	members []*member // the oldest first
	making  bool
	begun   time.Time // of the first fill
	filled  bool      // it has been full

	made, handed, failed, lost int

	streak   int           // failures since it was last full
	warned   bool          // of the streak
	cause    error         // of the last failure of the streak
	delay    time.Duration // the last one
	failedAt time.Time     // when delay began
	retry    time.Time     // nothing is made before
}

// member is a machine that waits. Whoever takes it from its shelf owns it.
type member struct {
	*machine.Machine
	born   time.Time
	forget context.CancelFunc // ends the watching
}

// New returns a pool that holds nothing yet.
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

// Start begins to fill the pool, in the background, one member at a time, the
// classes in turn. It may be called once.
func (p *Pool) Start(classes []Class) {
	if p.cfg.Size <= 0 || len(classes) == 0 {
		return
	}
	var shelves []*shelf
	for i, c := range classes {
		if !slices.Contains(classes[:i], c) {
			shelves = append(shelves, &shelf{class: c, begun: p.cfg.Now()})
			p.cfg.Log.Info("pool begins to fill", "template", c.Template, "flavor", c.Flavor, "size", p.cfg.Size)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	if p.shelves != nil {
		panic("pool: started twice")
	}
	p.shelves = shelves
	p.wg.Go(p.fill)
}

// Take hands out a member of a class: alive, running, and the caller's from now
// on. It returns nil if none is ready or ctx has ended, and never waits for one
// to be made. Its place is filled again in the background.
func (p *Pool) Take(ctx context.Context, c Class) *machine.Machine {
	if !p.enter() {
		return nil
	}
	defer p.wg.Done()
	for ctx.Err() == nil {
		s, m := p.pop(c)
		if m == nil {
			return nil
		}
		err := p.revive(ctx, m.Machine)
		p.mu.Lock()
		p.taking--
		p.changeLocked()
		switch {
		case err == nil:
			s.handed++
		case ctx.Err() != nil:
			p.retire(m) // whether it runs by now is not known
		default:
			p.mournLocked(s, m, err)
		}
		p.mu.Unlock()
		if err == nil {
			return m.Machine
		}
	}
	return nil
}

// enter registers a call of a method that may start goroutines.
func (p *Pool) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.wg.Add(1)
	}
	return !p.closed
}

// pop takes the oldest member that is not too old off its shelf; if all are,
// the oldest.
func (p *Pool) pop(c Class) (*shelf, *member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.shelfLocked(c)
	if s == nil || len(s.members) == 0 {
		return nil, nil
	}
	p.taking++
	now := p.cfg.Now()
	young := func(m *member) bool { return now.Sub(m.born) < p.cfg.MaxAge }
	return s, p.removeLocked(s, max(0, slices.IndexFunc(s.members, young)))
}

// revive lets a member go on and has it answer.
func (p *Pool) revive(ctx context.Context, m *machine.Machine) error {
	ctx, cancel := context.WithTimeoutCause(ctx, aliveTimeout, fmt.Errorf("no answer within %s", aliveTimeout))
	defer cancel()
	if p.cfg.Pause {
		if err := m.Resume(ctx); err != nil {
			return err
		}
	}
	// An operation waits for its answer even after ctx: without a link it does not.
	stop := context.AfterFunc(ctx, func() { m.Agent.Close() })
	_, err := m.Agent.Ping(ctx)
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("ask for a sign of life: %w", err)
	}
	return nil
}

// Ready waits until every class is full; members that were taken meanwhile
// count. If one fails again and again, with growing delays, Ready gives it up and
// returns, once all others are full or given up too, an error that names each
// such class and its last cause. The pool itself goes on trying.
func (p *Pool) Ready(ctx context.Context) error {
	for {
		p.mu.Lock()
		closed, changed := p.closed, p.changed
		var waiting, failed []error
		for _, s := range p.shelves {
			switch {
			case len(s.members)+s.handed >= p.cfg.Size:
			case s.streak >= readyAttempts:
				failed = append(failed, fmt.Errorf("fill the pool of %s: %d attempts failed: %w", s.class, s.streak, s.cause))
			default:
				waiting = append(waiting, s.unfinished(p.cfg.Size))
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

// unfinished says what is missing and, if that is known, why.
func (s *shelf) unfinished(size int) error {
	err := fmt.Errorf("%s has %d of %d members", s.class, len(s.members)+s.handed, size)
	if s.cause != nil {
		err = fmt.Errorf("%w: %w", err, s.cause)
	}
	return err
}

// Trim ends up to n members because their memory is wanted, the oldest of the
// fullest class each time, and returns how many are gone; ctx bounds the waiting.
// They are made anew when Yield lets.
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

func (p *Pool) popFullest() *member {
	p.mu.Lock()
	defer p.mu.Unlock()
	var fullest *shelf
	for _, s := range p.shelves {
		if len(s.members) > 0 && (fullest == nil || len(s.members) > len(fullest.members)) {
			fullest = s
		}
	}
	if fullest == nil {
		return nil
	}
	return p.removeLocked(fullest, 0)
}

// Stats says how each class is, in the order of Start.
type Stats []ClassStats

// ClassStats says how one class is. The counts are since Start.
type ClassStats struct {
	Class  Class
	Wanted int // members
	Ready  int // members that wait
	Making int // members that are being made

	Made      int // members that were ready
	HandedOut int // members that were taken
	Failed    int // attempts to make one that failed
	Lost      int // members that ended while they waited

	LastError error         // of what has failed since the class was last full
	Oldest    time.Duration // how long the oldest member has waited
}

// Of returns how a class is; the zero ClassStats if there is no such.
func (s Stats) Of(c Class) ClassStats {
	if i := slices.IndexFunc(s, func(cs ClassStats) bool { return cs.Class == c }); i >= 0 {
		return s[i]
	}
	return ClassStats{Class: c}
}

// Stats says how the pool is.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.cfg.Now()
	var all Stats
	for _, s := range p.shelves {
		cs := ClassStats{
			Class: s.class, Wanted: p.cfg.Size, Ready: len(s.members),
			Made: s.made, HandedOut: s.handed, Failed: s.failed, Lost: s.lost, LastError: s.cause,
		}
		if s.making {
			cs.Making = 1
		}
		if len(s.members) > 0 {
			cs.Oldest = now.Sub(s.members[0].born)
		}
		all = append(all, cs)
	}
	return all
}

// Close stops the filling, ends all members and returns when nothing is left;
// ctx bounds the waiting. Take returns nil from then on. Close may be called
// again.
func (p *Pool) Close(ctx context.Context) error {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		p.stop(errClosed)
		for _, s := range p.shelves {
			for len(s.members) > 0 {
				p.freeLocked(p.removeLocked(s, 0).Machine)
			}
		}
		p.changeLocked()
		go func() { // ends with the last of the others
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

func (p *Pool) shelfLocked(c Class) *shelf {
	for _, s := range p.shelves {
		if s.class == c {
			return s
		}
	}
	return nil
}

// removeLocked takes a member off its shelf.
func (p *Pool) removeLocked(s *shelf, i int) *member {
	m := s.members[i]
	s.members = slices.Delete(s.members, i, i+1)
	m.forget()
	p.changeLocked()
	return m
}

// changeLocked tells those who wait.
func (p *Pool) changeLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
	select {
	case p.wake <- struct{}{}:
	default: // the filler has not yet heard of an earlier change
	}
}

// retire ends a member that is on no shelf, in the background; the channel gets
// the error.
func (p *Pool) retire(m *member) <-chan error {
	done := make(chan error, 1)
	p.wg.Go(func() {
		err := p.free(m.Machine)
		if err != nil {
			p.cfg.Log.Error("pool member was not freed", "sandbox", m.ID, "err", err)
		}
		done <- err
	})
	return done
}

// freeLocked ends a machine, in the background, because the pool is closed.
func (p *Pool) freeLocked(m *machine.Machine) {
	p.wg.Go(func() {
		err := p.free(m)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.closeErr = errors.Join(p.closeErr, err)
	})
}

// free ends a machine, even while the pool is being closed.
func (p *Pool) free(m *machine.Machine) error {
	ctx, cancel := context.WithTimeout(context.Background(), freeTimeout)
	defer cancel()
	return m.Close(ctx)
}
