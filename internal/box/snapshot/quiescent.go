package snapshot

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
)

// quiescentName is the file in a record of a box that does nothing; see Lease.SetQuiescent.
const quiescentName = "still"

// bootID identifies the running system from its start to its end; "" if it has no such
// id.
var bootID = sync.OnceValue(func() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
})

// SetQuiescent notes that the box does nothing and that the data are its latest state: if
// the process is killed before ClearQuiescent, the next Acquire returns Stale false. The note
// is not synced and does not outlive a restart of the host. It does nothing without
// data.
//
// Errors: os.ErrClosed after Release or Remove.
func (l *Lease) SetQuiescent() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.done:
		return os.ErrClosed
	case l.e.Gen == 0 || bootID() == "":
		return nil
	}
	f, err := l.dir.OpenFile(quiescentName, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(bootID())
	return errors.Join(err, f.Close())
}

// ClearQuiescent ends SetQuiescent. It must return before the box continues.
func (l *Lease) ClearQuiescent() error {
	if err := l.dir.Remove(quiescentName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// isQuiescent reports whether SetQuiescent applies to the record in dir.
func isQuiescent(dir *os.Root) bool {
	f, err := dir.Open(quiescentName)
	if err != nil {
		return false
	}
	defer f.Close()
	id, err := io.ReadAll(io.LimitReader(f, 256))
	return err == nil && len(id) > 0 && string(id) == bootID()
}
