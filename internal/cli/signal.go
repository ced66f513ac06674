package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// signalled is the cause of a context that a signal cancelled.
type signalled struct{ sig os.Signal }

func (e *signalled) Error() string {
	switch e.sig {
	case syscall.SIGTERM:
		return "interrupted by SIGTERM"
	case syscall.SIGHUP:
		return "interrupted by SIGHUP"
	}
	return "interrupted by SIGINT"
}

func (e *signalled) code() int {
	if e.sig == syscall.SIGTERM {
		return 143
	}
	return ExitInterrupted
}

// untilSignal returns a context that the first SIGINT, SIGTERM or SIGHUP cancels, with
// a *signalled as its cause. A second signal, other than SIGHUP, calls hurried and exits the
// process, which kills its boxes. stop restores the default handling of signals.
//
// Signals within repeatDelay count as one: systemd, for example, signals every process of
// a cgroup, including the one that forwards signals.
//
// If hangups is not nil, a SIGHUP that does not come from a closed terminal is sent
// there and cancels nothing.
func untilSignal(ctx context.Context, hurried func(), hangups chan<- struct{}) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	ch := make(chan os.Signal, 4)
	attached := hasTerminal()
	signal.Notify(ch, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		var ended time.Time
		for {
			select {
			case sig := <-ch:
				if sig == syscall.SIGHUP && hangups != nil && (!attached || hasTerminal()) {
					select {
					case hangups <- struct{}{}:
					default: // one is pending already
					}
					continue
				}
				cause := &signalled{sig}
				switch {
				case ended.IsZero():
					ended = time.Now()
					cancel(cause)
				case sig != syscall.SIGHUP && time.Since(ended) > repeatDelay:
					hurried()
					os.Exit(cause.code())
				}
			case <-done:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(ch)
		close(done)
		cancel(nil)
	}
}

// repeatDelay is shorter than the time between two signals of a user, and longer than
// the forwarding of a signal takes.
const repeatDelay = 500 * time.Millisecond

// hasTerminal reports whether the process has a controlling terminal. A closed terminal
// is none.
func hasTerminal() bool {
	f, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	f.Close()
	return true
}

// note writes a line to standard error.
func (a *app) note(format string, args ...any) {
	fmt.Fprintf(a.Err, format+"\n", args...)
}
