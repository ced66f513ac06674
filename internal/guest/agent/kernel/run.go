package kernel

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/guest/agent/rawio"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// Run runs one cell and delivers its output and displays to sink, which is not used
// after Run returns. When ctx is done or the timeout has passed, it interrupts the
// kernel's process group, again after half of the grace period, and kills it when that
// ends. The error is ErrBusy, ErrEnded, or describes an invalid request; the outcome of
// the code is in the Result.
func (k *Kernel) Run(ctx context.Context, req Request, sink Sink) (Result, error) {
	if len(req.Code) > protocol.MaxCode {
		return Result{}, fmt.Errorf("run code: %d bytes, more than %d", len(req.Code), protocol.MaxCode)
	}
	if strings.ContainsRune(req.File, 0) {
		return Result{}, fmt.Errorf("run code: the path %q contains a null byte", req.File)
	}
	if !k.busy.CompareAndSwap(false, true) {
		return Result{}, ErrBusy
	}
	defer k.busy.Store(false)
	select {
	case <-k.done:
		return Result{}, ErrEnded
	default:
	}
	if req.Grace <= 0 {
		req.Grace = defaultGrace
	}

	start := time.Now()
	k.run++
	guard := &runGuard{k: k, run: k.run, ctx: ctx, grace: req.Grace}
	if req.Timeout > 0 {
		guard.at = start.Add(req.Timeout)
	}
	if len(req.Code) == 0 {
		sink = nil // output of other processes is held for the next run
	}
	k.begin(sink)
	d, empty, err := k.sendAndWait(req, guard)
	stopped := guard.end()
	if errors.Is(err, errMalformed) {
		k.kill()
	}
	if err != nil {
		select {
		case <-k.done:
		case <-time.After(time.Second):
			// It closed its pipes and continues to run.
			k.kill()
			select {
			case <-k.done:
			case <-time.After(endTimeout):
			}
		}
	}
	dropped, bad := k.finish(empty)
	if err == nil && bad != nil {
		err = bad
		k.kill()
	}
	res := Result{Stopped: stopped, Seconds: time.Since(start).Seconds(), Dropped: dropped}
	switch {
	case err == nil:
		res.OK, res.Error = d.OK, d.Error
		res.Dropped += max(d.Dropped, 0)
		if !d.OK && stopped == "" && ctx.Err() != nil {
			// The code ended, before the interrupt, with the error of a call to the host that
			// the cancellation ended.
			res.Stopped = "cancelled"
		}
	case errors.Is(err, errMalformed):
		res.Lost, res.LostDetail = "crashed", errMalformed.Error()
	default:
		res.Lost, res.LostDetail = k.ending()
		if res.Lost == "killed" && stopped != "" {
			res.LostDetail = fmt.Sprintf("did not stop within %v of the interrupt", req.Grace)
		}
	}
	return res, nil
}

// done is the payload of a msgDone message.
type done struct {
	Run     uint32             `json:"run"`
	OK      bool               `json:"ok"`
	Error   *protocol.RunError `json:"error"`
	Dropped int                `json:"dropped"`
}

// sendAndWait sends the code and waits for the message that the run is done; at every tick
// it collects output. empty reports that all output pipes were empty at the end. An
// error means that the kernel is lost.
func (k *Kernel) sendAndWait(req Request, guard *runGuard) (_ done, empty bool, err error) {
	var number [4]byte
	binary.BigEndian.PutUint32(number[:], k.run)
	msg := command(cmdRun, number[:], req.Code)
	if req.Program {
		msg = command(cmdProgram, number[:], []byte(req.File), []byte{0}, req.Code)
	}
	switch {
	case len(req.Tools) > 0:
		var script []byte
		if !k.tools {
			k.tools, script = true, toolsScript(k.language)
		}
		msg = append(command(cmdTools, req.Tools, []byte{0}, script), msg...)
	case k.tools: // the script of an earlier run, which offers the tools, is still there, and says why a call fails
		msg = append(command(cmdTools, []byte("null"), []byte{0}), msg...)
	}
	if len(req.Network) > 0 {
		msg = append(command(cmdNetwork, req.Network), msg...)
	}
	if len(req.Seed) > 0 {
		msg = append(command(cmdReseed, req.Seed), msg...)
	}
	wait := firstTick
	var send func() (ready bool, err error)
	send = func() (ready bool, err error) {
		send = nil
		k.sending.Store(true)
		defer k.sending.Store(false)
		for {
			// A kernel that is busy between two runs does not read; it is interrupted
			// like a running one.
			n, err := k.in.WriteUntil(msg, guard.next(wait))
			if err == nil {
				break
			}
			if msg = msg[n:]; !errors.Is(err, os.ErrDeadlineExceeded) {
				return false, err
			}
			if wait, err = k.tick(guard, wait); err != nil {
				return false, err
			}
		}
		if req.MayBlock {
			ready, empty = k.await(req.WakeFD, guard.next(firstTick))
		}
		return ready, nil
	}
	for {
		k.ctl.SetReadDeadline(guard.next(wait))
		typ, payload, err := k.control(send) // which does not call send if the deadline has passed
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if wait, err = k.tick(guard, wait); err != nil {
				return done{}, false, err
			}
			continue
		case err != nil:
			return done{}, false, err
		case typ != msgDone:
			return done{}, false, errMalformed
		}
		var d done
		if err := json.Unmarshal(payload, &d); err != nil || d.Run != k.run || d.OK != (d.Error == nil) {
			return done{}, false, errMalformed
		}
		return d, empty, nil
	}
}

