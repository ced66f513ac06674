package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

const (
	// maxProcesses bounds the background processes on record, including finished ones.
	maxProcesses = 64
	// ringSize is how much of each stream of a background process is kept.
	ringSize = 1 << 20
)

// ring keeps the end of a stream. All methods may be called concurrently.
type ring struct {
	mu    sync.Mutex
	buf   []byte        // guarded by mu; grows up to ringSize
	total int64         // guarded by mu
	wake  chan struct{} // guarded by mu; closed at the next change
	ended bool          // guarded by mu
}

func newRing() *ring { return &ring{wake: make(chan struct{})} }

func (r *ring) write(p []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total += int64(len(p))
	if len(p) >= ringSize {
		p = p[len(p)-ringSize:]
	}
	// Removing a quarter at a time makes copying the rest rare.
	if over := len(r.buf) + len(p) - ringSize; over > 0 {
		cut := min(max(over, ringSize/4), len(r.buf))
		r.buf = r.buf[:copy(r.buf, r.buf[cut:])]
	}
	r.buf = append(r.buf, p...)
	r.changedLocked()
}

func (r *ring) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.changedLocked()
}

func (r *ring) changedLocked() {
	close(r.wake)
	r.wake = make(chan struct{})
}

// from returns a copy of the kept output from the offset on, at most one frame, the
// offset after it, a channel that is closed at the next change, and whether no more
// will come.
func (r *ring) from(off int64) (p []byte, next int64, wake <-chan struct{}, ended bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := r.total - int64(len(r.buf))
	off = min(max(off, first), r.total)
	p = slices.Clone(r.buf[off-first:])
	if len(p) > protocol.MaxPayload {
		p = p[:protocol.MaxPayload]
	}
	next = off + int64(len(p))
	return p, next, r.wake, r.ended && next == r.total
}

func (r *ring) bytes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total
}

// background is a process that outlives the operation that started it.
type background struct {
	*process
	id   string
	out  [2]*ring
	stop context.CancelFunc

	mu      sync.Mutex
	stopped string // guarded by mu
}

// processSet holds the background processes.
type processSet struct {
	mu       sync.Mutex
	list     []*background // guarded by mu; oldest first
	reserved int           // guarded by mu; places of processes being started
	next     int           // guarded by mu
	wg       sync.WaitGroup
}

// reserve reserves a place, by forgetting the oldest finished process if necessary. It
// returns false if all of them run.
func (s *processSet) reserve() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list)+s.reserved >= maxProcesses {
		i := slices.IndexFunc(s.list, func(b *background) bool { return !b.running() })
		if i < 0 {
			return false
		}
		s.list = slices.Delete(s.list, i, i+1)
	}
	s.reserved++
	return true
}

func (s *processSet) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserved--
}

// adopt records a process in a reserved place.
func (s *processSet) adopt(p *process, memory *memoryWatcher, drains *drainSet, timeout, grace time.Duration) protocol.ExecResult {
	ctx, stop := context.WithCancel(context.Background())
	b := &background{process: p, stop: stop, out: [2]*ring{newRing(), newRing()}}
	s.mu.Lock()
	s.reserved--
	s.next++
	b.id = fmt.Sprintf("p%d", s.next)
	s.list = append(s.list, b)
	s.mu.Unlock()
	var pumps sync.WaitGroup
	for i, r := range p.output {
		pumps.Go(func() { pump(r, b.out[i].write) })
	}
	s.wg.Go(func() {
		memory.enter()
		stopped := p.supervise(ctx, timeout, grace)
		memory.leave()
		if memory.killed(p.pid()) {
			stopped = "oom"
		}
		b.mu.Lock()
		b.stopped = stopped
		b.mu.Unlock()
		p.expire()
		pumps.Wait()
		for i, r := range p.output {
			drains.add(r)
			b.out[i].end() // after the process's result is known
		}
	})
	return b.result()
}

func (b *background) running() bool {
	select {
	case <-b.done:
		return false
	default:
		return true
	}
}

func (b *background) result() protocol.ExecResult {
	res := protocol.ExecResult{ID: b.id}
	b.describe(&res)
	b.mu.Lock()
	res.Stopped = b.stopped
	b.mu.Unlock()
	res.Stdout.Bytes, res.Stderr.Bytes = b.out[0].bytes(), b.out[1].bytes()
	return res
}

func (s *processSet) find(id string) (*background, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.list {
		if b.id == id {
			return b, nil
		}
	}
	return nil, failf(protocol.CodeNotFound, "no background process %.40q", id)
}

// killAll kills the processes and waits for them.
func (s *processSet) killAll() {
	s.mu.Lock()
	list := slices.Clone(s.list)
	s.mu.Unlock()
	for _, b := range list {
		b.signal(unix.SIGKILL)
		b.stop()
	}
	s.wg.Wait()
}

func listProcesses(o *op, _ struct{}) (any, error) {
	s := &o.conn.a.procs
	s.mu.Lock()
	list := slices.Clone(s.list)
	s.mu.Unlock()
	slices.Reverse(list)
	res := protocol.PSResult{Processes: []protocol.Process{}}
	for _, b := range list {
		res.Processes = append(res.Processes, protocol.Process{
			ID: b.id, PID: b.pid(), Command: b.command, Started: b.started.UnixNano(), ExecResult: b.result(),
		})
	}
	return res, nil
}

func signalProcess(o *op, x protocol.Signal) (any, error) {
	sig, ok := signals[x.Signal]
	if !ok {
		return nil, failf(protocol.CodeInvalid, "unknown signal %.20q", x.Signal)
	}
	b, err := o.conn.a.procs.find(x.ID)
	if err != nil {
		return nil, err
	}
	// After the wait, the process id may belong to another process.
	err = unix.ESRCH
	if b.running() {
		err = b.signal(sig)
	}
	if err == unix.ESRCH {
		return nil, failf(protocol.CodeNotFound, "process %s has ended", b.id)
	} else if err != nil {
		return nil, failf(protocol.CodeInternal, "signal process %s: %v", b.id, err)
	}
	return nil, nil
}

// attach replays the kept output of a background process, and may follow it.
func attach(o *op, x protocol.Attach) (any, error) {
	b, err := o.conn.a.procs.find(x.ID)
	if err != nil {
		return nil, err
	}
	offsets := [2]int64{x.Stdout, x.Stderr}
	var skipped [2]int64
	channels := [2]protocol.Channel{protocol.Stdout, protocol.Stderr}
	for {
		var wakes [2]<-chan struct{}
		sent, over := false, true
		for i, r := range b.out {
			p, next, wake, ended := r.from(offsets[i])
			skipped[i] += max(0, next-int64(len(p))-max(offsets[i], 0))
			if len(p) > 0 {
				if err := o.send(channels[i], p, o.ctx.Done()); err != nil {
					return b.attached(offsets, skipped), nil
				}
				sent = true
			}
			offsets[i], wakes[i] = next, wake
			over = over && ended
		}
		if sent {
			continue
		}
		if over || !x.Follow {
			return b.attached(offsets, skipped), nil
		}
		select {
		case <-wakes[0]:
		case <-wakes[1]:
		case <-o.ctx.Done():
			return b.attached(offsets, skipped), nil
		}
	}
}

// attached is the result of attach: Bytes are the offsets after the last byte sent.
func (b *background) attached(offsets, skipped [2]int64) protocol.ExecResult {
	res := b.result()
	res.Stdout = protocol.Output{Bytes: offsets[0], Omitted: skipped[0]}
	res.Stderr = protocol.Output{Bytes: offsets[1], Omitted: skipped[1]}
	return res
}
