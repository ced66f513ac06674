package box

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/box/pool"
)

// Manager keeps the boxes of all owners. All methods may be called concurrently.
type Manager struct {
	current atomic.Pointer[Config] // what it points to never changes
	parts   Parts
	log     *slog.Logger
	now     func() time.Time
	// answerGrace and kernelStart are the constants but in tests.
	answerGrace, kernelStart time.Duration

	base context.Context // of everything the Manager's goroutines do
	end  context.CancelCauseFunc
	wg   sync.WaitGroup // added to only while phase is not closed, or by a goroutine in it

	pool       *pool.Pool          // nil: none; set by Start
	filling    chan struct{}       // closed when the pool has begun to fill
	starts     *semaphore.Weighted // boxes that are made at once
	writes     *semaphore.Weighted // boxes that are written to disk at once
	wakeReaper chan struct{}       // has a token when nextCheck is earlier than reap knows
	starting   atomic.Int32        // boxes that are being made, those that wait included

	mu         sync.Mutex
	phase      phase               // guarded by mu
	boxes      map[key]*Box        // guarded by mu; creating or ready
	leaving    map[*Box]struct{}   // guarded by mu; ended, but still holding resources
	tombstones *tombstones         // guarded by mu
	uses       uint64              // guarded by mu; orders boxes by use, whatever the clock does
	drained    chan struct{}       // guarded by mu; not nil while draining; closed when no call is left
	since      time.Time           // guarded by mu; when Start was called
	started    int64               // guarded by mu; boxes made
	builds     map[pool.Class]bool // guarded by mu; templates that are being built
	unbuilt    map[pool.Class]bool // guarded by mu; templates that could not be built the last time
	ended      map[Reason]int64    // guarded by mu
	evicted    int64               // guarded by mu; boxes that made room, hibernated or ended
	nextCheck  time.Time           // guarded by mu; when reap calls checkIdle again
	earlyBusy  bool                // guarded by mu; a new box is being written for the first time
	earlyNext  time.Time           // guarded by mu; when the next new box may be
	apart      bool                // guarded by mu; tombstones could not be shared the last time
}

type phase uint8

const (
	phaseNew phase = iota
	phaseOpen
	phaseDraining
	phaseClosed
)

var errClosed = errors.New("the server is closing")

// New returns a Manager that does nothing until Start.
func New(cfg Config, parts Parts) *Manager {
	m := &Manager{
		parts: parts, log: parts.Log, now: parts.Now,
		answerGrace: answerGrace, kernelStart: kernelStart,
		boxes: map[key]*Box{}, leaving: map[*Box]struct{}{}, ended: map[Reason]int64{},
	}
	m.current.Store(&cfg)
	if parts.Machines == nil {
		m.parts.Machines = &machine.Maker{}
	}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	if m.now == nil {
		m.now = time.Now
	}
	m.tombstones = newTombstones(m.now)
	m.starts = semaphore.NewWeighted(int64(2 * runtime.GOMAXPROCS(0)))
	m.writes = semaphore.NewWeighted(writers())
	m.wakeReaper = make(chan struct{}, 1)
	m.builds, m.unbuilt = map[pool.Class]bool{}, map[pool.Class]bool{}
	m.filling = make(chan struct{})
	m.base, m.end = context.WithCancelCause(context.Background())
	return m
}

// cfg is the configuration now; the caller does not change it.
func (m *Manager) cfg() *Config { return m.current.Load() }

// Reconfigure sets limits anew: of boxes, owners and memory, idle and other
// times, eviction and kept snapshots. They hold for what comes; nothing is ended
// because a limit fell below what there is. What was prepared at the start stays
// as it was: the pool and templates with their flavor, how often boxes are looked
// at, and pausing. The error names what makes no sense; then nothing has changed.
func (m *Manager) Reconfigure(cfg Config) error {
	old := m.cfg()
	cfg.PoolSize, cfg.PoolMaxAge, cfg.Preload, cfg.DefaultFlavor = old.PoolSize, old.PoolMaxAge, old.Preload, old.DefaultFlavor
	cfg.CleanupInterval, cfg.PauseAfter, cfg.QueueLen, cfg.ParallelCalls = old.CleanupInterval, old.PauseAfter, old.QueueLen, old.ParallelCalls
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("reconfigure boxes: %w", err)
	}
	m.current.Store(&cfg)
	return nil
}

