package agent

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/guest/agent/bridgecall"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

const (
	// bridgeDir holds the socket on which user code calls the host, and the program that
	// does so for the shell.
	bridgeDir  = "/run/glovebox"
	bridgeSock = "tools.sock"
	// maxConns bounds the connections to the socket: calls in progress, and those that
	// wait for their turn.
	maxConns = 256
	// peerTimeout bounds each wait for a process that does not send its call, or does not
	// read its answer.
	peerTimeout = 30 * time.Second
)

var (
	errRunOver  = errors.New("the run has ended")
	errPeerGone = errors.New("the caller has gone")
)

// bridge passes calls of user code to the host. It listens from the first run that may
// call until the agent ends.
type bridge struct {
	mu       sync.Mutex
	dir      string                 // guarded by mu; "" until it listens
	temp     bool                   // guarded by mu; dir is removed at the end
	listener *os.File               // guarded by mu
	permits  map[string]*callPermit // guarded by mu, by token
	conns    map[*os.File]bool      // guarded by mu
	closed   bool                   // guarded by mu
	wg       sync.WaitGroup         // of the goroutines that accept and serve
}

// callPermit is a run or command in progress whose processes may call the host.
type callPermit struct {
	op      *op
	token   string
	dir     string
	earlier processTable // processes that existed before the run
	ctx     context.Context
	cancel  context.CancelCauseFunc
	slots   chan struct{} // holds an element for each call in progress

	started chan struct{} // closed when leader is set
	leader  processID     // the kernel, or the command's first process

	mu    sync.Mutex
	ended bool           // guarded by mu
	calls int            // guarded by mu; so far
	wg    sync.WaitGroup // of the calls in progress
}

// permitCalls lets the processes of a run call the host until end. The caller must set the
// run's process with setProcess, and then start the code. Unless the process is new,
// existed must be true: the processes that it has started already may not call.
func (a *agent) permitCalls(o *op, existed bool) (*callPermit, error) {
	dir, err := a.bridge.open(a)
	if err != nil {
		return nil, failf(protocol.CodeInternal, "listen for calls: %v", err)
	}
	var earlier processTable
	if existed {
		if earlier, err = existingProcesses(); err != nil {
			return nil, failf(protocol.CodeInternal, "list processes: %v", err)
		}
	}
	var secret [16]byte
	rand.Read(secret[:]) // never fails
	c := &callPermit{op: o, dir: dir, earlier: earlier, token: hex.EncodeToString(secret[:]), slots: make(chan struct{}, protocol.MaxCalls), started: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancelCause(o.ctx)
	b := &a.bridge
	b.mu.Lock()
	defer b.mu.Unlock()
	b.permits[c.token] = c
	return c, nil
}

// setProcess sets the process that may call, with its descendants. If it has ended, none
// may call.
func (c *callPermit) setProcess(pid int) {
	c.leader, _ = identify(pid)
	close(c.started)
}

// end refuses further calls, and cancels those in progress and waits for them: the host
// requires that a run's calls end before the run.
func (c *callPermit) end() {
	if c == nil {
		return
	}
	b := &c.op.conn.a.bridge
	b.mu.Lock()
	delete(b.permits, c.token)
	b.mu.Unlock()
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.cancel(errRunOver)
	c.wg.Wait()
}

// begin counts a call, which the caller must end with c.wg.Done.
func (c *callPermit) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ended:
		return failf(protocol.CodeNotAllowed, "%v", errRunOver)
	case c.calls >= protocol.MaxRunCalls:
		return failf(protocol.CodeBusy, "a run may call tools at most %d times", protocol.MaxRunCalls)
	}
	c.calls++
	c.wg.Add(1)
	return nil
}

// setup returns what the processes of the run need to call.
func (c *callPermit) setup() bridgecall.Setup {
	return bridgecall.Setup{Socket: filepath.Join(c.dir, bridgeSock), Token: c.token, Bin: c.dir}
}

// open starts to listen, unless it does already, and returns the directory.
func (b *bridge) open(a *agent) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return "", errConnEnded
	}
	if b.dir != "" {
		return b.dir, nil
	}
	dir, temp := bridgeDir, false
	if a.init && os.Geteuid() == 0 {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", err
		}
	} else { // the directory would be the host's
		var err error
		if dir, err = os.MkdirTemp("", "glovebox-"); err != nil {
			return "", err
		}
		temp = true
	}
	l, err := listenIn(dir)
	if err != nil {
		if temp {
			os.RemoveAll(dir)
		}
		return "", err
	}
	b.dir, b.temp, b.listener = dir, temp, l
	b.permits, b.conns = make(map[string]*callPermit), make(map[*os.File]bool)
	b.wg.Go(func() { b.accept(l) })
	return dir, nil
}

