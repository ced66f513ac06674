package box

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/hostdisk"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/visible"
)

const (
	// destroyTimeout bounds the wait for an engine to free a guest; it takes well
	// under a second unless the host is in trouble.
	destroyTimeout = 30 * time.Second
	// exitWait is how long the engine has to report why a guest ended once the
	// connection to its agent is lost. Reaping and reading the cgroup's counters
	// takes milliseconds.
	exitWait = 2 * time.Second
)

var (
	errEnded     = errors.New("the box has ended")
	errAbandoned = errors.New("no caller waits for it any more")
	// errIDTaken ends the start of a box whose id another server has given to a box
	// at the same time. Each of the two makes its record first and looks for the
	// other's then, so that at most one of them goes on.
	errIDTaken = errors.New("another server has a box of that id")
)

// lifecycle starts boxes, watches them, takes them out of memory and ends them.
type lifecycle struct {
	*env
	reg        *registry
	records    *records
	machines   *machineFactory
	maintainer *maintainer
}

// admit enters a new box into the registry, begins its start and pins it for the
// caller.
func (l *lifecycle) admit(ctx context.Context, op string, sp spec) (*Box, Hold, error) {
	b := l.newBox(sp)
	l.reg.mu.Lock()
	defer l.reg.mu.Unlock()
	if ctx.Err() != nil {
		return nil, Hold{}, cancelled(op, b.key, context.Cause(ctx))
	}
	if err := l.reg.openLocked(op); err != nil {
		return nil, Hold{}, err
	}
	if l.reg.boxes[b.key] != nil || l.reg.returningLocked(b.key) != nil {
		return nil, Hold{}, idTaken(op, b.key.id)
	}
	if err := l.admitLocked(op, b); err != nil {
		return nil, Hold{}, err
	}
	return b, Hold{Created: true, pin: l.reg.pinLocked(ctx, b, false)}, nil
}

// admitLocked reserves room for a box and begins its start. At a limit, it evicts
// idle boxes; see registry.limitVictimsLocked. If that is not enough, or eviction
// is off, nothing is evicted and the error is CodeLimit.
func (l *lifecycle) admitLocked(op string, b *Box) error {
	// A restored or forked box may have another image than new ones. Sessions of an image
	// without any interpreter run commands; the run of code reports what is missing.
	have := l.parts.Machines.Interpreters
	if b.origin == (origin{}) && have[b.interpreter.Language()] == "" && (len(have) > 0 || b.key.kind != KindSession) {
		return noInterpreter(op, b.interpreter.Language(), "server", have)
	}
	if err := l.inheritNetLimitsLocked(op, b); err != nil {
		return err
	}
	if err := l.evictLocked(op, b, nil); err != nil {
		return err
	}
	l.reg.touchLocked(b)
	if b.state == stateHibernated {
		l.reg.setState(b, stateWaking)
	} else {
		l.reg.setState(b, stateStarting)
	}
	l.reg.waitForRoomLocked(b)
	l.wg.Go(func() { l.start(op, b) })
	return nil
}

// start starts a box of the registry and wakes its waiters. It runs in a
// goroutine of the Manager.
func (l *lifecycle) start(op string, b *Box) {
	begun := time.Now()
	timeout := fmt.Errorf("timeout: the box did not start within %s", span(l.cfg().StartTimeout))
	ctx, cancel := context.WithTimeoutCause(b.startCtx, l.cfg().StartTimeout, timeout)
	defer cancel()
	defer b.cancelStart(nil)

	made, err := l.makeMachine(ctx, op, b, nil)
	if err == nil && made.lease == nil {
		made.lease = l.records.create(b)
		if b.chosen {
			var elsewhere bool
			if elsewhere, err = l.records.leasedElsewhere(op, b.key); elsewhere {
				err = errIDTaken
			}
		}
	}
	if err == nil && b.origin.adopted == nil {
		err = l.recordInFleet(ctx, op, b, made.machine.ID, false)
	}
	made.noteData(b)
	l.reg.mu.Lock()
	if err == nil && !b.state.live() {
		err = errAbandoned
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		l.publishLocked(b, made)
		l.reg.mu.Unlock()
		l.observe(b, EventStart, made.source, time.Since(begun), false)
		log := l.log
		if b.template != "" {
			log = log.With(logkey.Template, b.template)
		}
		log.Info("box started", logkey.Guest, b.guestID, logkey.Kind, b.key.kind, logkey.Box, b.key.id,
			logkey.Interpreter, b.interpreter, logkey.Flavor, b.flavor, logkey.Source, made.source, logkey.Took, time.Since(begun).Round(time.Millisecond))
		return
	}
	tomb, refused := b.tomb, CodeOf(err) == CodeLimit || CodeOf(err) == CodeBusy
	b.startErr = l.startErrorLocked(op, b, err)
	if b.state.live() {
		l.reg.setState(b, stateEnding)
	}
	l.reg.mu.Unlock()

	if tomb == nil && !refused && !errors.Is(err, errAbandoned) && !errors.Is(err, errClosed) && !errors.Is(err, errIDTaken) {
		l.observe(b, EventStart, made.source, time.Since(begun), true)
		l.log.Error("box did not start", logkey.Guest, b.guestID, logkey.Kind, b.key.kind, logkey.Box, b.key.id, logkey.Source, made.source, logkey.Error, err)
	}
	if made.machine != nil {
		if b.origin.adopted != nil && (tomb == nil || tomb.Reason == ReasonShutdown) {
			l.handOver(made)
		} else {
			l.discardMachine(made)
		}
	}
	// The record of a box that was being woken stays for the next call, unless its
	// owner stopped it.
	hibernated := made.lease != nil && made.hasData && (tomb == nil || tomb.Reason != ReasonStopped)
	if hibernated {
		l.records.notWoken(made.lease, b.origin.stale)
	}
	if made.lease != nil {
		l.records.release(made.lease, hibernated)
	}
	l.unloadEnded(b, hibernated)
}

