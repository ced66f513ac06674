//go:build linux && (amd64 || arm64) && !cgo

package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
)

// stage is where a fault strikes: in a call of an operation into a box, or in an operation
// of the engine.
type stage string

const (
	stageCall     stage = "call"
	stageCreate   stage = "create"
	stageRestore  stage = "restore"
	stageDial     stage = "dial"
	stageSnapshot stage = "snapshot"
	stagePause    stage = "pause"
	stageResume   stage = "resume"
	stageStats    stage = "stats"
	stageDestroy  stage = "destroy"
	stageHost     stage = "host" // strikes all boxes
)

var stages = []stage{stageCreate, stageRestore, stageDial, stageSnapshot, stagePause, stageResume, stageStats, stageDestroy}

// The kinds of faults.
const (
	faultKill    = "kill"     // SIGKILL of the sentry
	faultGofer   = "gofer"    // SIGKILL of the gofer, where there is one
	faultStop    = "stop"     // SIGSTOP of the sentry, and SIGCONT later
	faultStopped = "stopped"  // SIGSTOP of the sentry without SIGCONT
	faultDelay   = "delay"    // the operation takes longer
	faultBefore  = "refuse"   // the operation fails before it begins
	faultAfter   = "withhold" // the operation succeeds and reports an error
	faultSlow    = "slow agent"
	faultDead    = "dead agent"
	faultCut     = "cut stream"
	faultDisk    = "full disk"
	faultFiles   = "no descriptors"
	faultCgroups = "no cgroups"
)

// fault is one fault of the schedule.
type fault struct {
	op     int // operation of the schedule that it belongs to
	kind   string
	stage  stage
	after  time.Duration // from the beginning of the operation to the signal
	length time.Duration // of a delay, a stop or a lack
	cause  error         // of an operation that fails
}

func (f *fault) String() string {
	return fmt.Sprintf("%s at %s after %v for %v", f.kind, f.stage, f.after, f.length)
}

// plannedPrefix begins the errors of operations that fail as planned.
const plannedPrefix = "chaos: "

// causes are the errors of operations that fail.
var causes = []error{
	fmt.Errorf(plannedPrefix+"%w: %w", unix.ENOSPC, engine.ErrExhausted),
	fmt.Errorf(plannedPrefix+"%w: %w", unix.EMFILE, engine.ErrExhausted),
	fmt.Errorf(plannedPrefix+"write cgroup: %w: %w", unix.EROFS, engine.ErrUnavailable),
	fmt.Errorf(plannedPrefix+"%w", engine.ErrUnavailable),
}

// newFault returns the fault of an operation, or nil; one operation in every has one.
func newFault(r *rand.Rand, op, every int) *fault {
	if r.IntN(every) != 0 {
		return nil
	}
	f := &fault{op: op, stage: stageCall, after: upTo(r, 60*time.Millisecond), length: 100*time.Millisecond + upTo(r, 900*time.Millisecond), cause: causes[r.IntN(len(causes))]}
	switch n := r.IntN(100); {
	case n < 25:
		f.kind = faultKill
	case n < 28:
		f.kind = faultGofer
	case n < 41:
		f.kind = faultStop
	case n < 42:
		f.kind = faultStopped
	case n < 57:
		f.kind = faultDelay
	case n < 69:
		f.kind = faultBefore
	case n < 78:
		f.kind = faultAfter
	case n < 84:
		f.kind = faultSlow
	case n < 86:
		f.kind = faultDead
	case n < 89:
		f.kind = faultCut
	case n < 93:
		f.kind, f.stage = faultDisk, stageHost
	case n < 97:
		f.kind, f.stage, f.length = faultFiles, stageHost, f.length/2
	default:
		f.kind, f.stage = faultCgroups, stageHost
	}
	switch f.kind {
	case faultDelay, faultBefore, faultAfter:
		f.stage = stages[r.IntN(len(stages))]
	case faultKill, faultGofer, faultStop, faultStopped:
		if r.IntN(2) == 0 {
			f.stage = stages[r.IntN(len(stages))]
		}
	}
	if f.stage == stageDestroy && (f.kind == faultBefore || f.kind == faultAfter) {
		f.kind = faultDelay
	}
	return f
}

