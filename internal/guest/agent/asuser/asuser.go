// Package asuser lets the agent, which runs as the guest's root, act with the rights of
// the guest's user, so that no file operation uses root's power.
package asuser

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// idleThreads is how many threads wait for calls. It covers a few concurrent callers;
// more of them create a thread each.
const idleThreads = 4

// Runner runs functions with the rights of one user. All methods may be called
// concurrently.
type Runner struct {
	uid, gid int
	inPlace  bool
	idle     chan *worker
}

// New returns a Runner for the user. With uid -1, or if the process is not root or the
// user is root, functions run as the process itself.
func New(uid, gid int) *Runner {
	return &Runner{
		uid: uid, gid: gid,
		inPlace: uid <= 0 || os.Geteuid() != 0,
		idle:    make(chan *worker, idleThreads),
	}
}

// Do runs fn with the user's rights and returns its error. fn must not start goroutines
// for its work: they have the rights of the process.
func (r *Runner) Do(fn func() error) error {
	if r.inPlace {
		return fn()
	}
	var w *worker
	select {
	case w = <-r.idle:
	default:
		w = &worker{calls: make(chan func()), ready: make(chan error, 1)}
		go w.run(r.uid, r.gid)
		if err := <-w.ready; err != nil {
			return err
		}
	}
	var err error
	var panicked any
	done := make(chan struct{})
	w.calls <- func() {
		defer close(done)
		defer func() { panicked = recover() }()
		err = fn()
	}
	<-done
	select {
	case r.idle <- w:
	default:
		close(w.calls)
	}
	if panicked != nil {
		panic(panicked)
	}
	return err
}

// worker is a goroutine with its own thread, which has the user's identity until it
// ends.
type worker struct {
	calls chan func()
	ready chan error
}

func (w *worker) run(uid, gid int) {
	// Never unlocked: the changed thread ends with the goroutine and does not return to
	// the pool.
	runtime.LockOSThread()
	err := become(uid, gid)
	w.ready <- err
	if err != nil {
		return
	}
	for call := range w.calls {
		call()
	}
}

// become changes the effective identity of the calling thread. The real and saved user
// stay root, so that the user can neither signal nor trace the thread.
func become(uid, gid int) error {
	const keep = ^uintptr(0)
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); e != 0 {
		return fmt.Errorf("drop groups: %w", e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, keep, uintptr(gid), keep); e != 0 {
		return fmt.Errorf("become group %d: %w", gid, e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); e != 0 {
		return fmt.Errorf("become user %d: %w", uid, e)
	}
	return nil
}