// makeMachine makes the machine of a box, which takes the place of replaced unless that is nil,
// once there is room for it.
func (l *lifecycle) makeMachine(ctx context.Context, op string, b, replaced *Box) (startedMachine, error) {
	if err := l.awaitRoom(ctx, op, b, replaced); err != nil {
		return startedMachine{lease: b.origin.record}, err
	}
	var claimed diskClaim
	for evictions := 0; ; {
		made, err := l.machines.make(ctx, b)
		switch {
		case !errors.Is(err, hostdisk.ErrFull):
			return made, err
		case l.trimPool(ctx):
		case evictions < diskEvictions && l.evictForDisk(ctx, b, err):
			evictions++
		case l.claimBorrowed(ctx, b, err, &claimed):
		default:
			return made, err
		}
	}
}

// awaitRoom waits until there is room for the machine of b, which is waiting: at a limit,
// until boxes that were evicted, for b or others, have left memory.
func (l *lifecycle) awaitRoom(ctx context.Context, op string, b, replaced *Box) error {
	l.reg.mu.Lock()
	defer l.reg.mu.Unlock()
	defer func() {
		if b.waits {
			b.waits = false
			l.reg.waiting = slices.DeleteFunc(l.reg.waiting, func(o *Box) bool { return o == b })
		}
	}()
	for {
		l.reg.grantRoomLocked()
		if !b.waits {
			return nil
		}
		// A box that was evicted may stay since it could not be written to disk. Then
		// others are evicted.
		live := l.reg.liveUsageLocked()
		if live.exceeds(l.cfg(), b.key.kind) || l.reg.exceedsOwnLocked(live, b) {
			if err := l.evictLocked(op, b, replaced); err != nil {
				return err
			}
		}
		if err := l.reg.waitChangeLocked(ctx); err != nil {
			return err
		}
	}
}

func (l *lifecycle) countStarting(n int) {
	l.reg.mu.Lock()
	defer l.reg.mu.Unlock()
	l.reg.starting += n
	if l.reg.starting == 0 {
		l.reg.changed.broadcast()
		l.maintainer.checkInLocked(0) // new boxes are not written while others are made
	}
}

// publishLocked makes a box and its machine available to calls.
func (l *lifecycle) publishLocked(b *Box, made startedMachine) {
	b.startedMachine, b.guestID = made, made.machine.ID
	if b.report != nil && b.report.Woken != nil && made.rescued != nil {
		b.report.Woken.Rescued = made.rescued // no hold has it yet
	}
	b.disk.writtenAt, b.disk.bytes = l.now(), made.bytes
	if made.source == SourceWoken && !b.origin.stale {
		b.disk.memorySeq, b.disk.filesSeq = b.use.seq, b.use.seq
	}
	l.reg.started++
	l.reg.tombstones.remove(b.key)
	l.reg.setState(b, stateReady)
	l.wg.Go(func() { l.watchGuest(b) })
	l.wg.Go(func() { l.watchAgent(b) })
}

// endedForDisk begins the detail of ReasonDisk.
const endedForDisk = "it wrote more than the server's disk has room for"

