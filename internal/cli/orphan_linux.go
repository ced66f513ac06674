package cli

import (
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// orphanTimeout bounds how long a server goes on after its client has killed it.
	orphanTimeout = 5 * time.Minute
	// orphanGrace is how long it waits for the calls in flight. They are cancelled, and end within
	// two seconds, unless their answers are written to a client that does not read them.
	orphanGrace = 5 * time.Second
)

// detachWhenOrphaned watches for the end of the parent process, which a client over standard input
// and output has started and may kill (see engine.Factory.Enter). It then releases the client's
// streams, since the client may wait for their end; untilSignal stops the server, which writes its
// boxes to disk. abandoned is closed orphanGrace later. The caller calls stop once.
func detachWhenOrphaned(log *slog.Logger) (abandoned <-chan struct{}, stop func()) {
	parent := os.Getppid()
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	late, done, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-hangups:
			case <-done:
				return
			}
			// The kernel sends the signal a moment before all threads see the new parent.
			for range 3 {
				if os.Getppid() == parent {
					time.Sleep(50 * time.Millisecond)
				}
			}
			if os.Getppid() == parent { // the signal was sent to the server
				continue
			}
			time.AfterFunc(orphanTimeout, func() { os.Exit(1) })
			err := detachStreams() // first: the client may not read its standard error any more
			log.Info("the client has killed the server; writing the boxes to disk", logkey.Timeout, orphanTimeout)
			if err != nil {
				log.Warn("streams of the client not released", logkey.Error, err)
			}
			select {
			case <-time.After(orphanGrace):
				close(late)
			case <-done:
			}
			return
		}
	}()
	return late, func() {
		signal.Stop(hangups)
		close(done)
		<-ended
	}
}

// detachStreams replaces the standard streams. Reads find the end of the input. The output becomes a
// pipe without a reader, so that the server cancels the calls in flight.
func detachStreams() error {
	err := replaceStreams(0, 1, 2)
	for _, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		_ = f.SetDeadline(time.Now()) // fails unless the client has made the stream non-blocking
	}
	return err
}

// replaceStreams is detachStreams for streams with other descriptors.
func replaceStreams(in, out, log int) error {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(null)
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	for _, to := range [][2]int{{null, in}, {pipe[1], out}, {null, log}} {
		if err := unix.Dup3(to[0], to[1], 0); err != nil {
			return err
		}
	}
	return restartCalls()
}

// restartCalls has the system calls that wait begin again, also the writes to a client that does not
// read, which hold locks that the server needs to stop, such as that of the log. They find the new
// files of their descriptors. The runtime of Go expects SIGURG at any time, and restarts calls after
// it.
func restartCalls() error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range threads {
		if id, err := strconv.Atoi(t.Name()); err == nil {
			_ = unix.Tgkill(os.Getpid(), id, unix.SIGURG) // the thread may have ended
		}
	}
	return nil
}