func upTo(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }

// faults strikes with what is armed. All methods may be called concurrently.
type faults struct {
	dir  string // the state directory, on a file system of its own
	log  func(guest, format string, args ...any)
	spar bool // whether the boxes of the control owner are spared

	wg   sync.WaitGroup // of timers
	stop chan struct{}  // closed when the round ends: what is late does not strike any more

	sparing   atomic.Int32 // calls of the control owner in flight that may start a box
	hostUntil atomic.Int64 // when the last fault that strikes all ends, in Unix ns

	mu      sync.Mutex
	armed   map[stage][]*fault       // guarded by mu
	streams map[string]*faultyStream // guarded by mu; by guest
	spared  map[string]bool          // guarded by mu; guests of the control owner
	stopped map[int]bool             // guarded by mu; sentries that SIGSTOP has stopped for good
	struck  map[string]int           // guarded by mu; by kind and stage
	nearest map[string]time.Time     // guarded by mu; when a guest was struck the last time; "": a guest of an unknown box
	host    sync.Mutex               // held while a fault strikes all boxes
}

// newFaults returns the faults of a round. earlier are those of the round before, which explain what
// boxes report that ended in it; nil: there was none.
func newFaults(dir string, earlier *faults) *faults {
	fs := &faults{
		dir: dir, stop: make(chan struct{}), log: func(string, string, ...any) {}, spar: true,
		armed: map[stage][]*fault{}, streams: map[string]*faultyStream{}, spared: map[string]bool{},
		stopped: map[int]bool{}, struck: map[string]int{}, nearest: map[string]time.Time{},
	}
	if earlier != nil {
		earlier.mu.Lock()
		maps.Copy(fs.nearest, earlier.nearest)
		earlier.mu.Unlock()
		fs.hostUntil.Store(earlier.hostUntil.Load())
	}
	return fs
}

// maxArmed bounds the faults that wait for an operation of the engine.
const maxArmed = 2

// arm makes a fault strike at the next operation of the engine of its stage.
func (fs *faults) arm(f *fault) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if len(fs.armed[f.stage]) < maxArmed {
		fs.armed[f.stage] = append(fs.armed[f.stage], f)
	}
}

// take returns a fault that is armed for an operation on a guest.
func (fs *faults) take(s stage, guest string) *fault {
	starts := s == stageCreate || s == stageRestore || s == stageDial
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if len(fs.armed[s]) == 0 || fs.sparesLocked(guest) || fs.spar && starts && fs.sparing.Load() > 0 {
		return nil
	}
	f := fs.armed[s][0]
	fs.armed[s] = fs.armed[s][1:]
	return f
}

func (fs *faults) sparesLocked(guest string) bool { return fs.spar && fs.spared[guest] }

// spare protects a guest from all faults but those that strike all.
func (fs *faults) spare(guest string) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.spared[guest] = true
}

// note counts a fault that strikes.
func (fs *faults) note(f *fault, guest string) {
	fs.mu.Lock()
	fs.struck[f.kind+" at "+string(f.stage)]++
	at := time.Now()
	if f.kind == faultStopped || f.kind == faultDead {
		at = at.Add(time.Hour) // it lasts
	}
	if at.After(fs.nearest[guest]) {
		fs.nearest[guest] = at
	}
	fs.mu.Unlock()
	fs.log(guest, "fault of operation %d: %v", f.op, f)
}

// around performs an operation of the engine, with a fault if one is armed.
func (fs *faults) around(ctx context.Context, s stage, guest string, do func() error) error {
	f := fs.take(s, guest)
	if f == nil {
		return do()
	}
	fs.note(f, guest)
	switch f.kind {
	case faultBefore:
		return f.cause
	case faultAfter:
		if err := do(); err != nil {
			return err
		}
		return f.cause
	case faultDelay:
		select {
		case <-time.After(f.length):
		case <-ctx.Done():
		case <-fs.stop:
		}
		return do()
	}
	fs.wg.Go(func() { fs.signal(f, guest) })
	return do()
}

