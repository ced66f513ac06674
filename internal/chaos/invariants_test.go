//go:build linux && (amd64 || arm64) && !cgo

package chaos

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// trial is a run without faults of its own, for TestInvariants_CanFail.
type trial struct {
	*run
	t *testing.T
	n int // operations
}

// call counts up in a box, and returns whether that succeeded.
func (t *trial) call(s *subject) (ok bool) {
	t.n++
	t.inTurn(t.n, "call", s, func(ctx context.Context) error {
		err := s.callOrMake(ctx, fmt.Sprint("call", t.n))
		ok = err == nil
		return err
	})
	return ok
}

// control calls a box of the control owner.
func (t *trial) control(s *subject) {
	t.n++
	t.controlCall(t.n, s)
}

// kill kills the sentry of a box. The harness knows of the fault if noted.
func (t *trial) kill(s *subject, noted bool) {
	t.t.Helper()
	pid := 0
	if !polltest.Soon(10*time.Second, func() bool { pid = partOf("runsc-sandbox", s.guest()); return pid != 0 }) {
		t.t.Fatalf("%v has no sentry", s)
	}
	if noted {
		t.faults.note(&fault{kind: faultKill, stage: stageCall}, s.guest())
	}
	unix.Kill(pid, unix.SIGKILL)
	polltest.Soon(10*time.Second, func() bool { return unix.Kill(pid, 0) != nil })
}

// killAndCall kills the sentry of a box and calls until the box answers again.
func (t *trial) killAndCall(s *subject, noted bool) {
	t.t.Helper()
	if !t.call(s) {
		t.t.Fatalf("%v does not answer: %q", s, s.history)
	}
	t.kill(s, noted)
	for range 10 {
		if t.call(s) {
			return
		}
	}
	t.t.Errorf("%v does not answer again: %q", s, s.history)
}

func (t *trial) callTwice(s *subject) { t.call(s); t.call(s) }

// TestInvariants_CanFail breaks the manager or the engine, once or more for each invariant,
// and wants the violation.
func TestInvariants_CanFail(t *testing.T) {
	dir := stateDir(t)
	r := newRun(t, config{seed: 7, dir: dir, most: 1 << 20, patience: time.Second, out: io.Discard})
	r.agent = agentFile(t, dir)
	before := holdings()
	h, err := r.open(rand.New(rand.NewPCG(r.seed, 0)))
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() { r.watch(stop) })

	for i, c := range []struct {
		name   string
		broken broken
		want   string // kind of violation; "": none
		do     func(*trial, *subject)
	}{
		{"nothing is broken", broken{}, "", func(r *trial, s *subject) {
			r.callTwice(s)
			r.killAndCall(s, true)
			r.control(r.busy)
			r.control(r.busy)
		}},
		{"a lost box is not reported", broken{silent: true}, "lost", func(r *trial, s *subject) { r.killAndCall(s, true) }},
		{"variables vanish", broken{before: "globals().pop('token', None)\n"}, "lost", (*trial).callTwice},
		{"earlier variables are back", broken{before: "if 'n' in globals(): n -= 5\n"}, "lost", (*trial).callTwice},
		{"a file vanishes", broken{before: "import os\nif os.path.exists('count'): os.remove('count')\n"}, "lost", (*trial).callTwice},
		{"a box is lost without a fault", broken{}, "unexplained", func(r *trial, s *subject) { r.killAndCall(s, false) }},
		{"code fails without a fault", broken{before: "raise RuntimeError\n"}, "unexplained", (*trial).callTwice},
		{"a box does not start", broken{refuses: true}, "unexplained", (*trial).callTwice},
		{"a box of the control owner does not start", broken{refuses: true}, "neighbor", func(r *trial, _ *subject) { r.control(r.idle) }},
		{"a fault strikes the control owner", broken{}, "neighbor", func(r *trial, _ *subject) {
			r.control(r.busy)
			r.kill(r.busy, true)
			for range 3 { // the first one may find it ending
				r.control(r.busy)
			}
		}},
		{"a call hangs", broken{limit: 100 * time.Millisecond}, "hang", func(r *trial, s *subject) {
			r.n++
			r.do(r.n, "call", s, func(context.Context) error {
				polltest.Soon(20*time.Second, func() bool {
					r.mu.Lock()
					defer r.mu.Unlock()
					return r.kinds["hang"] > 0
				})
				return nil
			})
		}},
		{"guests are not destroyed", broken{immortal: true}, "leak", func(r *trial, s *subject) {
			r.call(s)
			r.n++
			r.inTurn(r.n, "stop", s, func(ctx context.Context) error { return s.stopBox(ctx, "stop") })
			r.checkGuests()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := r.subjects[i%len(r.subjects)]
			r.broken.Store(&c.broken)
			c.do(&trial{run: r, t: t, n: 100 * i}, s)
			r.broken.Store(&broken{})
			r.late.Store(false)
			r.inTurn(100*i+99, "stop", s, func(ctx context.Context) error { return s.stopBox(ctx, "stop") })
			kinds, violations := r.reset()
			switch {
			case c.want == "" && len(violations) > 0:
				t.Errorf("got the violations %s", strings.Join(violations, "\n"))
			case c.want != "" && kinds[c.want] == 0:
				t.Errorf("got the violations %v, want %q", kinds, c.want)
			}
		})
	}

	// Something is left of each kind. No subtests: each has a goroutine.
	var leaks leaks
	r.broken.Store(&broken{atBoot: sync.OnceFunc(func() { leaks.leak(t, dir) })})
	(&trial{run: r, t: t, n: 5000}).call(r.subjects[1])
	r.faults.end()
	if err := h.close(); err != nil {
		t.Error(err)
	}
	close(stop)
	watcher.Wait()
	r.checkHoldings(before)
	leaks.free()
	_, violations := r.reset()
	text := strings.Join(violations, "\n")
	for _, want := range leaks.want {
		if !strings.Contains(text, want) {
			t.Errorf("the leak %q was not reported in %.2000s", want, text)
		}
	}
	r.patience = settleTime
	r.checkHoldings(before)
	if _, violations := r.reset(); len(violations) > 0 {
		t.Errorf("nothing is left: got the violations %s", strings.Join(violations, "\n"))
	}
}

