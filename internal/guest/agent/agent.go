// Package agent is the first process inside a guest: it runs code in kernels, runs commands
// and handles files for the host. It speaks the protocol of internal/guest/protocol over its
// standard input and output.
//
// It imports only the standard library, golang.org/x/sys/unix, the DNS messages of
// golang.org/x/net and, of ours outside its subtree, internal/guest/protocol: every guest
// contains it, so it must be small and start fast.
//
// Where to look: main.go starts, agent.go has the connection to the host, with the frames that open and cancel operations, and
// op.go an operation. run.go runs code (package kernel has the interpreters), exec.go and background.go
// commands, with launch.go, process.go and reap.go; fileops.go handles files (package files).
// bridge.go and calls.go take the calls of code to the host, network.go and dials.go its
// connections (package netdoor).
package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/agent/netdoor"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// agent is the state that outlives a connection.
type agent struct {
	log     *slog.Logger
	out     *protocol.Outbox
	build   string
	init    bool // it is process 1 of a guest
	inputFD int  // descriptor of the connection's input; -1: not a descriptor

	mu  sync.Mutex               // held while the first hello is applied
	cfg atomic.Pointer[settings] // nil before the first hello

	reaper     *reaper
	kernels    kernelSet
	procs      processSet
	drains     drainSet
	bridge     bridge
	programEnv atomic.Pointer[programEnv] // of the last settings of the network; nil: none
	doors      *netdoor.Doors             // set by the first hello; nil: none
}

// serve handles the connection until in ends, which is the guest's end. It returns when
// everything the agent started has been told to end.
func (a *agent) serve(in io.Reader) error {
	writer := make(chan error, 1)
	go func() { writer <- a.out.Run() }()
	r := &frameLoop{a: a, rd: protocol.NewReader(in), conn: a.newConnection(nil, 0), end: make(chan error, 1)}
	defer func() {
		r.conn.end(errConnEnded)
		a.out.Close(errConnEnded)
		a.shutdown()
		<-writer
		r.conn.wait(endWait)
	}()
	go r.read()
	return <-r.end
}

// frameLoop reads the connection. One goroutine at a time owns it.
type frameLoop struct {
	a    *agent
	rd   *protocol.Reader
	conn *connection
	end  chan error // receives the reason when the input has ended
}

// read handles frames. When no frame is left, it hands the reading to a new goroutine
// and performs the last operation itself: waking another goroutine for it would delay
// every call.
func (in *frameLoop) read() {
	var last *op
	for {
		if last != nil && !in.rd.Ready() {
			go in.read()
			last.do()
			return
		}
		h, p, err := in.rd.Next()
		var begun *op
		if err == nil {
			begun, err = in.conn.handle(h, p)
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
			in.a.log.Debug("invalid frame; waiting for a new connection", "err", err)
			err = in.restart()
		}
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				err = nil
			}
			in.end <- err
			return
		}
	}
}

// restart ends the connection and waits for the next.
func (in *frameLoop) restart() error {
	in.conn.end(protocol.ErrSuperseded)
	nonce, err := in.rd.Resync(0, func(string) bool { return true })
	if err != nil {
		return err
	}
	in.conn = in.a.newConnection(in.conn, in.conn.epoch+1)
	in.a.out.Restart(in.conn.epoch, protocol.AppendMarker(nil, nonce))
	in.a.out.Wake()
	return nil
}

// shutdown ends everything the agent started.
func (a *agent) shutdown() {
	a.kernels.closeAll()
	a.procs.killAll()
	a.drains.closeAll()
	a.bridge.close()
	if a.doors != nil {
		a.doors.Close()
	}
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

// endWait bounds the wait for operations after the end of the connection: everything
// they could wait for is gone.
const endWait = time.Second

// errConnEnded is the cause of every operation's end when the stream ends.
var errConnEnded = errors.New("the connection ended")

// connection holds the operations between one start of the protocol and the next.
type connection struct {
	a      *agent
	epoch  uint64      // counts the connections of the agent, so that frames for an earlier one are refused
	prior  *connection // the connection it replaced; nil after hello
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu  sync.Mutex
	ops map[uint32]*op // guarded by mu; in progress
	wg  sync.WaitGroup // of the operations' goroutines

	// Opened by the agent.
	calls       map[uint32]*hostCall   // guarded by mu; End not yet read
	dials       map[uint32]*hostDial   // guarded by mu; not both ended and writeEnded
	lookups     map[uint32]*hostLookup // guarded by mu; End not yet read
	nextAgentOp uint32                 // guarded by mu; next id
	uncredited  int                    // of the goroutine that reads: received bytes of dials that the host has no credit for yet
}

func (a *agent) newConnection(prior *connection, epoch uint64) *connection {
	c := &connection{a: a, epoch: epoch, prior: prior, ops: make(map[uint32]*op)}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	return c
}

// alone reports whether at most one operation is in progress.
func (c *connection) alone() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.ops) <= 1
}

// end cancels all operations; wait waits for them.
func (c *connection) end(cause error) { c.cancel(cause) }

// handle processes one frame and returns the operation that it started, if any, for the
// caller to perform. An error ends the connection.
func (c *connection) handle(h protocol.Header, p []byte) (*op, error) {
	if h.Op != 0 && h.Op%2 == 0 {
		return nil, c.handleAgentOp(h, p)
	}
	c.mu.Lock()
	o := c.ops[h.Op]
	c.mu.Unlock()
	if h.Type == protocol.Open {
		return c.open(h, p, o)
	}
	if o == nil {
		// The operation ended while the host's frame was in transit.
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