// await waits until the kernel sends something, and reports whether it did and whether
// the output pipes are empty. It returns early when one of them is not, when input is
// readable, and at the given time. The Go runtime cannot see this wait (package rawio
// says why), which lasts at most maxBlock.
func (k *Kernel) await(input int, until time.Time) (ready, empty bool) {
	k.outMu.Lock()
	events, raw := k.events, [2]int{k.raw[0].fd, k.raw[1].fd}
	if k.eventBuf.room == 0 {
		events = -1 // they may wait in the pipe
	}
	k.outMu.Unlock()
	var readable uint
	k.rc.Control(func(fd uintptr) {
		for left := time.Until(until); left > 0; left = time.Until(until) {
			if readable = rawio.Poll(min(left, maxBlock), int(fd), events, raw[0], raw[1], input); readable != 0 {
				return
			}
			runtime.Gosched()
		}
	})
	return readable&1 != 0, readable == 1 && events >= 0
}

// tick delivers the output so far and returns the time until the next tick.
func (k *Kernel) tick(guard *runGuard, wait time.Duration) (time.Duration, error) {
	guard.start()
	n, err := k.drain()
	if err != nil {
		return 0, err
	}
	select {
	case <-k.done:
		// A fork of the process may hold the control pipe open. The process may have
		// sent its reply before it ended.
		k.ctl.SetReadDeadline(time.Now().Add(busyTick))
		if guard.last {
			return 0, ErrEnded
		}
		guard.last = true
	default:
	}
	if n > 0 {
		return busyTick, nil
	}
	return min(max(wait*2, firstTick), idleTick), nil
}

// runGuard interrupts a run at its timeout or when it is cancelled, and kills the kernel
// if the run does not end within the grace period. It starts at the first tick, so that
// short runs need no timers. docs/architecture.md describes how the cancellation of a call
// gets here.
type runGuard struct {
	k       *Kernel
	run     uint32
	ctx     context.Context
	at      time.Time // of the time-out; zero: none
	grace   time.Duration
	started bool
	last    bool // the process has ended; this is the last tick

	mu       sync.Mutex
	reason   string        // guarded by mu
	finished bool          // guarded by mu
	timers   []func() bool // guarded by mu: stop the started timers
	signals  int           // guarded by mu; SIGINTs sent
	counted  int           // guarded by mu; the last count that the kernel got
}

// next returns the time of the next tick.
func (g *runGuard) next(wait time.Duration) time.Time {
	t := time.Now().Add(wait)
	if !g.started && !g.at.IsZero() && g.at.Before(t) {
		return g.at
	}
	return t
}

// start starts the timers for timeout and cancellation, which work even while the sink
// blocks.
func (g *runGuard) start() {
	if g.started {
		return
	}
	g.started = true
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.at.IsZero() {
		t := time.AfterFunc(time.Until(g.at), func() { g.interrupt("timeout") })
		g.timers = append(g.timers, t.Stop)
	}
	g.timers = append(g.timers, context.AfterFunc(g.ctx, func() { g.interrupt("cancelled") }))
}

func (g *runGuard) interrupt(reason string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.finished || g.reason != "" {
		return
	}
	g.reason = reason
	g.signalLocked()
	// An interrupt that arrives before the code has started has no effect.
	again := time.AfterFunc(g.grace/2, g.repeat)
	t := time.AfterFunc(g.grace, g.kill)
	g.timers = append(g.timers, again.Stop, t.Stop)
}

func (g *runGuard) repeat() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.finished {
		g.signalLocked()
	}
}

// signalLocked sends SIGINT. Node.js needs the count of signals, too: see
// Kernel.sendInterruptCount. While a command is being written, the next signal or the end of
// the run sends the count.
func (g *runGuard) signalLocked() {
	g.k.signal(unix.SIGINT)
	g.signals++
	if !g.k.sending.Load() {
		g.sendCountLocked()
	}
}

func (g *runGuard) sendCountLocked() {
	if g.k.language == JavaScript && g.counted < g.signals {
		g.counted = g.signals
		g.k.sendInterruptCount(g.run, g.signals)
	}
}

func (g *runGuard) kill() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.finished {
		g.k.kill()
	}
}

// end stops all timers and returns why the run was stopped, if it was.
func (g *runGuard) end() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.finished = true
	for _, stop := range g.timers {
		stop()
	}
	g.sendCountLocked()
	return g.reason
}