// strike aims a fault at a running guest.
func (fs *faults) strike(f *fault, guest string) {
	fs.mu.Lock()
	spared, stream := fs.sparesLocked(guest), fs.streams[guest]
	fs.mu.Unlock()
	if spared {
		return
	}
	fs.note(f, guest)
	fs.wg.Go(func() {
		switch f.kind {
		case faultSlow, faultDead, faultCut:
			if stream == nil || !fs.pause(f.after) {
				return
			}
			fs.disturb(f, stream)
		default:
			fs.signal(f, guest)
		}
	})
}

// disturb does something to the stream of an agent.
func (fs *faults) disturb(f *fault, s *faultyStream) {
	switch f.kind {
	case faultSlow:
		s.delay.Store(int64(f.length / 10))
		s.condition.Store(agentSlow)
		fs.pause(f.length)
		s.condition.CompareAndSwap(agentSlow, agentWell)
	case faultDead:
		s.condition.Store(agentDead)
	case faultCut:
		s.Close()
	}
}

// pause waits, and reports whether the round still goes on.
func (fs *faults) pause(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-fs.stop:
		return false
	}
}

// signalWait is how long a signal waits for the process of a guest that boots.
const signalWait = 500 * time.Millisecond

// signal sends signals to the processes of a guest.
func (fs *faults) signal(f *fault, guest string) {
	if !fs.pause(f.after) {
		return
	}
	name := "runsc-sandbox"
	if f.kind == faultGofer {
		name = "runsc-gofer"
	}
	pid := 0
	for end := time.Now().Add(signalWait); pid == 0 && time.Now().Before(end) && fs.pause(time.Millisecond); {
		pid = partOf(name, guest)
	}
	if pid == 0 {
		return // it has ended, or there is no gofer
	}
	switch f.kind {
	case faultKill, faultGofer:
		unix.Kill(pid, unix.SIGKILL)
	case faultStop:
		unix.Kill(pid, unix.SIGSTOP)
		fs.pause(f.length)
		unix.Kill(pid, unix.SIGCONT)
	case faultStopped:
		unix.Kill(pid, unix.SIGSTOP)
		fs.mu.Lock()
		fs.stopped[pid] = true
		fs.mu.Unlock()
	}
}

// partOf returns the process of a part of gVisor for a guest; 0 if there is none.
func partOf(name, guest string) int {
	for _, pid := range children() {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && bytes.HasPrefix(b, []byte(name+"\x00")) && bytes.HasSuffix(b, []byte("\x00"+guest+"\x00")) {
			return pid
		}
	}
	return 0
}

// children returns the child processes of this one.
func children() (list []int) {
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return nil
	}
	for _, name := range tasks {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		for _, s := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(s); err == nil {
				list = append(list, pid)
			}
		}
	}
	return list
}

func (fs *faults) dialled(guest string, s *faultyStream) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.streams[guest] = s
}

func (fs *faults) destroyed(guest string) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	delete(fs.streams, guest)
}