// reset returns the violations since the last time.
func (r *run) reset() (map[string]int, []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kinds, violations := r.kinds, r.violations
	r.kinds, r.violations = map[string]int{}, nil
	return kinds, violations
}

// leaks is something of each kind that may be left of a round.
type leaks struct {
	want   []string // what the report of it contains
	undone []func()
}

// leak leaves something of each kind.
func (l *leaks) leak(t *testing.T, dir string) {
	add := func(want string, err error, undo func()) {
		if err != nil {
			t.Errorf("leak %s: %v", want, err)
			return
		}
		l.want, l.undone = append(l.want, want), append(l.undone, undo)
	}
	end := make(chan struct{})
	for range 10 { // more than were about to end when the goroutines were counted
		go func() { <-end }()
	}
	add(" goroutines, ", nil, func() { close(end) })

	var files [2]int
	add(" descriptors, ", unix.Pipe2(files[:], unix.O_CLOEXEC), func() { unix.Close(files[0]); unix.Close(files[1]) })

	stray := filepath.Join(dir, "scratch", "stray")
	add(stray, os.Mkdir(stray, 0o700), func() { os.Remove(stray) })
	mount := filepath.Join(dir, "volume")
	add("mount "+mount, unix.Mount("chaos", mount, "tmpfs", 0, "size=64k"), func() { unix.Unmount(mount, 0) })

	process := exec.Command("sleep", "600")
	process.Args[0] = "runsc-gofer"
	add("process runsc-gofer ", process.Start(), func() { process.Process.Kill(); process.Wait() })

	if own := ownCgroups(); len(own) > 0 {
		group := filepath.Join(filepath.Dir(own[0]), fmt.Sprintf("glovebox-%d-stray", os.Getpid()))
		add("cgroup "+group, os.Mkdir(group, 0o755), func() { os.Remove(group) })
	}
}

// free frees what leak has left.
func (l *leaks) free() {
	for _, undo := range l.undone {
		undo()
	}
}
