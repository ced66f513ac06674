package engine

import (
	"context"
	"fmt"
	"log/slog"
	"time"
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
	// goroutines. Inside, it returns nil at once. Errors: *HostError,
	// ErrUnsupported.
	Enter func() error

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
	Disk DiskPolicy
}

// DiskPolicy divides the free space of a file system among guests and others. The zero
// value limits nothing but the single guest.
type DiskPolicy struct {
	// Guaranteed is the share of Limits.DiskMB, from 0 to 1, that is reserved for a
	// guest while it lives. A guest may write more, up to its limit, while there is
	// room; without room, it ends with ExitDisk.
	Guaranteed float64
	// Reserve is the number of bytes that guests and snapshots leave free.
	Reserve int64
	// Others, if set, returns how many more of the free bytes guests leave to others.
	// It is called often and concurrently, and must not block.
	Others func(free int64) int64
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
