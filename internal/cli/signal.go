package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
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
func untilSignal(ctx context.Context, hurried func()) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	ch := make(chan os.Signal, 4)
	signal.Notify(ch, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			select {
			case sig := <-ch:
				cause := &signalled{sig}
				if n > 0 {
					hurried()
					os.Exit(cause.code())
				}
				cancel(cause)
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

// note writes a line for the person at the terminal.
func (a *app) note(format string, args ...any) {
	fmt.Fprintf(a.Err, format+"\n", args...)
}
