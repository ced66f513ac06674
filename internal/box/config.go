package box

import (
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/catalog"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/box/template"
	"github.com/glovebox-dev/glovebox/internal/fleet"
)

// Config bounds what a Manager keeps. Values are taken as they are: begin with
// DefaultConfig and change what differs.
type Config struct {
	MaxSessions      int // sessions of all owners at once
	MaxContexts      int // contexts of all owners at once
	MaxTotalMemoryMB int // of the flavors of all boxes together; 0: no limit
	MaxPerOwner      int // boxes of one owner at once; 0: no limit but Halves

	MaxMemoryPerOwnerMB int // of the flavors of one owner's boxes together; 0: no limit but Halves

	// Halves gives no owner more than half of MaxSessions and MaxContexts, unless MaxPerOwner is
	// set, and half of MaxTotalMemoryMB, unless MaxMemoryPerOwnerMB is set. One box always fits.
	Halves bool

	IdleTimeout     time.Duration // a box without calls for so long is hibernated, or ended where it cannot be
	CleanupInterval time.Duration // between two checks for expired boxes; shorter than IdleTimeout
	StartTimeout    time.Duration // for a box to start and its agent to answer
	ExecTimeout     time.Duration // of a call into a session that names none
	ContextTimeout  time.Duration // of code in a context that names none
	MaxTimeout      time.Duration // the most a call may ask for
	StopWait        time.Duration // how long stopping a context waits for its code

	Evict         bool // at a limit, hibernate (or end) an idle box instead of refusing a new one
	QueueLen      int  // calls that may wait for one kernel
	ParallelCalls int  // commands and file calls at once in one box

	PoolSize   int           // machines ready ahead, per template, of the default flavor; 0: none
	PoolMaxAge time.Duration // of a machine in the pool
	Preload    []string      // modules that the Python template imports, where present

	PauseAfter   time.Duration // a box without calls for so long is written to disk and paused; 0: never
	MaxSnapshots int           // saved snapshots of one owner

	DefaultFlavor  Flavor
	DefaultContext bool // whether Manager.DefaultContext makes contexts

	// A result goes to a model, to which 24 KiB are some 7,000 tokens. The whole
	// output is kept in the box.
	OutputHead   int   // bytes of the beginning of each stream that a result keeps
	OutputTail   int   // bytes of the end
	MaxImages    int   // in one result
	MaxImageSize int   // bytes of one decoded image
	MaxFileSize  int64 // bytes of one written file
}

// most returns the most boxes of a kind and the most memory that one owner may have of what all may.
func (c *Config) most(ofKind int) (boxes, memoryMB int) {
	boxes, memoryMB = math.MaxInt, math.MaxInt
	if c.Halves && c.MaxPerOwner == 0 {
		boxes = max(ofKind/2, 1)
	}
	if c.Halves && c.MaxMemoryPerOwnerMB == 0 && c.MaxTotalMemoryMB > 0 {
		memoryMB = c.MaxTotalMemoryMB / 2
	}
	return boxes, memoryMB
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		MaxSessions: 10, MaxContexts: 50,
		IdleTimeout: 1800 * time.Second, CleanupInterval: 60 * time.Second,
		StartTimeout: 180 * time.Second, ExecTimeout: 300 * time.Second,
		ContextTimeout: 30 * time.Second, MaxTimeout: 300 * time.Second,
		StopWait: 30 * time.Second,
		Evict:    true, QueueLen: 16, ParallelCalls: 16,
		PoolSize: 3, PoolMaxAge: 60 * time.Minute, PauseAfter: 30 * time.Second, MaxSnapshots: 100,
		DefaultFlavor: FlavorSmall, DefaultContext: true,
		OutputHead: 16 << 10, OutputTail: 8 << 10,
		MaxImages: 20, MaxImageSize: 4 << 20, MaxFileSize: 512 << 20,
	}
}

