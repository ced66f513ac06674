// Package kernel runs an interpreter (Python, Node.js) as a child process, executes cells
// of code in it, and interrupts them. Cells run one after another, in one persistent
// namespace. It starts, kills and reaps the process; the agent decides which kernels exist,
// with which limits and names.
//
// The child runs a script of ours (scripts.go). Descriptors 0, 1 and 2 belong to user
// code; the script has its own pipes for commands (3), control messages (4) and events
// (5), and the read ends of the pipes behind 1 and 2 (6 and 7): output of children
// precedes what the script prints afterwards, see rawPipe. The child is nevertheless
// hostile: everything it sends is bounded and validated.
//
// Control and events are separate so that a short run wakes the agent once. At the
// beginning of a run nothing waits for events: they stay in the event buffer in shared
// memory and, when that is full, in their pipe, until the control message says that the
// run is done, or until the first tick.
//
// Where to look: start.go starts the interpreter, run.go runs a cell, interrupts it and
// kills the interpreter, output.go and eventbuffer.go collect output, decode.go validates it.
package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/guest/agent/rawio"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// Languages.
const (
	Python     = "python"
	JavaScript = "javascript"
)

var (
	// ErrBusy means that a run is in progress.
	ErrBusy = errors.New("kernel is running")
	// ErrEnded means that the kernel's process has ended.
	ErrEnded = errors.New("kernel has ended")
)

const (
	// readyTimeout bounds the start of an interpreter: a cold page cache and a slow
	// sandbox make it seconds.
	readyTimeout = 30 * time.Second
	// defaultGrace is the time between interrupt and kill.
	defaultGrace = 2 * time.Second
	// endTimeout bounds the wait for a killed process: SIGKILL takes milliseconds,
	// unless the process is stuck in the operating system.
	endTimeout = 5 * time.Second

	// firstTick is the age of a run at which its output is first collected: nobody
	// notices a shorter delay.
	firstTick = 50 * time.Millisecond
	// maxBlock bounds one wait that blocks everything else: twice the time that the
	// runtime lets a goroutine compute.
	maxBlock = 20 * time.Millisecond
	// busyTick and idleTick are the intervals between collecting output of a run that
	// prints and of one that does not.
	busyTick = 2 * time.Millisecond
	idleTick = 100 * time.Millisecond

	// interruptTimeout bounds writing an interrupt to a pipe with room for it, which
	// only a loaded machine delays.
	interruptTimeout = time.Second

	// maxHeld bounds the output of other processes between two runs, for each of stdout
	// and stderr.
	maxHeld = 64 << 10
	// eventPipe is the size of the event pipe, where the system permits it: the output
	// of a run that needs no waiting.
	eventPipe = 256 << 10
	readSize  = 64 << 10
	// drainSize bounds one collection, so that endless output cannot hide the end of a
	// run.
	drainSize = 1 << 20
	// stderrTail is how much of stderr the error quotes when a kernel does not start.
	stderrTail = 2 << 10
)

// Config describes the interpreter to start.
type Config struct {
	Language    string   // Python or JavaScript
	Interpreter string   // absolute path
	Home        string   // working directory
	Env         []string // KEY=value; nil: an empty environment
	// Command creates the child with its user and limits. Start sets environment,
	// directory, descriptors and session. Nil: exec.Command.
	Command func(argv []string) *exec.Cmd
	// Preload lists modules to import at start; missing ones are skipped.
	Preload []string
}

// Sink receives the output of a run. Its methods are called in order and never
// concurrently, must not keep their argument, and may block, which blocks the run.
type Sink interface {
	Output(ch protocol.Channel, p []byte)
	Display(d []byte) // JSON of protocol.Display
}

// Request is one cell to run.
type Request struct {
	Code    []byte
	Seed    []byte        // if not empty, reseeds the interpreter's random generators first
	Timeout time.Duration // 0: none
	// MayBlock allows the wait for the run to block this process, for 20 ms at a time:
	// nothing else happens in it until the descriptor WakeFD is readable.
	MayBlock bool
	WakeFD   int
	Grace    time.Duration // between interrupt and kill; 0: 2 s
	// Tools, if not empty, lets the code call the host: JSON of bridgecall.Setup.
	Tools []byte
	// Network, if not empty, changes variables and the certificates that are trusted
	// first: JSON with env, unset and ca.
	Network []byte
	// Program marks a whole program, the last code to run: see protocol.Run. The caller
	// must close the kernel afterwards. File is its absolute path; empty: none.
	Program bool
	File    string
}

// Result is the result of a cell.
type Result struct {
	OK         bool
	Error      *protocol.RunError // uncaught in user code
	Stopped    string             // "", "timeout" or "cancelled"
	Lost       string             // "", "killed", "exited" or "crashed"
	LostDetail string
	Seconds    float64
	Dropped    int // displays beyond the limits
}

