package agent

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/guest/agent/bridgecall"
	"github.com/glovebox-dev/glovebox/internal/guest/agent/rawio"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// Name is the base name of argv[0] that selects the agent in a program that links this
// package.
const Name = "glovebox-guest"

// Main runs the agent over standard input and output until the input ends, or under its
// other name the program with which the shell calls tools, and returns the exit code.
func Main() int {
	if filepath.Base(os.Args[0]) == bridgecall.Program {
		return bridgecall.Main(os.Args[1:])
	}
	if err := run(slog.New(slog.NewTextHandler(os.Stderr, nil))); err != nil {
		fmt.Fprintln(os.Stderr, "glovebox-guest: error:", err)
		return 1
	}
	return 0
}

func run(log *slog.Logger) error {
	// The agent mostly waits. With one processor no thread is woken to share the work,
	// which would cost more than the work.
	runtime.GOMAXPROCS(1)
	in, err := rawio.NewReader(0)
	if err != nil {
		return err
	}
	out, err := rawio.NewWriter(1)
	if err != nil {
		return err
	}
	a := newAgent(log, out, os.Getpid() == 1)
	a.inputFD = 0
	if err := a.setUpProcess(); err != nil {
		return err
	}
	return a.serve(in)
}

func newAgent(log *slog.Logger, out io.Writer, init bool) *agent {
	return &agent{log: log, out: protocol.NewOutbox(out), build: buildID(), init: init, inputFD: -1}
}

// setUpProcess prepares the process: it adopts orphans, ignores signals that end
// ordinary programs, and closes its descriptors on exec.
func (a *agent) setUpProcess() error {
	// Caught and dropped, not ignored: children inherit ignored signals.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE, unix.SIGHUP, unix.SIGINT)
	// Children inherit none of the agent's descriptors.
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("list descriptors: %w", err)
	}
	for _, e := range fds {
		if fd, err := strconv.Atoi(e.Name()); err == nil {
			unix.CloseOnExec(fd)
		}
	}
	// The agent adopts the orphans of its children, so that no zombie is left.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err == nil || a.init {
		a.reaper = startReaper()
	}
	return nil
}

// buildID returns the agent's build for logs.
func buildID() string {
	bi, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	rev := ""
	for _, s := range bi.Settings {
		if s.Key == "vcs.revision" {
			rev = s.Value
		}
	}
	return bi.GoVersion + " " + bi.Main.Version + " " + rev
}
