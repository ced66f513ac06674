package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// signalled is the cause of a context that a signal ended.
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

// untilSignal returns a context that the first SIGINT, SIGTERM or SIGHUP ends,
// with a *signalled as its cause. The second one ends the process at once, with
// hurried called before; boxes end with the process. stop gives the signals back.
//
// Signals that come together are one: whoever tells a whole process group or
// cgroup to end, as systemd does, tells the process that passes signals on as well.
//
// What comes over hangups is a SIGHUP that does not end anything: somebody's
// wish, not the end of the terminal that the program runs in. nil: all end it.
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
					default: // one is waiting: it will see the same
					}
					continue
				}
				cause := &signalled{sig}
				switch {
				case ended.IsZero():
					ended = time.Now()
					cancel(cause)
				case time.Since(ended) > sameWish:
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

// sameWish is less than a person takes for a second thought, and more than a signal
// takes to be passed on.
const sameWish = 500 * time.Millisecond

// hasTerminal reports whether the process belongs to a terminal. After the end of
// the terminal it belongs to none.
func hasTerminal() bool {
	f, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	f.Close()
	return true
}

// note writes a line for the person at the terminal.
func (a *app) note(format string, args ...any) {
	fmt.Fprintf(a.Err, format+"\n", args...)
}
