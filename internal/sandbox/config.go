package sandbox

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

// Config bounds what a Manager keeps. Values are taken as they are: begin with
// DefaultConfig and change what differs.
type Config struct {
	MaxSessions      int // sessions of all owners at once
	MaxContexts      int // contexts of all owners at once
	MaxTotalMemoryMB int // of the flavors of all boxes together; 0: no limit
	MaxPerOwner      int // boxes of one owner at once; 0: no limit

	IdleTimeout     time.Duration // a box without calls for so long is ended
	CleanupInterval time.Duration // between two looks for idle boxes; shorter than IdleTimeout
	StartTimeout    time.Duration // for a box to boot and its agent to answer
	ExecTimeout     time.Duration // of a call into a session that names none
	ContextTimeout  time.Duration // of code in a context that names none
	MaxTimeout      time.Duration // the most a call may ask for
	StopWait        time.Duration // how long stopping a context waits for its code

	Evict         bool // at a limit, end the least recently used box instead of refusing
	QueueLen      int  // calls that may wait for one kernel
	ParallelCalls int  // commands and file calls at once in one box

	DefaultFlavor  Flavor
	DefaultContext bool // Context with an empty id makes and uses one context per owner

	Volumes []engine.Mount // in every box
	Home    string         // of the user inside
	UID     int            // of user code; -1: the agent's own
	GID     int            //
	Env     []string       // of user code, KEY=value

	OutputHead   int   // bytes of the beginning of each stream that a result keeps
	OutputTail   int   // bytes of the end
	MaxImages    int   // in one result
	MaxImageSize int   // bytes of one decoded image
	MaxFileSize  int64 // bytes of one written file
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
		DefaultFlavor: FlavorSmall, DefaultContext: true,
		Home: "/home/user", UID: engine.UserID, GID: engine.UserID,
		OutputHead: 48 << 10, OutputTail: 16 << 10,
		MaxImages: 20, MaxImageSize: 4 << 20, MaxFileSize: 512 << 20,
	}
}

// Parts is what a Manager is made of.
type Parts struct {
	Engine engine.Engine  // not closed by the Manager
	Agent  engine.Program // the agent's executable and arguments
	Root   engine.Root    // the file system of every box
	// Interpreters has the absolute path inside the box for each language that
	// the root file system offers: Python, JavaScript.
	Interpreters map[string]string
	Log          *slog.Logger     // nil: nothing is logged
	Now          func() time.Time // nil: time.Now
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
		{"max images", c.MaxImages}, {"max image size", c.MaxImageSize},
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
		{"stop wait", c.StopWait},
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
	if c.MaxPerOwner < 0 {
		return fmt.Errorf("max per owner must not be negative, got %d", c.MaxPerOwner)
	}
	if need := c.DefaultFlavor.Limits().MemoryMB; c.MaxTotalMemoryMB < 0 || c.MaxTotalMemoryMB > 0 && c.MaxTotalMemoryMB < need {
		return fmt.Errorf("max total memory (%dMB) must be at least the memory of the default flavor %s (%dMB)", c.MaxTotalMemoryMB, c.DefaultFlavor, need)
	}
	return nil
}
