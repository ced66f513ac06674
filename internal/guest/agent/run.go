package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/agent/kernel"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// maxKernels bounds the kernels of one guest: each is an interpreter.
const maxKernels = 32

// maxPreload bounds the modules that a kernel imports at its start.
const maxPreload = 256

// kernelSet holds the kernels by name.
type kernelSet struct {
	mu     sync.Mutex
	byName map[string]*kernelSlot // guarded by mu
	closed bool                   // guarded by mu
}

// kernelSlot holds one kernel. The operation that received from free owns it.
type kernelSlot struct {
	free     chan struct{} // holds an element while free
	language string
	k        *kernel.Kernel // nil: none; belongs to the owner of free
	env      *programEnv    // that k has; belongs to the owner of free
	running  *kernel.Kernel // guarded by kernelSet.mu; set while it runs code
	seed     []byte         // guarded by kernelSet.mu; reseeds k before its next run
}

// take acquires the slot of a name, and creates it if necessary.
func (s *kernelSet) take(name, language string) (*kernelSlot, error) {
	if !validName(name) {
		return nil, failf(protocol.CodeInvalid, "kernel name %.80q is not 1 to 64 characters of a-z, 0-9 and -", name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, failf(protocol.CodeCancelled, "the guest is ending")
	}
	sl := s.byName[name]
	if sl == nil {
		if len(s.byName) >= maxKernels {
			return nil, failf(protocol.CodeBusy, "%d kernels exist already; stop one", maxKernels)
		}
		sl = &kernelSlot{free: make(chan struct{}, 1), language: language}
		if s.byName == nil {
			s.byName = make(map[string]*kernelSlot)
		}
		s.byName[name] = sl
		return sl, nil
	}
	select {
	case <-sl.free:
	default:
		return nil, failf(protocol.CodeBusy, "kernel %q is running code", name)
	}
	if language != "" && sl.language != language {
		if sl.alive() {
			sl.free <- struct{}{}
			return nil, failf(protocol.CodeInvalid, "kernel %q runs %s, not %.40q", name, sl.language, language)
		}
		sl.language = language
	}
	return sl, nil
}

// put releases a slot, and removes it if it has no kernel.
func (s *kernelSet) put(name string, sl *kernelSlot) {
	if !sl.alive() && sl.k != nil {
		sl.k.Close()
		sl.k = nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed && sl.k != nil {
		sl.k.Close()
		sl.k = nil
	}
	if sl.k == nil {
		delete(s.byName, name)
	}
	sl.free <- struct{}{}
}

// reseed makes every kernel reseed its random generators before its next run, each with
// a seed of its own.
func (s *kernelSet) reseed(seed []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, sl := range s.byName {
		own := sha256.Sum256(append(slices.Clone(seed), name...))
		sl.seed = own[:]
	}
}

// takeSeed returns and clears the seed for the next run.
func (s *kernelSet) takeSeed(sl *kernelSlot) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	seed := sl.seed
	sl.seed = nil
	return seed
}

func (s *kernelSet) setRunning(sl *kernelSlot, k *kernel.Kernel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sl.running = k
}

// closeAll closes the idle kernels; put closes those in use.
func (s *kernelSet) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, sl := range s.byName {
		select {
		case <-sl.free:
			if sl.k != nil {
				sl.k.Close()
			}
		default:
		}
	}
}

func (sl *kernelSlot) alive() bool {
	if sl.k == nil {
		return false
	}
	select {
	case <-sl.k.Done():
		return false
	default:
		return true
	}
}

