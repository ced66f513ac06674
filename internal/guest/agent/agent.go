// Package agent is the agent: the first process inside a guest. It speaks the
// protocol of internal/guest/protocol over its standard input and output and does what
// the host asks: runs code in kernels, runs commands, handles files.
//
// It links the standard library, golang.org/x/sys/unix and internal/guest/protocol only:
// it is part of every guest and has to be small and quick to start.
package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// agent is the state that outlives a link.
type agent struct {
	log   *slog.Logger
	out   *protocol.Outbox
	build string
	init  bool // it is the first process of a guest of its own
	input int  // descriptor of the link's input; -1 if it is none

	mu  sync.Mutex               // held while the first hello is applied
	cfg atomic.Pointer[settings] // nil before the first hello

	reaper  *reaper
	kernels kernelSet
	procs   processSet
	drains  drainSet
}

// serve speaks over in and out until in ends, which is the guest's end: it
// returns when everything the agent started has been told to end.
func (a *agent) serve(in io.Reader) error {
	writer := make(chan error, 1)
	go func() { writer <- a.out.Run() }()
	r := &input{a: a, rd: protocol.NewReader(in), s: a.newSession(nil, 0), end: make(chan error, 1)}
	defer func() {
		r.s.end(errLinkEnded)
		a.out.Close(errLinkEnded)
		a.shutdown()
		<-writer
		r.s.wait(endWait)
	}()
	go r.read()
	return <-r.end
}

// input is the reading of the link. One goroutine at a time has it.
type input struct {
	a   *agent
	rd  *protocol.Reader
	s   *session
	end chan error // gets the reason when the input has ended
}

// read handles frames. When nothing is left to handle it passes the reading on
// to another goroutine and does itself what was asked last: to wake a goroutine
// for that would be in the way of every call.
func (r *input) read() {
	var last *op
	for {
		if last != nil && !r.rd.Ready() {
			go r.read()
			last.do()
			return
		}
		h, p, err := r.rd.Next()
		var begun *op
		if err == nil {
			begun, err = r.s.handle(h, p)
		}
		if last != nil && (begun != nil || err != nil) {
			go last.do()
			last = nil
		}
		switch {
		case err == nil:
			if begun != nil {
				last = begun
			}
			continue
		case errors.Is(err, protocol.ErrFrame), errors.Is(err, protocol.ErrFlow):
			r.a.log.Debug("bytes that are no frame; waiting for a new link", "err", err)
			err = r.restart()
		}
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				err = nil
			}
			r.end <- err
			return
		}
	}
}

// restart ends the link and waits for the next.
func (r *input) restart() error {
	r.s.end(protocol.ErrSuperseded)
	nonce, err := r.rd.Resync(0, func(string) bool { return true })
	if err != nil {
		return err
	}
	r.s = r.a.newSession(r.s, r.s.epoch+1)
	r.a.out.Restart(r.s.epoch, protocol.AppendMark(nil, nonce))
	r.a.out.Wake()
	return nil
}

// shutdown ends what the agent started.
func (a *agent) shutdown() {
	a.kernels.closeAll()
	a.procs.killAll()
	a.drains.closeAll()
	if cfg := a.cfg.Load(); cfg != nil {
		cfg.memory.close()
	}
	if a.reaper != nil {
		a.reaper.stop()
		if !a.init {
			killAll()
		}
	}
}

// endWait bounds the wait for operations when the link has ended: everything
// they could wait for is gone.
const endWait = time.Second

// errLinkEnded is the cause of every operation's end when the stream ends.
var errLinkEnded = errors.New("the link ended")

// session is one link: the operations between one start of the protocol and
// the next.
type session struct {
	a      *agent
	epoch  uint64
	prior  *session // the link it replaced; nil after hello
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu  sync.Mutex
	ops map[uint32]*op // guarded by mu; under way
	wg  sync.WaitGroup // of the operations' goroutines
}

func (a *agent) newSession(prior *session, epoch uint64) *session {
	s := &session{a: a, epoch: epoch, prior: prior, ops: make(map[uint32]*op)}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	return s
}

// alone reports whether one operation at most is under way.
func (s *session) alone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ops) <= 1
}

// end tells every operation to end; wait waits for them.
func (s *session) end(cause error) { s.cancel(cause) }

// handle takes one frame and returns the operation that it began, if it did, to
// be done. An error ends the link.
func (s *session) handle(h protocol.Header, p []byte) (*op, error) {
	s.mu.Lock()
	o := s.ops[h.Op]
	s.mu.Unlock()
	if h.Type == protocol.Open {
		return s.open(h, p, o)
	}
	if o == nil {
		// It ended while the host's frame was on its way.
		if h.Type == protocol.End {
			return nil, errEnd
		}
		return nil, nil
	}
	switch h.Type {
	case protocol.Data, protocol.EOF:
		return nil, o.in.Push(h, p)
	case protocol.Credit:
		return nil, o.window.Credit(p)
	case protocol.Cancel:
		o.cancel(errCancelled)
		return nil, nil
	default:
		return nil, errEnd
	}
}
