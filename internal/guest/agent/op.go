package agent

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

var (
	errEnd = fmt.Errorf("%w: the host ended an operation of its own", protocol.ErrFrame)
	// errCancelled is the cause of an operation's context after Cancel.
	errCancelled = errors.New("cancelled by the host")
)

// op is an operation in progress.
type op struct {
	conn   *connection
	id     uint32
	ctx    context.Context // done after Cancel and after the end of the connection
	cancel context.CancelCauseFunc
	in     *protocol.RecvQueue  // data from the host
	window *protocol.SendWindow // data to the host
	req    protocol.Request

	begun    time.Time
	lateOnce sync.Once
	late     *time.Timer // flushes delayed output, unless End comes first

	// For Read, which one goroutine calls.
	data  []byte
	at    int // data[at:] is unread
	items []protocol.Item
	eof   bool
}

// open starts an operation. The caller must perform a returned one.
func (c *connection) open(h protocol.Header, p []byte, dup *op) (*op, error) {
	if h.Op%2 == 0 || dup != nil {
		return nil, fmt.Errorf("%w: invalid id %d of a new operation", protocol.ErrFrame, h.Op)
	}
	o := &op{conn: c, id: h.Op, in: protocol.NewRecvQueue(protocol.Window), window: protocol.NewSendWindow(protocol.Window), begun: time.Now()}
	err := json.Unmarshal(p, &o.req)
	o.ctx, o.cancel = context.WithCancelCause(c.ctx)
	c.mu.Lock()
	full := len(c.ops) >= protocol.MaxOps
	c.ops[h.Op] = o
	c.mu.Unlock()
	if full {
		o.finish(nil, failf(protocol.CodeBusy, "%d operations are already running", protocol.MaxOps))
		return nil, nil
	}
	if err != nil {
		o.finish(nil, failf(protocol.CodeInvalid, "parse request: %v", err))
		return nil, nil
	}
	c.wg.Add(1)
	return o, nil
}

// do performs the operation and ends it.
func (o *op) do() {
	defer o.conn.wg.Done()
	o.finish(o.run(o.req))
}