// start starts the slot's kernel.
func (sl *kernelSlot) start(ctx context.Context, a *agent, preload []string) error {
	cfg := a.cfg.Load()
	path := cfg.interpreters[sl.language]
	if path == "" {
		return failf(protocol.CodeNoLanguage, "the image of this box has no interpreter for %.40q", sl.language)
	}
	var k *kernel.Kernel
	settings := a.programEnv.Load()
	err := cfg.launch.startKernel(sl.language, func() (int, error) {
		var err error
		k, err = kernel.Start(ctx, kernel.Config{
			Language: sl.language, Interpreter: path, Home: cfg.home, Env: settings.environ(cfg.env),
			Command: cfg.launch.command, Preload: preload[:min(len(preload), maxPreload)],
		})
		if err != nil {
			return 0, err
		}
		return k.PID(), nil
	})
	if err != nil {
		var we *protocol.Error
		if errors.As(err, &we) {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return failf(protocol.CodeStart, "%v", err)
	}
	sl.k, sl.env = k, settings
	go func() { // ends with the kernel, which shutdown closes
		<-k.Done()
		cfg.launch.ended(k.PID())
	}()
	return nil
}

func validName(s string) bool {
	if len(s) < 1 || len(s) > 64 {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// runCode runs code in a kernel, which it starts if there is none. The end of the operation's
// context interrupts the code.
func runCode(o *op, x protocol.Run) (any, error) {
	code, err := o.readBody(protocol.MaxCode)
	if err != nil {
		return nil, err
	}
	a := o.conn.a
	cfg := a.cfg.Load()
	file := x.File
	if file != "" {
		file = filepath.Join(cfg.launch.dir, file)
	}
	sl, err := a.kernels.take(x.Kernel, x.Language)
	if err != nil {
		return nil, err
	}
	defer a.kernels.put(x.Kernel, sl)
	var res protocol.RunResult
	if !sl.alive() {
		res.Fresh = true
		if err := sl.start(o.ctx, a, nil); err != nil {
			return nil, err
		}
	}
	sink := newRunSink(o, cfg, x.Capture)
	k := sl.k
	var network, tools []byte
	if t := a.programEnv.Load(); t != sl.env {
		network, sl.env = t.message, t
	}
	if x.ToolCalls {
		c, err := a.permitCalls(o, !res.Fresh)
		if err != nil {
			return nil, err
		}
		defer c.end()
		c.setProcess(k.PID())
		tools = c.marshalSetup()
	}
	a.forgetFailedLookups()
	cfg.memory.enter()
	defer cfg.memory.leave()
	a.kernels.setRunning(sl, k)
	defer a.kernels.setRunning(sl, nil)
	r, err := k.Run(o.ctx, kernel.Request{
		Code: code, Seed: a.kernels.takeSeed(sl),
		Timeout: duration(x.TimeoutMS, 0, maxTimeout), Grace: duration(x.GraceMS, defaultGrace, maxGrace),
		// Tool calls need the goroutines that a blocking wait would stop.
		MayBlock: a.inputFD >= 0 && !x.ToolCalls && o.conn.alone(), WakeFD: a.inputFD, Tools: tools, Network: network,
		Program: x.Program, File: file,
	}, sink)
	if x.Program {
		k.Close()
	}
	if err != nil {
		return nil, failf(protocol.CodeInternal, "run code in kernel %q: %v", x.Kernel, err)
	}
	res.OK, res.Error, res.Seconds = r.OK, fit(r.Error), r.Seconds
	res.Stopped, res.Lost, res.LostDetail = r.Stopped, r.Lost, r.LostDetail
	res.Dropped = r.Dropped + sink.dropped
	switch {
	case res.Lost == "":
	case cfg.memory.killed(k.PID()):
		res.Lost, res.LostDetail = "oom", "the memory limit of the box was reached"
	case res.Lost == "crashed" && sink.heap.seen:
		res.Lost, res.LostDetail = "oom", "the heap of Node.js was full"
	}
	if res.Lost == "" && r.Seconds > orphanMinRun.Seconds() {
		res.Ended = cfg.launch.killOrphansAtLimit(k.PID())
	}
	res.Stdout, res.Stderr = sink.streams[0].finish(), sink.streams[1].finish()
	return res, nil
}

const (
	// maxText bounds the name and value of an error.
	maxText = 8 << 10
	// maxError bounds an error as JSON, which must fit a frame with the rest of the
	// result.
	maxError = 200 << 10
)

// fit truncates an error to fit: it removes the middle of the traceback.
func fit(e *protocol.RunError) *protocol.RunError {
	if e == nil {
		return nil
	}
	c := *e
	c.Name, c.Value = c.Name[:min(len(c.Name), maxText)], c.Value[:min(len(c.Value), maxText)]
	for keep := len(c.Traceback); ; keep /= 2 {
		if keep < len(e.Traceback) {
			c.Traceback = strings.ToValidUTF8(e.Traceback[:keep/2], "") + "\n[…]\n" + strings.ToValidUTF8(e.Traceback[len(e.Traceback)-keep/2:], "")
		}
		if b, err := json.Marshal(c); keep == 0 || err == nil && len(b) <= maxError {
			return &c
		}
	}
}

// runSink receives the output of a kernel.
type runSink struct {
	o       *op
	streams [2]*capture // stdout, stderr
	heap    phrase      // in stderr: Node.js ran out of heap
	dropped int
}

// phrase searches a stream for a text.
type phrase struct {
	text string
	tail []byte // of the stream, shorter than text
	seen bool
}

func (f *phrase) write(p []byte) {
	if f.seen {
		return
	}
	// tail and the first bytes of p contain a match across the boundary.
	f.tail = append(f.tail, p[:min(len(p), len(f.text)-1)]...)
	f.seen = bytes.Contains(f.tail, []byte(f.text)) || bytes.Contains(p, []byte(f.text))
	if len(p) >= len(f.text)-1 {
		f.tail = append(f.tail[:0], p[len(p)-len(f.text)+1:]...)
	} else if n := len(f.tail) - len(f.text) + 1; n > 0 {
		f.tail = append(f.tail[:0], f.tail[n:]...)
	}
}

func newRunSink(o *op, cfg *settings, c protocol.Capture) *runSink {
	stop := o.conn.ctx.Done()
	return &runSink{o: o, heap: phrase{text: "JavaScript heap out of memory"}, streams: [2]*capture{
		newCapture(c, func() *spoolFile { return cfg.openSpool("stdout") },
			func(b []byte) error { return o.send(protocol.Stdout, b, stop) }),
		newCapture(c, func() *spoolFile { return cfg.openSpool("stderr") },
			func(b []byte) error { return o.send(protocol.Stderr, b, stop) }),
	}}
}

func (s *runSink) Output(ch protocol.Channel, p []byte) {
	if ch == protocol.Stderr {
		s.heap.write(p)
		s.streams[1].write(p)
		return
	}
	s.streams[0].write(p)
}

func (s *runSink) Display(d []byte) {
	if len(d) > protocol.MaxDisplay || s.o.display(d) != nil {
		s.dropped++
	}
}

// readBody reads the whole body, at most max bytes.
func (o *op) readBody(max int) ([]byte, error) {
	body := make([]byte, 0, 4<<10)
	for {
		if len(body) == cap(body) {
			body = append(body, 0)[:len(body)]
		}
		n, err := o.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if len(body) > max {
			return nil, failf(protocol.CodeTooLarge, "code of more than %d bytes", max)
		}
		if err == io.EOF {
			return body, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func controlKernel(o *op, x protocol.Kernel) (any, error) {
	a := o.conn.a
	if x.Action != "start" && x.Action != "stop" && x.Action != "restart" {
		return nil, failf(protocol.CodeInvalid, "unknown action %.40q of a kernel", x.Action)
	}
	sl, err := a.kernels.takeWait(o.ctx, x)
	if err != nil {
		return nil, err
	}
	defer a.kernels.put(x.Kernel, sl)
	if x.Action != "start" && sl.k != nil {
		sl.k.Close()
		sl.k = nil
	}
	if x.Action == "stop" {
		return protocol.KernelResult{}, nil
	}
	if !sl.alive() {
		if err := sl.start(o.ctx, a, x.Preload); err != nil {
			return nil, err
		}
	}
	return protocol.KernelResult{PID: sl.k.PID(), Version: sl.k.Version(), Missing: sl.k.Missing()}, nil
}

// stopWait bounds the wait for a run to release its killed kernel.
const stopWait = 5 * time.Second

// takeWait acquires the slot for an action. An action that ends the kernel also ends
// its run.
func (s *kernelSet) takeWait(ctx context.Context, x protocol.Kernel) (*kernelSlot, error) {
	if x.Action == "start" {
		return s.take(x.Kernel, x.Language)
	}
	s.mu.Lock()
	sl := s.byName[x.Kernel]
	var running *kernel.Kernel
	if sl != nil {
		running = sl.running
	}
	s.mu.Unlock()
	if running != nil {
		running.Close() // its run ends and releases the slot
	}
	if sl == nil {
		if x.Action == "stop" {
			return nil, failf(protocol.CodeNotFound, "no kernel %.80q", x.Kernel)
		}
		return s.take(x.Kernel, x.Language)
	}
	select {
	case <-sl.free:
		sl.free <- struct{}{}
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(stopWait):
	}
	return s.take(x.Kernel, x.Language)
}