// Start validates the configuration and begins to look for idle boxes, to build
// the templates that are missing and to fill the pool. It waits for none of it:
// see Ready. ctx bounds the call.
func (m *Manager) Start(ctx context.Context) error {
	if err := m.cfg().Validate(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	m.shareTombstones(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.phase != phaseNew {
		return errors.New("start manager: it was started before")
	}
	m.phase = phaseOpen
	m.since = m.now()
	m.wg.Go(m.reap)
	m.startPool()
	return nil
}

// Close refuses new calls with CodeNotReady, lets running ones finish until ctx
// ends, then hibernates every box, or ends it where it cannot be, and returns
// when nothing is left in memory. It returns the cause of ctx if calls were cut
// off. It may be called again.
func (m *Manager) Close(ctx context.Context) error {
	m.mu.Lock()
	if m.phase < phaseDraining {
		m.phase = phaseDraining
	}
	if m.drained == nil {
		m.drained = make(chan struct{})
		m.signalDrainedLocked()
	}
	drained := m.drained
	m.mu.Unlock()

	var err error
	select {
	case <-drained:
	case <-ctx.Done():
		m.mu.Lock()
		if n := m.callsLocked(); n > 0 && m.phase < phaseClosed {
			err = fmt.Errorf("close: %d calls were cut off: %w", n, context.Cause(ctx))
		}
		m.mu.Unlock()
	}

	m.mu.Lock()
	if m.phase < phaseClosed {
		m.unloadAllLocked()
		m.phase = phaseClosed
	}
	m.mu.Unlock()
	m.end(errClosed)
	if m.pool != nil {
		ending, cancel := context.WithTimeout(context.Background(), destroyTimeout)
		defer cancel()
		err = errors.Join(err, m.pool.Close(ending))
	}
	m.wg.Wait()
	m.shareTombstones(context.Background())
	return err
}

// Flush begins to write the boxes to disk if calls are under way, for which a Close
// would have to wait: whoever is about to end the server may kill it meanwhile. It
// returns at once, and does nothing without calls or after Close.
func (m *Manager) Flush() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.hibernates() || m.phase == phaseClosed || m.callsLocked() == 0 {
		return
	}
	boxes := m.lastUsedLocked()
	m.wg.Go(func() {
		m.eachInOrder(m.base, boxes, func(s *Box) { m.writeLive(s) })
	})
}

// unloadAllLocked takes all boxes out of memory. The one used last goes first: a
// client that ends its server may kill it a second later.
func (m *Manager) unloadAllLocked() {
	boxes := m.lastUsedLocked()
	boxes = slices.DeleteFunc(boxes, func(s *Box) bool { return !m.beginUnloadLocked(s, ReasonShutdown, "") })
	m.wg.Go(func() {
		m.eachInOrder(context.Background(), boxes, func(s *Box) { m.hibernate(s, ReasonShutdown, "") })
	})
}

// lastUsedLocked returns the boxes, the last used first.
func (m *Manager) lastUsedLocked() []*Box {
	return slices.SortedFunc(maps.Values(m.boxes), func(a, b *Box) int { return cmp.Compare(b.use, a.use) })
}

// eachInOrder calls do for each box, in this order and as many at once as may be written
// to disk. It returns when all have begun, or ctx ends.
func (m *Manager) eachInOrder(ctx context.Context, boxes []*Box, do func(*Box)) {
	for _, s := range boxes {
		if m.writes.Acquire(ctx, 1) != nil {
			return
		}
		m.wg.Go(func() {
			defer m.writes.Release(1)
			do(s)
		})
	}
}

// callsLocked counts the calls that are under way or about to be.
func (m *Manager) callsLocked() int {
	n := 0
	for _, s := range m.boxes {
		n += s.calls + len(s.pins)
	}
	return n
}

// signalDrainedLocked tells Close when no call is left. Whoever ends a call calls it.
func (m *Manager) signalDrainedLocked() {
	if m.drained == nil || m.callsLocked() > 0 {
		return
	}
	select {
	case <-m.drained:
	default:
		close(m.drained)
	}
}

// openLocked returns an error unless new calls are welcome.
func (m *Manager) openLocked(op string) error {
	switch m.phase {
	case phaseOpen:
		return nil
	case phaseNew:
		return &Error{Code: CodeNotReady, Op: op, Msg: "The server is not ready: it has not started yet", Hint: "Try again in a moment."}
	}
	return &Error{Code: CodeNotReady, Op: op, Msg: "The server is not ready: it is shutting down"}
}

// List lists the boxes of an owner, living and hibernated, the newest first.
// An empty kind means both.
func (m *Manager) List(owner Owner, kind Kind) []Info {
	records := m.hibernatedRecords(owner, kind)
	m.mu.Lock()
	defer m.mu.Unlock()
	var infos []Info
	for k, s := range m.boxes {
		if k.owner == owner && (kind == "" || k.kind == kind) && (m.hibernates() || !m.expiredLocked(s)) {
			infos = append(infos, s.infoLocked())
		}
	}
	known := make(map[key]bool, len(records))
	for s := range m.leaving {
		if s.key.owner == owner && (kind == "" || s.key.kind == kind) && s.recordStays && m.boxes[s.key] == nil {
			known[s.key] = true
			i := s.infoLocked()
			i.State = StateHibernated
			infos = append(infos, i)
		}
	}
	for i := range records {
		r := &records[i]
		if k := (key{Owner(r.Owner), Kind(r.Kind), r.BoxID}); m.boxes[k] == nil && !known[k] {
			known[k] = true
			infos = append(infos, infoOfRecord(r))
		}
	}
	slices.SortFunc(infos, func(a, b Info) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID))
	})
	return infos
}

