package snapshot

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
)

// stillName is the file in a record of a box that does nothing; see Lease.SetStill.
const stillName = "still"

// bootID identifies the running system from its start to its end; "" if it has no such
// id.
var bootID = sync.OnceValue(func() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
})

// SetStill notes that the box does nothing and that the data are its latest state: if
// the process is killed before ClearStill, the next Acquire returns Live false. The note
// is not synced and does not outlive a restart of the host. It does nothing without
// data.
//
// Errors: os.ErrClosed after Release or Remove.
func (l *Lease) SetStill() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.done:
		return os.ErrClosed
	case l.e.Gen == 0 || bootID() == "":
		return nil
	}
	f, err := l.dir.OpenFile(stillName, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(bootID())
	return errors.Join(err, f.Close())
}

// ClearStill ends SetStill. It must return before the box continues.
func (l *Lease) ClearStill() error {
	if err := l.dir.Remove(stillName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// isStill reports whether SetStill applies to the record in dir.
func isStill(dir *os.Root) bool {
	f, err := dir.Open(stillName)
	if err != nil {
		return false
	}
	defer f.Close()
	id, err := io.ReadAll(io.LimitReader(f, 256))
	return err == nil && len(id) > 0 && string(id) == bootID()
}