// listenIn makes the socket and the program for the shell. Everybody in the guest may
// connect: serve decides who may call.
func listenIn(dir string) (*os.File, error) {
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	tool := filepath.Join(dir, bridgecall.Program)
	os.Remove(tool) // of an earlier agent
	if err := os.Symlink(self, tool); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, bridgeSock)
	os.Remove(path)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err == nil {
		if err = os.Chmod(path, 0o666); err == nil {
			err = unix.Listen(fd, maxConns)
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("listen on %q: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// close ends the calls and waits for their goroutines.
func (b *bridge) close() {
	b.mu.Lock()
	b.closed = true
	if b.listener != nil {
		b.listener.Close()
	}
	for f := range b.conns {
		f.Close()
	}
	for _, c := range b.permits {
		c.cancel(errConnEnded)
	}
	if b.temp {
		os.RemoveAll(b.dir)
	}
	b.mu.Unlock()
	b.wg.Wait()
}

// accept serves connections until the listener is closed.
func (b *bridge) accept(l *os.File) {
	rc, err := l.SyscallConn()
	if err != nil {
		return
	}
	for {
		fd := -1
		err := rc.Read(func(s uintptr) bool {
			for {
				fd, _, err = unix.Accept4(int(s), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
				if err != unix.EINTR && err != unix.ECONNABORTED {
					return err != unix.EAGAIN
				}
			}
		})
		if err != nil {
			return // closed
		}
		if fd < 0 { // too many open files, for example
			time.Sleep(busyDelay)
			continue
		}
		f := os.NewFile(uintptr(fd), "call")
		b.mu.Lock()
		full := len(b.conns) >= maxConns
		if b.closed || full {
			b.mu.Unlock()
			if full {
				f.SetWriteDeadline(time.Now().Add(busyDelay))
				bridgecall.WriteAnswer(f, nil, failf(protocol.CodeBusy, "too many tool calls at the same time: %d wait", maxConns))
			}
			f.Close()
			continue
		}
		b.conns[f] = true
		b.mu.Unlock()
		b.wg.Go(func() {
			b.serve(f)
			b.mu.Lock()
			delete(b.conns, f)
			b.mu.Unlock()
			f.Close()
		})
	}
}

// serve answers the one call of a connection.
func (b *bridge) serve(f *os.File) {
	// The peer is identified before it sends anything: later, another process may have
	// its id, and its end of the connection.
	who, err := peer(f)
	if err != nil {
		return // it has ended
	}
	f.SetDeadline(time.Now().Add(peerTimeout))
	r := bufio.NewReaderSize(f, bridgecall.MaxHeader)
	h, err := bridgecall.ReadHeader(r)
	if err != nil {
		bridgecall.WriteAnswer(f, nil, failf(protocol.CodeInvalid, "read call: %v", err))
		return
	}
	result, err := b.call(f, r, h, who)
	f.SetWriteDeadline(time.Now().Add(peerTimeout))
	var failure *protocol.Error
	if err != nil {
		failure = toProtocolError(err)
	}
	bridgecall.WriteAnswer(f, result, failure)
}

// call checks who calls, waits for its turn, and asks the host.
func (b *bridge) call(f *os.File, r io.Reader, h bridgecall.Header, who processID) ([]byte, error) {
	b.mu.Lock()
	c := b.permits[h.Token]
	b.mu.Unlock()
	if c == nil {
		return nil, failf(protocol.CodeNotAllowed, "the run that started this program has ended, or code mode is off: only a run in progress in code mode, and what it starts, can call tools")
	}
	select {
	case <-c.started:
	case <-c.ctx.Done():
		return nil, context.Cause(c.ctx)
	}
	if err := descends(who, c.leader, c.earlier); err != nil {
		return nil, failf(protocol.CodeNotAllowed, "process %d may not call tools: %v", who.pid, err)
	}
	if err := c.begin(); err != nil {
		return nil, err
	}
	defer c.wg.Done()
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-c.ctx.Done():
		return nil, context.Cause(c.ctx)
	}
	// The arguments are read in the call's turn: what waits takes no memory.
	stop := context.AfterFunc(c.ctx, func() { f.SetReadDeadline(time.Unix(1, 0)) })
	f.SetReadDeadline(time.Now().Add(peerTimeout))
	if c.ctx.Err() != nil {
		return nil, context.Cause(c.ctx)
	}
	args := make([]byte, h.Length)
	_, err := io.ReadFull(r, args)
	stop()
	if err != nil {
		return nil, failf(protocol.CodeInvalid, "read arguments: %v", err)
	}
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	// A caller that gives up closes its end.
	f.SetReadDeadline(time.Time{})
	watcher := make(chan struct{})
	go func() {
		defer close(watcher)
		var one [1]byte
		r.Read(one[:])
		cancel(errPeerGone)
	}()
	result, err := c.op.conn.call(ctx, c.op.id, h.Method, args)
	f.SetReadDeadline(time.Unix(1, 0))
	<-watcher
	return result, err
}

// peer returns the process that connected, which the guest's kernel recorded.
func peer(f *os.File) (processID, error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return processID{}, err
	}
	var cred *unix.Ucred
	if ctlErr := rc.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); ctlErr != nil {
		return processID{}, ctlErr
	}
	if err != nil {
		return processID{}, fmt.Errorf("identify the caller: %w", err)
	}
	return identify(int(cred.Pid))
}

// environ returns the variables with which a process calls.
func (c *callPermit) environ(env []string) []string {
	s := c.setup()
	return mergeEnv(env, []string{bridgecall.EnvSocket + "=" + s.Socket, bridgecall.EnvToken + "=" + s.Token, "PATH=" + lookup(env, "PATH") + ":" + s.Bin})
}

func lookup(env []string, name string) string {
	for _, kv := range env {
		if len(kv) > len(name) && kv[:len(name)] == name && kv[len(name)] == '=' {
			return kv[len(name)+1:]
		}
	}
	return ""
}

// marshalSetup returns the set-up for a kernel.
func (c *callPermit) marshalSetup() []byte {
	b, err := json.Marshal(c.setup())
	if err != nil {
		panic(err) // of strings: cannot fail
	}
	return b
}
