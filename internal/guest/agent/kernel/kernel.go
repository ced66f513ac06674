// Package kernel keeps an interpreter (Python, Node.js) alive as a child process
// and runs cells of code in it, one after the other, in one lasting namespace.
// It starts, interrupts, kills and reaps that one process; which kernels exist,
// their limits and their names are the agent's.
//
// The child runs a script of ours. Descriptors 0, 1 and 2 belong to the user's
// code; the script has pipes of its own for commands (3), control messages (4)
// and events (5), and the reading ends of the pipes behind 1 and 2 (6 and 7): what
// children printed comes before what it prints itself, see rawPipe. The child is
// hostile all the same: everything that comes from it is bounded and
// checked.
//
// Control and events are apart so that a short run wakes the agent once. While a
// run is young nobody waits for events: they lie on a board in shared memory and,
// when that is full, in their pipe, until the control message says that the run
// is done, or until the first tick.
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
	// ErrBusy says that a run is under way.
	ErrBusy = errors.New("kernel is running")
	// ErrEnded says that the kernel's process has ended.
	ErrEnded = errors.New("kernel has ended")
)

const (
	// readyTimeout is how long an interpreter may take to start: a cold page
	// cache and a slow sandbox make it seconds, more is a hang.
	readyTimeout = 30 * time.Second
	// defaultGrace is the time between interrupt and kill.
	defaultGrace = 2 * time.Second
	// endTimeout bounds the wait for a killed process. SIGKILL takes
	// milliseconds; only a process stuck in the operating system takes longer.
	endTimeout = 5 * time.Second

	// firstTick is the age at which a run's output is first looked at: below it
	// nobody sees the delay.
	firstTick = 50 * time.Millisecond
	// blind is how long a run is waited for in a way that holds up all else: as
	// long as the runtime would let any goroutine compute, twice.
	blind = 20 * time.Millisecond
	// busyTick and idleTick bound the time between two looks at a run that
	// prints and at one that does not.
	busyTick = 2 * time.Millisecond

	// interruptTimeout bounds the writing of an interrupt into a pipe that has
	// room for it: only a machine under load needs any of it.
	interruptTimeout = time.Second
	idleTick         = 100 * time.Millisecond

	// maxHeld bounds what processes left behind may print between two runs, for
	// each of stdout and stderr.
	maxHeld = 64 << 10
	// eventPipe is the size of the pipe of events, where the system grants it:
	// what a young run may print without waiting for us.
	eventPipe = 256 << 10
	readSize  = 64 << 10
	// drainSize bounds one look, so that endless output cannot hide the end of a
	// run.
	drainSize = 1 << 20
	// stderrTail is how much of its stderr is quoted when a kernel does not start.
	stderrTail = 2 << 10
)

// Config says which interpreter to start and how.
type Config struct {
	Language    string   // Python or JavaScript
	Interpreter string   // absolute path
	Home        string   // working directory
	Env         []string // KEY=value; nil: an empty environment
	// Command makes the child: its user, its limits. Start sets environment,
	// directory, descriptors and session. Nil: exec.Command.
	Command func(argv []string) *exec.Cmd
	// Preload names modules to import at start; those that are missing are
	// passed over.
	Preload []string
}

// A Sink takes what a run shows. Its methods are called in order and never
// concurrently, must not keep their argument, and may block: then the run waits.
type Sink interface {
	Output(ch protocol.Channel, p []byte)
	Display(d []byte) // JSON of protocol.Display
}

// Request is one cell.
type Request struct {
	Code    []byte
	Seed    []byte        // if any, reseeds the interpreter's random generators first
	Timeout time.Duration // 0: none
	// Alone says that nothing else is going on in this process until Input can be
	// read. The run may then be waited for in a way that holds all else up, for
	// 20 ms at a time.
	Alone bool
	Input int
	Grace time.Duration // between interrupt and kill; 0: 2 s
	// Program says that the code is a whole program, and the last that is run: see
	// protocol.Run. The caller closes the kernel afterwards. File is its absolute path;
	// empty: it has none.
	Program bool
	File    string
}

// Result says how a cell ended.
type Result struct {
	OK         bool
	Error      *protocol.RunError // uncaught in the user's code
	Stopped    string             // "", "timeout" or "cancelled"
	Lost       string             // "", "killed", "exited" or "crashed"
	LostDetail string
	Seconds    float64
	Dropped    int // displays beyond the limits
}

// A Kernel is a running interpreter. Its methods may be called concurrently.
type Kernel struct {
	language string
	pid      int
	version  string
	missing  []string // of the modules to preload

	in   *rawio.Writer   // commands
	ctl  *os.File        // control messages
	rc   syscall.RawConn // of ctl
	done chan struct{}   // closed once the process was reaped
	wg   sync.WaitGroup  // of the goroutines below

	busy    atomic.Bool // a run is under way
	sending atomic.Bool // a command is being written
	run     uint32      // number of the last run; owned by the run under way
	msg     []byte      // control bytes not yet parsed; owned by the run under way

	procMu sync.Mutex
	reaped bool               // guarded by procMu: the process group is no longer ours
	killed bool               // guarded by procMu: ended by us
	state  syscall.WaitStatus // guarded by procMu

	outMu    sync.Mutex   // held while output is taken and delivered: it makes the order
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

// PID is the kernel's process, the leader of its session and group.
func (k *Kernel) PID() int { return k.pid }

// Version is the interpreter's.
func (k *Kernel) Version() string { return k.version }

// Missing are the modules of Config.Preload that could not be imported.
func (k *Kernel) Missing() []string { return k.missing }

// Done is closed when the kernel's process has ended.
func (k *Kernel) Done() <-chan struct{} { return k.done }

// Close kills the kernel and its process group and waits for its end. A run
// under way ends with Lost, but not before its Sink returns. Close may be called
// more than once.
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

// closePipes closes our ends. A run or a watcher under way notices.
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

// wait reaps the process, and kills what is left of its group: without the
// kernel nobody owns it.
func (k *Kernel) wait(cmd *exec.Cmd) {
	defer k.wg.Done()
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

// announceInterrupts tells a Node.js kernel how many SIGINTs the run got so far.
// The announcement interrupts a cell that waits in the event loop, and the kernel
// starts no later cell before these signals have taken effect: a thread of
// Node.js handles them, which may be late. Python handles a signal before it reads
// the next command, and needs no announcement.
func (k *Kernel) announceInterrupts(run uint32, signals int) {
	// The pipe is empty: the kernel has read the code that it runs. A kernel
	// that has not is stuck, and killed after the grace period.
	payload := append(binary.BigEndian.AppendUint32(nil, run), byte(min(signals, 255)))
	k.in.WriteUntil(command('X', payload), time.Now().Add(interruptTimeout))
}

func (k *Kernel) kill() { k.signal(unix.SIGKILL) }

// ending says how the process ended.
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

// command makes a message to the kernel.
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