// Kernel is a running interpreter. Its methods may be called concurrently.
type Kernel struct {
	language string
	pid      int
	version  string
	missing  []string // modules to preload that could not be imported

	in   *rawio.Writer   // commands
	ctl  *os.File        // control messages
	rc   syscall.RawConn // of ctl
	done chan struct{}   // closed after the process was reaped
	wg   sync.WaitGroup  // of the goroutines below

	busy    atomic.Bool // a run is in progress
	sending atomic.Bool // a command is being written
	run     uint32      // number of the last run; owned by the current run
	tools   bool        // the kernel has the script for calls; owned by the current run
	msg     []byte      // unparsed control bytes; owned by the current run

	procMu sync.Mutex
	reaped bool               // guarded by procMu: the process group may no longer be signaled
	killed bool               // guarded by procMu: killed by this package
	state  syscall.WaitStatus // guarded by procMu

	outMu    sync.Mutex   // held while output is collected and delivered: preserves the order
	events   int          // guarded by outMu: descriptor, -1 once closed
	eventBuf *eventBuffer // guarded by outMu: the first events of a run
	raw      [2]*rawPipe
	sink     Sink    // guarded by outMu: of the run under way
	dec      decoder // guarded by outMu
	buf      []byte  // guarded by outMu
	shown    int     // guarded by outMu: displays of this run
	dropped  int     // guarded by outMu
	bad      error   // guarded by outMu: what the kernel sent is no message
}

// PID returns the kernel's process id; it leads its session and group.
func (k *Kernel) PID() int { return k.pid }

// Version returns the interpreter's version.
func (k *Kernel) Version() string { return k.version }

// Missing returns the modules of Config.Preload that could not be imported.
func (k *Kernel) Missing() []string { return k.missing }

// Done returns a channel that is closed when the kernel's process has ended.
func (k *Kernel) Done() <-chan struct{} { return k.done }

// Close kills the kernel and its process group and waits for its end. A current run
// ends with Lost, but not before its Sink returns. Close may be called more than once.
func (k *Kernel) Close() error {
	k.kill()
	var err error
	select {
	case <-k.done:
	case <-time.After(endTimeout):
		err = fmt.Errorf("close kernel: process %d did not end within %v of SIGKILL", k.pid, endTimeout)
	}
	k.closePipes()
	if err == nil {
		k.wg.Wait()
	}
	return err
}

// closePipes closes the agent's ends, which ends a run and the watchers.
func (k *Kernel) closePipes() {
	k.in.Close()
	k.ctl.Close()
	k.raw[0].file.Close()
	k.raw[1].file.Close()
	k.outMu.Lock()
	defer k.outMu.Unlock()
	if k.events >= 0 {
		unix.Close(k.events)
		k.events = -1
	}
	k.eventBuf.close()
	k.raw[0].fd, k.raw[1].fd = -1, -1
}

// wait reaps the process and kills the rest of its group, which nobody owns any more.
func (k *Kernel) wait(cmd *exec.Cmd) {
	for {
		err := unix.Waitid(unix.P_PID, k.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			break
		}
	}
	k.procMu.Lock()
	unix.Kill(-k.pid, unix.SIGKILL)
	k.reaped = true
	cmd.Wait()
	if cmd.ProcessState != nil {
		k.state, _ = cmd.ProcessState.Sys().(syscall.WaitStatus)
	}
	k.procMu.Unlock()
	close(k.done)
}

// signal sends a signal to the kernel's process group.
func (k *Kernel) signal(sig unix.Signal) {
	k.procMu.Lock()
	defer k.procMu.Unlock()
	if k.reaped {
		return
	}
	if sig == unix.SIGKILL {
		k.killed = true
		unix.Kill(k.pid, unix.SIGKILL) // it may have left its group
	}
	unix.Kill(-k.pid, sig)
}

// sendInterruptCount tells a Node.js kernel how many SIGINTs the run got so far.
// The message interrupts a cell that waits in the event loop, and the kernel
// starts no later cell before these signals have taken effect: a thread of
// Node.js handles them, which may be late. Python handles a signal before it reads
// the next command, and needs no message.
func (k *Kernel) sendInterruptCount(run uint32, signals int) {
	// The pipe is empty: the kernel has read the code that it runs. A kernel
	// that has not is stuck, and killed after the grace period.
	payload := append(binary.BigEndian.AppendUint32(nil, run), byte(min(signals, 255)))
	k.in.WriteUntil(command(cmdInterrupts, payload), time.Now().Add(interruptTimeout))
}

func (k *Kernel) kill() { k.signal(unix.SIGKILL) }

// ending returns how the process ended.
func (k *Kernel) ending() (lost, detail string) {
	k.procMu.Lock()
	defer k.procMu.Unlock()
	switch ws := k.state; {
	case ws.Signaled() && k.killed:
		return "killed", "killed"
	case ws.Signaled():
		return "crashed", fmt.Sprintf("signal %d (%s)", int(ws.Signal()), ws.Signal())
	default:
		return "exited", fmt.Sprintf("exit code %d", ws.ExitStatus())
	}
}

// Types of the messages on the command pipe. The scripts in node and python read them.
const (
	cmdSetup      = 'S' // modules to preload; first, once
	cmdRun        = 'R' // run number, code of a cell
	cmdProgram    = 'P' // run number, path, null byte, code of a whole program
	cmdReseed     = 'E' // seed of the random generators
	cmdTools      = 'T' // JSON of bridgecall.Setup, or null; null byte; the first time a script
	cmdNetwork    = 'N' // JSON: variables to set and to unset, and a certificate to trust
	cmdInterrupts = 'X' // run number, count of SIGINTs; Node.js only
)

// Types of the messages on the control pipe.
const (
	msgReady = 'I' // the interpreter has started
	msgDone  = 'D' // a run is done
)

// command encodes a message to the kernel.
func command(typ byte, parts ...[]byte) []byte {
	n := 1
	for _, p := range parts {
		n += len(p)
	}
	b := make([]byte, 4, 4+n)
	binary.BigEndian.PutUint32(b, uint32(n))
	b = append(b, typ)
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}
