package box

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/hostdisk"
	"github.com/glovebox-dev/glovebox/internal/box/fairslots"
	"github.com/glovebox-dev/glovebox/internal/box/pool"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// Manager manages the boxes of all owners. All methods may be called concurrently.
//
// It consists of
//
//   - env (env.go): what the other parts share: configuration (config.go), collaborators, log,
//     clock, and the life of the Manager's goroutines.
//   - registry (registry.go, admit.go, evict.go, state.go): which boxes are in memory, and in
//     which state; find, admit, evict. It has the lock of all boxes and the tombstones
//     (tombstone.go).
//   - lifecycle (lifecycle.go, hibernate.go, persist.go, rollback.go, stop.go): start, wake,
//     hibernate, replace and end boxes, and write those that stay in memory to disk.
//     start_error.go explains starts that fail; forget.go remembers boxes whose records go.
//   - machineFactory (machines.go, rescue.go, named.go, pool.go): the machines of boxes and of
//     the pool, and their networks (network.go). missing_image.go explains images that are gone.
//   - records (records.go, home.go): boxes and saved snapshots on disk.
//   - maintainer (maintainer.go, idle.go, pressure.go, tombstone_file.go): idle boxes, expiry,
//     memory pressure of the host, and the tombstones that servers share.
//
// Slots (package fairslots) bound the boxes that are started, written, or looked up in the fleet at once.
// volume_checks.go bounds the wait for directories of volumes that do not answer.
//
// A Box (box.go) executes: run.go, exec.go, files.go, timeout.go, and output.go with
// display.go, display_image.go, figure.go and output_budget.go for the output of a call, which
// package cleantext makes safe. It is paused by power.go while it is idle and parked by park.go (with
// deadline.go) while its code waits for the host. Package callqueue decides which calls run at once. hints.go
// (with unreachable.go), report.go and undelivered.go make the notes in its results.
//
// The Manager's own methods combine these. session.go, context.go, client.go, fork.go,
// saved_snapshot.go, stored.go, volumes.go and stop.go are the calls of clients; acquire.go
// finds or wakes their box, narrow.go limits its network, and revive.go gives a session that
// is made in place of a lost one what that had. fleet.go finds the boxes of other servers and
// adopts those of one that is gone, and fleet_limits.go applies the limits of owners to the boxes of
// all servers. types.go, flavor.go, event.go, stats.go and errors.go have
// what callers pass and get.
type Manager struct {
	*env
	reg        *registry
	life       *lifecycle
	machines   *machineFactory
	records    *records
	maintainer *maintainer
	lookups    *fairslots.Slots // of boxes that other servers may have
}

// New returns a Manager that does nothing until Start.
func New(cfg Config, parts Parts) *Manager {
	e := newEnv(cfg, parts)
	reg := newRegistry(e)
	recs := &records{env: e, writes: fairslots.New(writers()), archives: fairslots.New(writers()), released: reg.notify, ending: reg.endingRecords}
	machines := &machineFactory{
		env: e, records: recs, starts: fairslots.New(2 * runtime.GOMAXPROCS(0)),
		filling: make(chan struct{}), builds: map[pool.Class]bool{}, unbuilt: map[pool.Class]bool{},
	}
	life := &lifecycle{env: e, reg: reg, records: recs, machines: machines}
	life.maintainer = &maintainer{env: e, reg: reg, life: life, wake: make(chan struct{}, 1)}
	if parts.Snapshots != nil {
		parts.Snapshots.BeforeRemove(life.remember)
	}
	return &Manager{env: e, reg: reg, life: life, machines: machines, records: recs, maintainer: life.maintainer, lookups: fairslots.New(maxLookups)}
}

// Start validates the configuration and begins to check for idle boxes, to build the missing
// templates and to fill the pool. It does not wait for the pool: see Ready. ctx bounds the
// call.
func (m *Manager) Start(ctx context.Context) error {
	if err := m.cfg().Validate(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	m.maintainer.shareTombstones(ctx)
	m.reg.mu.Lock()
	defer m.reg.mu.Unlock()
	if m.reg.phase != phaseNew {
		return errors.New("start manager: it was started before")
	}
	m.reg.phase = phaseOpen
	m.reg.since = m.now()
	m.wg.Go(m.maintainer.run)
	m.machines.start(m.maintainer.waitForCapacity)
	return nil
}

// Reconfigure replaces limits: of boxes, owners and memory, idle and other timeouts,
// eviction and saved snapshots. They hold from now on; nothing is ended because it
// exceeds a limit. Some settings apply at the start only: the pool and
// templates with their flavor, the interval of the checks for idle boxes, and pausing. The
// error names the invalid value; then nothing has changed.
func (m *Manager) Reconfigure(cfg Config) error {
	if err := m.reconfigure(cfg); err != nil {
		return err
	}
	m.reg.notify()
	return nil
}

// Close refuses new calls with CodeNotReady, lets running ones finish until ctx
// ends, then hibernates every box, or ends it where it cannot be, and returns
// when nothing is left in memory. It returns the cause of ctx if calls were cut
// off. It may be called again.
func (m *Manager) Close(ctx context.Context) error {
	m.Leave()
	var err error
	select {
	case <-m.reg.drain():
	case <-ctx.Done():
		if n := m.reg.callsLeft(); n > 0 {
			err = fmt.Errorf("close: %d calls were cut off: %w", n, context.Cause(ctx))
		}
	}
	if disk, ok := engine.As[hostdisk.Engine](m.parts.Machines.Engine); ok {
		disk.Unreserve() // boxes can be written there
	}
	m.reg.mu.Lock()
	if m.reg.phase < phaseClosed {
		m.life.unloadAllLocked()
		m.reg.phase = phaseClosed
	}
	m.reg.mu.Unlock()
	m.end(errClosed)
	ending, cancel := context.WithTimeout(context.Background(), destroyTimeout)
	defer cancel()
	err = errors.Join(err, m.machines.close(ending))
	m.wg.Wait()
	m.maintainer.shareTombstones(context.Background())
	return err
}

// Leave announces to the other servers of the state directory that this one is stopping: their
// calls wait for its boxes. Close does so, too. It may be called again.
func (m *Manager) Leave() {
	if !m.hibernates() {
		return
	}
	if err := m.parts.Snapshots.Leave(); err != nil {
		m.log.Warn("stop not announced to other servers; their calls may not wait for the boxes of this one", logkey.Error, err)
	}
}

// Flush begins to write the boxes to disk if calls are in flight, for which a Close
// would have to wait: the caller's own parent may kill it meanwhile. It returns at
// once, and does nothing without calls or after Close.
func (m *Manager) Flush() { m.life.flush() }

// Building reports whether templates are being built.
func (m *Manager) Building() bool { return m.machines.building() }

// Ready waits until the pool is full, every machine in it verified by a run. The
// error names what cannot be made. Without a pool it returns at once.
func (m *Manager) Ready(ctx context.Context) error { return m.machines.poolReady(ctx) }

// Pool describes the pool; nil if there is none.
func (m *Manager) Pool() pool.Stats { return m.machines.poolStats() }

// Owners returns the owners of the boxes in memory, by the ids of their guests.
func (m *Manager) Owners() map[string]string {
	m.reg.mu.Lock()
	defer m.reg.mu.Unlock()
	owners := make(map[string]string, len(m.reg.boxes)+len(m.reg.freeing))
	for _, b := range m.reg.boxes {
		owners[b.guestID] = string(b.key.owner)
	}
	for b := range m.reg.freeing {
		owners[b.guestID] = string(b.key.owner)
	}
	return owners
}
