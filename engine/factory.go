package engine

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/glovebox-dev/glovebox/engine/hostdisk"
)

// Factory makes engines of one kind. Its fields are constant. A program lists its
// factories in one place and otherwise does not depend on concrete engines.
type Factory struct {
	// Name is Info().Name of the engines, a word of [a-z0-9-].
	Name string

	// Version returns the version of the isolating software and its date; the
	// date is zero if unknown. It returns "" where the engine is not linked in.
	Version func() (version string, date time.Time)

	// Main, if set, runs the helper process of the engine that os.Args[0] names
	// and does not return then. Programs call it first in main.
	Main func()

	// Enter, if set, gives the calling process what engines need, such as
	// namespaces. It may execute the program again with the same arguments, in
	// which case it does not return; call it before opening files and starting
	// goroutines. Inside, it returns nil at once. If the calling process is killed,
	// the one that it has executed is killed too. With surviveParent that one gets SIGHUP
	// instead, and has a session of its own, which a signal to the process group of the
	// calling process does not reach. Errors: *HostError, ErrUnsupported.
	Enter func(surviveParent bool) error

	// Probe examines whether this host can run the engine, in a few milliseconds
	// and without changing the host. The engine works if no finding has LevelFail.
	Probe func(ctx context.Context) []Finding

	// Open returns an engine. The caller closes it.
	Open func(ctx context.Context, cfg Config) (Engine, error)
}

// Config is the configuration that all engines share.
type Config struct {
	// StateDir is a directory for the engine's files, created if missing. Required.
	// Several processes may use the same one.
	StateDir string
	// Log is the engine's log. Default: discarded.
	Log *slog.Logger
	// SweepEvery is the interval in which the engine removes resources of dead
	// processes. 0: only in Open.
	SweepEvery time.Duration
	// Disk limits how much of the file system of StateDir guests may fill. Engines
	// whose guests write elsewhere ignore it.
	Disk hostdisk.Policy
}

// Finding is one fact about this host.
type Finding struct {
	Name   string // the subject, a few words
	Level  Level
	Detail string // one line for people
	Fix    string // the command to type or the action to take; may be empty
}

// Level is the severity of a finding.
type Level string

// The closed set of levels.
const (
	LevelOK   Level = "ok"
	LevelWarn Level = "warn" // guests run, with weaker limits or slower
	LevelFail Level = "fail" // guests cannot run
)

// HostError is the error of an engine that this host cannot run until someone
// changes the host.
type HostError struct {
	Op    string // the failed operation, verb first
	Cause error
	Fix   string // the command to type or the action to take
}

func (e *HostError) Error() string { return fmt.Sprintf("%s: %v; %s", e.Op, e.Cause, e.Fix) }
func (e *HostError) Unwrap() error { return e.Cause }