// run performs the operation; a panic ends only this one.
func (o *op) run(req protocol.Request) (result any, err error) {
	defer func() {
		if r := recover(); r != nil {
			o.conn.a.log.Error("operation panicked", "op", string(req.Op), "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			err = failf(protocol.CodeInternal, "the agent failed in %s: %v", req.Op, r)
		}
	}()
	h := handlerOf(req.Op)
	if h == nil {
		return nil, failf(protocol.CodeInvalid, "unknown operation %.40q", string(req.Op))
	}
	if o.conn.a.cfg.Load() == nil && req.Op != protocol.OpHello && req.Op != protocol.OpPing {
		return nil, failf(protocol.CodeInvalid, "%s before hello", req.Op)
	}
	return h(o, req.Args)
}

// finish sends End and forgets the operation: its id is free once the host has read
// End.
func (o *op) finish(result any, err error) {
	o.cancel(nil)
	if o.lateOnce.Do(func() {}); o.late != nil {
		o.late.Stop()
	}
	payload := encodeResponse(result, err)
	o.conn.mu.Lock()
	delete(o.conn.ops, o.id)
	o.conn.mu.Unlock()
	out := o.conn.a.out
	if out.AddNow(o.conn.epoch, protocol.Header{Type: protocol.End, Op: o.id}, payload) == nil {
		out.Flush() // a failed write ends the stream; its reader sees that
	}
}

func encodeResponse(result any, err error) []byte {
	var resp protocol.Response
	if err != nil {
		resp.Error = toProtocolError(err)
	} else if result != nil {
		raw, err := json.Marshal(result)
		if err != nil || len(raw) > protocol.MaxPayload-256 {
			resp.Error = failf(protocol.CodeInternal, "result of %d bytes does not fit: %v", len(raw), err)
		} else {
			resp.Result = raw
		}
	}
	p, err := json.Marshal(resp)
	if err != nil {
		p = []byte(`{"error":{"code":"internal","message":"encode response"}}`)
	}
	return p
}

// maxMessage bounds the text of an error, which may quote input of the host.
const maxMessage = 8 << 10

// failf returns an error for the host.
func failf(code protocol.Code, format string, args ...any) *protocol.Error {
	msg := fmt.Sprintf(format, args...)
	if len(msg) > maxMessage {
		msg = msg[:maxMessage] + "…"
	}
	return &protocol.Error{Code: code, Message: msg}
}

// toProtocolError converts any error to one for the host.
func toProtocolError(err error) *protocol.Error {
	var we *protocol.Error
	switch {
	case errors.As(err, &we):
		return failf(we.Code, "%s", err.Error())
	case errors.Is(err, errCancelled), errors.Is(err, protocol.ErrStopped), errors.Is(err, context.Canceled):
		return failf(protocol.CodeCancelled, "cancelled")
	default:
		return failf(protocol.CodeInternal, "%v", err)
	}
}

// send sends p on a channel and returns when it is in the outbox. It waits for credit
// until stop.
func (o *op) send(ch protocol.Channel, p []byte, stop <-chan struct{}) error {
	return o.sendMessage(ch, p, false, stop)
}

// display sends one message, which may take several frames.
func (o *op) display(p []byte) error {
	return o.sendMessage(protocol.Displays, p, true, o.conn.ctx.Done())
}

func (o *op) sendMessage(ch protocol.Channel, p []byte, message bool, stop <-chan struct{}) error {
	for len(p) > 0 {
		n, err := o.window.Take(len(p), stop)
		if err != nil {
			return err
		}
		h := protocol.Header{Type: protocol.Data, Channel: ch, Op: o.id, More: message && n < len(p)}
		if err := o.conn.a.out.Add(o.conn.epoch, stop, h, p[:n]); err != nil {
			return err
		}
		o.flushLater(n)
		p = p[n:]
	}
	return nil
}

const (
	// batchDelay is the age of an operation up to which its output waits for its End,
	// to go out in the same write without a wake-up of its own. Nobody notices the
	// delay, and on a loaded machine a short run takes that long.
	batchDelay = 50 * time.Millisecond
	// batchSize is the size of output that is not delayed.
	batchSize = 32 << 10
)

// flushLater makes output of n bytes leave soon.
func (o *op) flushLater(n int) {
	if n > batchSize || time.Since(o.begun) > batchDelay {
		o.conn.a.out.Wake()
		return
	}
	o.lateOnce.Do(func() { o.late = time.AfterFunc(batchDelay, o.conn.a.out.Wake) })
}

// Read reads data from the host on the operation's only input channel. It returns at
// the latest when the operation ends.
func (o *op) Read(p []byte) (int, error) {
	for o.at == len(o.data) {
		if o.eof {
			return 0, io.EOF
		}
		o.data, o.items = o.in.Take(o.data, o.items)
		o.at = 0
		var credit uint32
		for _, it := range o.items {
			o.eof = o.eof || it.EOF
			credit += o.in.Consume(it)
		}
		if credit > 0 {
			if err := o.credit(credit); err != nil {
				return 0, err
			}
		}
		if len(o.data) > 0 || o.eof {
			continue
		}
		select {
		case <-o.in.Wake:
		case <-o.ctx.Done():
			return 0, context.Cause(o.ctx)
		}
	}
	n := copy(p, o.data[o.at:])
	o.at += n
	return n, nil
}

// credit lets the host send more. The batch being read counts as consumed: the window
// bounds the two batches that can exist.
func (o *op) credit(n uint32) error {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], n)
	err := o.conn.a.out.AddNow(o.conn.epoch, protocol.Header{Type: protocol.Credit, Op: o.id}, b[:])
	o.conn.a.out.Wake()
	return err
}

// handler performs one operation.
type handler func(o *op, args json.RawMessage) (any, error)

// handle converts a function of typed arguments to a handler.
func handle[A any](fn func(*op, A) (any, error)) handler {
	return func(o *op, args json.RawMessage) (any, error) {
		var a A
		if len(args) > 0 {
			if err := json.Unmarshal(args, &a); err != nil {
				return nil, failf(protocol.CodeInvalid, "parse arguments: %v", err)
			}
		}
		return fn(o, a)
	}
}

// handlerOf returns the handler of an operation, nil for an unknown one.
func handlerOf(name protocol.Op) handler {
	switch name {
	case protocol.OpHello:
		return handle(hello)
	case protocol.OpPing:
		return handle(ping)
	case protocol.OpNetwork:
		return handle(configureNetwork)
	case protocol.OpRun:
		return handle(runCode)
	case protocol.OpKernel:
		return handle(controlKernel)
	case protocol.OpExec:
		return handle(execCommand)
	case protocol.OpAttach:
		return handle(attach)
	case protocol.OpSignal:
		return handle(signalProcess)
	case protocol.OpPS:
		return handle(listProcesses)
	case protocol.OpRead:
		return handle(readFile)
	case protocol.OpWrite:
		return handle(writeFile)
	case protocol.OpStat:
		return handle(statFile)
	case protocol.OpList:
		return handle(listFiles)
	case protocol.OpMkdir:
		return handle(makeDir)
	case protocol.OpRemove:
		return handle(removeFile)
	case protocol.OpArchive:
		return handle(archive)
	case protocol.OpExtract:
		return handle(extract)
	case protocol.OpBackup:
		return handle(backup)
	}
	return nil
}