// near reports whether a fault may explain what happened to a guest since a time: one that
// struck the guest, the guest of a box that was starting, or all boxes.
func (fs *faults) near(since time.Time, guests ...string) bool {
	if fs.hostUntil.Load() > since.UnixNano() {
		return true
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, g := range guests {
		if at, ok := fs.nearest[g]; ok && at.After(since) {
			return true
		}
	}
	return false
}

// strikeHost makes a resource of the host run out for a while.
func (fs *faults) strikeHost(f *fault) {
	if !fs.host.TryLock() {
		return // one at a time
	}
	fs.hostUntil.Store(time.Now().Add(time.Hour).UnixNano())
	fs.note(f, "")
	fs.wg.Go(func() {
		defer fs.host.Unlock()
		// Operations that began meanwhile may fail a little later.
		defer func() { fs.hostUntil.Store(time.Now().UnixNano()) }()
		var end func()
		var err error
		switch f.kind {
		case faultDisk:
			end, err = fillDisk(fs.dir, int64(f.after))
		case faultFiles:
			end, err = exhaustFiles(int(f.after % 8))
		case faultCgroups:
			end, err = blockCgroups()
		}
		if err == nil {
			fs.pause(f.length)
			end()
		} else {
			fs.log("", "fault of operation %d: %v: %v", f.op, f, err)
		}
	})
}

// end ends all faults, except that sentries stopped for good stay so.
func (fs *faults) end() {
	fs.mu.Lock()
	clear(fs.armed)
	fs.mu.Unlock()
	close(fs.stop)
	fs.wg.Wait()
}

// release ends the faults that do not end by themselves.
func (fs *faults) release() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	own := children()
	for pid := range fs.stopped {
		if slices.Contains(own, pid) { // otherwise another process may have its number
			unix.Kill(pid, unix.SIGCONT)
		}
	}
	clear(fs.stopped)
}

// freeMB returns how much of a file system is free.
func freeMB(dir string) int64 {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return -1
	}
	return int64(st.Bavail) * st.Bsize >> 20
}

// fillDisk shrinks the file system of the state directory to what is in it and some bytes,
// up to 1 MiB, until end is called.
func fillDisk(dir string, leave int64) (end func(), err error) {
	resize := func(bytes int64) error {
		return unix.Mount("chaos", dir, "", unix.MS_REMOUNT, fmt.Sprintf("size=%d", bytes))
	}
	for range 10 { // it refuses to be smaller than what others have written meanwhile
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return nil, err
		}
		err = resize(int64(st.Blocks-st.Bfree)*st.Bsize + leave%(1<<20))
		if !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("shrink the file system: %w", err)
	}
	return func() {
		if err := resize(diskMB << 20); err != nil {
			panic(err)
		}
	}, nil
}

// exhaustFiles lets this process open only a few descriptors more.
func exhaustFiles(more int) (end func(), err error) {
	var old, lack unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		return nil, err
	}
	highest := 0
	for _, fd := range descriptors() {
		highest = max(highest, fd)
	}
	lack = old
	lack.Cur = uint64(highest + 1 + more)
	if err := setFiles(&lack); err != nil {
		return nil, err
	}
	return func() {
		if err := setFiles(&old); err != nil {
			panic(err)
		}
	}, nil
}

// setFiles sets the limit of descriptors of this process only. That of package syscall
// would also change what child processes get.
func setFiles(limit *unix.Rlimit) error {
	_, _, errno := syscall.RawSyscall6(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, uintptr(unsafe.Pointer(limit)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// descriptors returns the numbers of the open descriptors.
func descriptors() (list []int) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil {
			list = append(list, fd)
		}
	}
	return list
}

var errNoCgroups = errors.New("the engine has no cgroups here")

// blockCgroups makes the cgroups of the engine read-only.
func blockCgroups() (end func(), err error) {
	dirs := ownCgroups()
	if len(dirs) == 0 {
		return nil, errNoCgroups
	}
	var blocked []string
	end = func() {
		for _, dir := range blocked {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				panic(fmt.Sprintf("unmount %s: %v", dir, err))
			}
		}
	}
	for _, dir := range dirs {
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			end()
			return nil, err
		}
		blocked = append(blocked, dir)
		if err := unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			end()
			return nil, err
		}
	}
	return end, nil
}

// ownCgroups returns the directories of the cgroups that the engine of this process made.
func ownCgroups() (list []string) {
	for _, pattern := range []string{"/sys/fs/cgroup/glovebox-%d-*", "/sys/fs/cgroup/*/glovebox-%d-*"} {
		found, err := filepath.Glob(fmt.Sprintf(pattern, os.Getpid()))
		if err == nil {
			list = append(list, found...)
		}
	}
	return list
}
