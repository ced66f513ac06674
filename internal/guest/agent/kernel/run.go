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
// kernel's process group, again after half of the grace period, and kills it at its
// end. The error is ErrBusy, ErrEnded, or describes an invalid request; the outcome of
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
	stop := &stopper{k: k, run: k.run, ctx: ctx, grace: req.Grace}
	if req.Timeout > 0 {
		stop.at = start.Add(req.Timeout)
	}
	if len(req.Code) == 0 {
		sink = nil // output of other processes is held for the next run
	}
	k.begin(sink)
	d, empty, err := k.converse(req, stop)
	stopped := stop.end()
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

// done is the payload of a D message.
type done struct {
	Run     uint32             `json:"run"`
	OK      bool               `json:"ok"`
	Error   *protocol.RunError `json:"error"`
	Dropped int                `json:"dropped"`
}

// converse sends the code and waits for the message that the run is done; at every tick
// it collects output. empty reports that all output pipes were empty at the end. An
// error means that the kernel is lost.
func (k *Kernel) converse(req Request, stop *stopper) (_ done, empty bool, err error) {
	var number [4]byte
	binary.BigEndian.PutUint32(number[:], k.run)
	msg := command('R', number[:], req.Code)
	if req.Program {
		msg = command('P', number[:], []byte(req.File), []byte{0}, req.Code)
	}
	if len(req.Seed) > 0 {
		msg = append(command('E', req.Seed), msg...)
	}
	wait := firstTick
	var ask func() (there bool, err error)
	ask = func() (there bool, err error) {
		ask = nil
		k.sending.Store(true)
		defer k.sending.Store(false)
		for {
			// A kernel that is busy between two runs does not read; it is interrupted
			// like a running one.
			n, err := k.in.WriteUntil(msg, stop.next(wait))
			if err == nil {
				break
			}
			if msg = msg[n:]; !errors.Is(err, os.ErrDeadlineExceeded) {
				return false, err
			}
			if wait, err = k.tick(stop, wait); err != nil {
				return false, err
			}
		}
		if req.Alone {
			there, empty = k.await(req.Input, stop.next(firstTick))
		}
		return there, nil
	}
	for {
		k.ctl.SetReadDeadline(stop.next(wait))
		typ, payload, err := k.control(ask) // a deadline in the past asks nothing
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if wait, err = k.tick(stop, wait); err != nil {
				return done{}, false, err
			}
			continue
		case err != nil:
			return done{}, false, err
		case typ != 'D':
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
// readable, and at the given time. The runtime does not know that this thread waits,
// see package rawio, and gets it back after maxBlock at the latest.
func (k *Kernel) await(input int, until time.Time) (there, empty bool) {
	k.outMu.Lock()
	events, raw := k.events, [2]int{k.raw[0].fd, k.raw[1].fd}
	if k.eventBuf.room == 0 {
		events = -1 // they may wait in the pipe
	}
	k.outMu.Unlock()
	var ready uint
	k.rc.Control(func(fd uintptr) {
		for left := time.Until(until); left > 0; left = time.Until(until) {
			if ready = rawio.Poll(min(left, maxBlock), int(fd), events, raw[0], raw[1], input); ready != 0 {
				return
			}
			runtime.Gosched()
		}
	})
	return ready&1 != 0, ready == 1 && events >= 0
}

// tick delivers the output so far and returns the time until the next tick.
func (k *Kernel) tick(stop *stopper, wait time.Duration) (time.Duration, error) {
	stop.arm()
	n, err := k.drain()
	if err != nil {
		return 0, err
	}
	select {
	case <-k.done:
		// A fork of the process may hold the control pipe open. The process may have
		// sent its reply before it ended.
		k.ctl.SetReadDeadline(time.Now().Add(busyTick))
		if stop.last {
			return 0, ErrEnded
		}
		stop.last = true
	default:
	}
	if n > 0 {
		return busyTick, nil
	}
	return min(max(wait*2, firstTick), idleTick), nil
}

// stopper ends a run that takes too long. Short runs never arm it.
type stopper struct {
	k     *Kernel
	run   uint32
	ctx   context.Context
	at    time.Time // of the time-out; zero: none
	grace time.Duration
	armed bool
	last  bool // the process has ended; this is the last tick

	mu        sync.Mutex
	reason    string        // guarded by mu
	finished  bool          // guarded by mu
	timers    []func() bool // guarded by mu: stop the armed timers
	signals   int           // guarded by mu; SIGINTs sent
	announced int           // guarded by mu; of signals, those the kernel was told of
}

// next returns the time of the next tick.
func (s *stopper) next(wait time.Duration) time.Time {
	t := time.Now().Add(wait)
	if !s.armed && !s.at.IsZero() && s.at.Before(t) {
		return s.at
	}
	return t
}

// arm starts the timers for timeout and cancellation, which work even while the sink
// blocks.
func (s *stopper) arm() {
	if s.armed {
		return
	}
	s.armed = true
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.at.IsZero() {
		t := time.AfterFunc(time.Until(s.at), func() { s.interrupt("timeout") })
		s.timers = append(s.timers, t.Stop)
	}
	s.timers = append(s.timers, context.AfterFunc(s.ctx, func() { s.interrupt("cancelled") }))
}

func (s *stopper) interrupt(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.finished || s.reason != "" {
		return
	}
	s.reason = reason
	s.signalLocked()
	// An interrupt that arrives before the code has started has no effect.
	again := time.AfterFunc(s.grace/2, s.repeat)
	t := time.AfterFunc(s.grace, s.kill)
	s.timers = append(s.timers, again.Stop, t.Stop)
}

func (s *stopper) repeat() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.finished {
		s.signalLocked()
	}
}

// signalLocked sends SIGINT and announces it, unless a command is being written:
// then the next signal or the end of the run announces it.
func (s *stopper) signalLocked() {
	s.k.signal(unix.SIGINT)
	s.signals++
	if !s.k.sending.Load() {
		s.announceLocked()
	}
}

func (s *stopper) announceLocked() {
	if s.k.language == JavaScript && s.announced < s.signals {
		s.announced = s.signals
		s.k.announceInterrupts(s.run, s.signals)
	}
}

func (s *stopper) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.finished {
		s.k.kill()
	}
}

// end stops all timers and returns why the run was stopped, if it was.
func (s *stopper) end() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finished = true
	for _, stop := range s.timers {
		stop()
	}
	s.announceLocked()
	return s.reason
}