// Volumes returns the host directories that are in every box.
func (m *Manager) Volumes() []engine.Mount { return slices.Clone(m.parts.Machines.Volumes) }

// Stats counts what is there.
func (m *Manager) Stats() Stats {
	disk := m.diskUse()
	m.mu.Lock()
	defer m.mu.Unlock()
	st := Stats{
		States: map[State]int{}, Flavors: map[Flavor]int{}, Ended: map[Reason]int64{},
		MaxSessions: m.cfg().MaxSessions, MaxContexts: m.cfg().MaxContexts, MaxMemoryMB: m.cfg().MaxTotalMemoryMB,
		Started: m.started, Starting: int(m.starting.Load()), Evicted: m.evicted,
		Boxes: disk.asleep, Snapshots: disk.kept, DiskBytes: disk.bytes,
	}
	for _, n := range disk.asleep {
		st.Hibernated += n
	}
	if m.phase != phaseNew {
		st.Uptime = m.now().Sub(m.since)
	}
	for r, n := range m.ended {
		st.Ended[r] = n
	}
	for k, s := range m.boxes {
		st.States[s.stateLocked()]++
		st.Boxes[Class{s.stateLocked(), k.kind, s.flavor}]++
		st.Flavors[s.flavor]++
		if k.kind == KindSession {
			st.Sessions++
		} else {
			st.Contexts++
		}
		l := s.flavor.Limits()
		st.MemoryMB += l.MemoryMB
		st.CPUs += l.CPUs
		queued := s.slots.waiting()
		for _, k := range s.kernels {
			queued += k.runs.waiting()
		}
		st.Queued += queued
		st.Running += s.calls - queued
	}
	return st
}
