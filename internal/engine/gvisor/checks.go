//go:build linux && (amd64 || arm64)

package gvisor

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// checkAge is how long the check of a file is valid: many boxes start from one
	// template, and corruption is rare.
	checkAge = 10 * time.Minute
	// checkRest is the minimum age of a file's last change when it is read: a change
	// shortly afterwards may have the same time.
	checkRest = 2 * time.Second
	// maxChecks bounds the recorded files: a template has three.
	maxChecks = 192
)

// checks records the files whose content matched its checksum, until they change. It is
// safe for concurrent use.
type checks struct {
	now func() time.Time

	mu   sync.Mutex
	good map[checked]time.Time // guarded by mu; when each was read
}

// checked is the state of a file when its checksum was verified. A later write changes
// ctime.
type checked struct {
	device, inode uint64
	size, ctime   int64 // ctime in nanoseconds
	sum           string
}

func newChecks(now func() time.Time) *checks {
	return &checks{now: now, good: make(map[checked]time.Time)}
}

// compare fails if the content of f is not what entry says.
func (c *checks) compare(ctx context.Context, f *os.File, entry fileEntry) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	id := checked{st.Dev, st.Ino, st.Size, st.Ctim.Nano(), entry.Sum}
	begun := c.now()
	if c.known(id, begun) {
		return nil
	}
	sum, err := sumFile(ctx, f, entry.Size)
	if err != nil {
		return err
	}
	if sum != entry.Sum {
		return fmt.Errorf("%s is damaged", entry.Name)
	}
	if begun.UnixNano()-id.ctime > checkRest.Nanoseconds() {
		c.add(id, begun)
	}
	return nil
}

func (c *checks) known(id checked, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.good[id]
	age := now.Sub(at)
	return ok && age >= 0 && age < checkAge
}

func (c *checks) add(id checked, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.good) >= maxChecks {
		clear(c.good)
	}
	c.good[id] = at
}