// watchGuest ends the box when its guest has ended by itself.
func (l *lifecycle) watchGuest(b *Box) {
	ctx, cancel := context.WithCancel(l.base)
	defer cancel()
	stop := make(chan struct{})
	l.wg.Go(func() {
		select {
		case <-b.aborted:
		case <-stop:
		}
		cancel()
	})
	defer close(stop)
	exit, err := b.machine.Guest.Wait(ctx)
	if err != nil { // the box was ended from here
		return
	}
	reason, detail := ReasonCrashed, "its isolation ended"
	switch exit.Reason {
	case engine.ExitOOM:
		reason, detail = ReasonOOM, fmt.Sprintf("it used more than the %d MB of its flavor '%s'", b.flavor.Limits().MemoryMB, b.flavor)
	case engine.ExitDisk:
		reason, detail = ReasonDisk, endedForDisk
	case engine.ExitExited:
		reason, detail = ReasonExited, fmt.Sprintf("its agent ended with code %d", exit.Code)
	case engine.ExitDestroyed:
		detail = "it was destroyed from outside"
	}
	if exit.Detail != "" {
		detail += " (" + shown(exit.Detail) + ")"
	}
	l.terminate(b, reason, detail)
}

// shown shortens a text of an engine or an agent to one line for a tombstone, and escapes
// invisible characters in it.
func shown(s string) string { return visible.Line(strings.TrimSpace(clip(s, 200))) }

// watchAgent ends the box when the connection to its agent is lost.
func (l *lifecycle) watchAgent(b *Box) {
	select {
	case <-b.machine.Agent.Done():
	case <-b.aborted:
		return
	}
	t := time.NewTimer(exitWait)
	defer t.Stop()
	select {
	case <-b.aborted:
	case <-t.C:
		detail := "the connection to its agent broke"
		if err := b.machine.Agent.Err(); err != nil {
			detail += " (" + shown(err.Error()) + ")"
		}
		l.terminate(b, ReasonCrashed, detail)
	}
}

func (l *lifecycle) terminate(b *Box, reason Reason, detail string) {
	l.reg.mu.Lock()
	defer l.reg.mu.Unlock()
	l.terminateLocked(b, reason, detail)
}

// terminateLocked ends a box: from now on it is not found, its calls fail, and a
// goroutine frees its machine. Only the first reason counts.
func (l *lifecycle) terminateLocked(b *Box, reason Reason, detail string) {
	if !b.state.live() {
		if b.state == stateHibernating && b.died == nil { // it matters if it cannot be written
			b.died = l.reg.tombstone(&b.spec, reason, detail)
		}
		return
	}
	starting := b.state.starting()
	b.tomb = l.reg.tombstone(&b.spec, reason, detail)
	if !starting {
		// The last written state of a box that broke is better than nothing.
		b.recordStays = reason.failure() && b.hasData
	}
	l.reg.setState(b, stateEnding)
	l.reg.unpinAllLocked(b)
	l.reg.signalDrainedLocked()
	if starting { // start frees it
		b.cancelStart(errEnded)
		return
	}
	if reason == ReasonEvicted {
		l.reg.evicted++
	}
	l.reg.addTombstoneLocked(b.tomb)
	l.wg.Go(func() {
		level := slog.LevelInfo
		if reason.failure() {
			level = slog.LevelWarn
		}
		l.log.Log(l.base, level, "box ended", logkey.Guest, b.guestID, logkey.Kind, b.key.kind, logkey.Box, b.key.id, logkey.Reason, reason, logkey.Detail, detail)
		l.free(b, b.recordStays)
	})
}

// free frees the machine of a box that has left the registry. With hibernated, the next call on
// its id wakes it from its record. Without, the box is gone; yet its record may stay for a
// while, until the limits of its network are shared.
func (l *lifecycle) free(b *Box, hibernated bool) {
	l.reg.mu.Lock()
	tomb, made := b.tomb, b.startedMachine // a write of the box may end only now, and change them
	l.reg.mu.Unlock()
	if l.handsOver(tomb, made) {
		l.handOver(made)
	} else {
		l.discardMachine(made)
	}
	keepRecord := hibernated
	if !hibernated && !l.maintainer.shareLimits(&b.spec) && !limitsEnd(tomb) {
		keepRecord = true // a sweep, or the next call on the id, shares the limits and removes it
	}
	if made.lease != nil {
		l.records.release(made.lease, keepRecord)
	}
	l.unloadEnded(b, hibernated)
}

// limitsEnd reports whether the limits of the network of a box end with it: its owner has stopped
// it, or a box that has them too takes its place. The record must not stay then, since a call on
// the id would wake what it has.
func limitsEnd(t *Tombstone) bool {
	return t != nil && (t.Reason == ReasonStopped || t.Reason == ReasonRolledBack)
}

// unloadEnded records that nothing of a box is left in memory.
func (l *lifecycle) unloadEnded(b *Box, hibernated bool) {
	l.reg.mu.Lock()
	defer l.reg.mu.Unlock()
	if hibernated {
		l.reg.setState(b, stateHibernated)
	} else {
		l.reg.setState(b, stateGone)
	}
}