// Parts is what a Manager is made of.
type Parts struct {
	Machines *machine.Maker
	// Snapshots is where boxes are written to; nil: no box is hibernated or saved.
	// New sets its BeforeRemove function. Not closed by the Manager.
	Snapshots *snapshot.Store
	// Templates is where new boxes are restored from; nil: they are booted, and
	// there is no pool. Not closed by the Manager.
	Templates *template.Store
	// Catalog has the templates that users name; nil: there are none. Not closed by the
	// Manager.
	Catalog *catalog.Catalog
	// Images finds the root file system and the interpreters of another image than
	// that of Machines, by its key, for boxes of a language that were made with it.
	// The error is a clause that says what the image consists of and what is missing, a
	// *MissingImageError for an image that can be brought back.
	// nil: there are no others.
	Images func(key, language string) (engine.Root, map[string]string, error)
	// Agents finds the agent of another version of Glovebox by the SHA-256 of its
	// executable, in hex, for boxes that run it. nil: there are no others.
	Agents func(sum string) (engine.Program, bool)
	// Volumes chooses the volumes of an owner's boxes. Then there is no pool, and
	// Machines.Volumes are those of machines without an owner: what one of them writes must
	// not reach a box. nil: all boxes have Machines.Volumes.
	Volumes Volumes
	// Networks gives boxes their networks; nil: boxes have none. Not closed by the Manager.
	Networks Networks
	// Scratch lists the directories for snapshots that live for a moment. One that has no
	// room for a snapshot is passed over for the next. Default: the system's temporary directory.
	Scratch []string
	// Tombstones is a file that servers share, in which they write down what became
	// of boxes; "": a client learns it from the server that had the box, and only
	// until that stops.
	Tombstones string
	// Fleet is the servers that share boxes with this one; nil: there are none. A Manager
	// with a Fleet leaves its boxes to them when it closes.
	Fleet fleet.Fleet
	// Observe receives the events of boxes, synchronously and from many goroutines. It
	// must not call the Manager. nil: events are dropped.
	Observe func(Event)
	Log     *slog.Logger     // nil: nothing is logged
	Now     func() time.Time // nil: time.Now
}

// Validate returns an error that names the first field whose value makes no
// sense, and the value.
func (c *Config) Validate() error {
	for _, f := range []struct {
		name string
		v    int
	}{
		{"max sessions", c.MaxSessions}, {"max contexts", c.MaxContexts},
		{"queue length", c.QueueLen}, {"parallel calls", c.ParallelCalls},
		{"output head", c.OutputHead}, {"output tail", c.OutputTail},
		{"max images", c.MaxImages}, {"max image size", c.MaxImageSize}, {"max snapshots", c.MaxSnapshots},
	} {
		if f.v <= 0 {
			return fmt.Errorf("%s must be a positive integer, got %d", f.name, f.v)
		}
	}
	for _, f := range []struct {
		name string
		v    time.Duration
	}{
		{"session timeout", c.IdleTimeout}, {"cleanup interval", c.CleanupInterval},
		{"start timeout", c.StartTimeout}, {"execution timeout", c.ExecTimeout},
		{"context timeout", c.ContextTimeout}, {"max timeout", c.MaxTimeout},
		{"stop wait", c.StopWait}, {"pool max age", c.PoolMaxAge},
	} {
		if f.v <= 0 {
			return fmt.Errorf("%s must be positive, got %v", f.name, f.v)
		}
	}
	if c.MaxFileSize <= 0 {
		return fmt.Errorf("max file size must be a positive integer, got %d", c.MaxFileSize)
	}
	if c.CleanupInterval >= c.IdleTimeout {
		return fmt.Errorf("cleanup interval (%v) must be less than session timeout (%v)", c.CleanupInterval, c.IdleTimeout)
	}
	if c.ExecTimeout > c.MaxTimeout {
		return fmt.Errorf("execution timeout (%v) must not exceed max timeout (%v)", c.ExecTimeout, c.MaxTimeout)
	}
	if c.ContextTimeout > c.MaxTimeout {
		return fmt.Errorf("context timeout (%v) must not exceed max timeout (%v)", c.ContextTimeout, c.MaxTimeout)
	}
	if c.DefaultFlavor == "" {
		return fmt.Errorf("default flavor must be 'small', 'medium' or 'large', got ''")
	}
	if _, err := ParseFlavor(string(c.DefaultFlavor)); err != nil {
		return fmt.Errorf("default flavor must be 'small', 'medium' or 'large', got %q", c.DefaultFlavor)
	}
	if c.PoolSize < 0 {
		return fmt.Errorf("pool size must not be negative, got %d", c.PoolSize)
	}
	if c.PauseAfter < 0 {
		return fmt.Errorf("the time until boxes pause must not be negative, got %v", c.PauseAfter)
	}
	if c.MaxPerOwner < 0 {
		return fmt.Errorf("max per owner must not be negative, got %d", c.MaxPerOwner)
	}
	if need := c.DefaultFlavor.Limits().MemoryMB; c.MaxMemoryPerOwnerMB < 0 || c.MaxMemoryPerOwnerMB > 0 && c.MaxMemoryPerOwnerMB < need {
		return fmt.Errorf("max memory per owner (%dMB) must be at least the memory of the default flavor %s (%dMB)", c.MaxMemoryPerOwnerMB, c.DefaultFlavor, need)
	}
	if need := c.DefaultFlavor.Limits().MemoryMB; c.MaxTotalMemoryMB < 0 || c.MaxTotalMemoryMB > 0 && c.MaxTotalMemoryMB < need {
		return fmt.Errorf("max total memory (%dMB) must be at least the memory of the default flavor %s (%dMB)", c.MaxTotalMemoryMB, c.DefaultFlavor, need)
	}
	return nil
}
