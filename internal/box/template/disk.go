package template

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"crypto/rand"

	"github.com/glovebox-dev/glovebox/internal/owned"
	"github.com/glovebox-dev/glovebox/internal/syncfile"
)

// Files in a template's directory.
const (
	recordName = "template.json"
	imageName  = "image" // a directory, the engine's
	usedName   = "used"  // empty; its modification time is that of the last restore
)

// Other entries of the store's directory, each followed by a key.
const (
	newPrefix  = ".new-"  // being built, by the owner of the lock
	lockPrefix = ".lock-" // locked by the process that builds
	oldPrefix  = ".old-"  // being removed
)

// maxRecord bounds the size of a record.
const maxRecord = 1 << 20

// lockPoll is the interval between attempts to take a lock: flock has no timeout.
const lockPoll = 20 * time.Millisecond

// record is the file that describes a template.
type record struct {
	Inputs  inputs    `json:"inputs"`
	Missing []string  `json:"missing,omitempty"`
	Made    time.Time `json:"made"`
	Bytes   int64     `json:"bytes"`
}

func (r *record) template(key string) Template {
	return Template{Key: key, Spec: r.Inputs.Spec, Missing: r.Missing, Made: r.Made, Bytes: r.Bytes}
}

// readRecord reads the record of a template and checks that it belongs to the key.
func (s *Store) readRecord(key string) (*record, error) {
	dir, err := os.Lstat(s.path(key))
	if err == nil {
		err = owned.Info(s.path(key), dir)
	}
	if err != nil {
		return nil, err
	}
	f, err := owned.Open(s.path(key, recordName))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err != nil {
		return nil, err
	}
	r := new(record)
	if len(b) > maxRecord {
		return nil, errors.New("record too long")
	}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, err
	}
	if r.Inputs.key() != key {
		return nil, errors.New("record of another template")
	}
	return r, nil
}

// writeRecord writes the record of a template to dir and syncs it.
func writeRecord(dir string, r *record) error {
	b, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{usedName: nil, recordName: append(b, '\n')} {
		if err := syncfile.Create(filepath.Join(dir, name), content); err != nil {
			return err
		}
	}
	return syncfile.Dir(dir)
}

// sizeOf returns the total size of the files below dir.
func sizeOf(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			n += info.Size()
		}
		return err
	})
	return n, err
}

// openShared opens the directory of a template with a shared lock, which prevents its
// removal until the caller closes it. Errors: ErrNotFound, or the cause of ctx.
func (s *Store) openShared(ctx context.Context, key string) (*os.File, error) {
	if !isKey(key) {
		return nil, ErrNotFound
	}
	dir, err := os.Open(s.path(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	// Others lock it for the time of a rename.
	if err = lock(ctx, dir, shared, removeWait); err == nil && !isAt(dir, s.path(key)) {
		err = ErrNotFound
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// remove removes a template: first its name, then its files. dir is its directory if
// the caller has it open, otherwise nil; wait bounds the wait for other locks. Errors:
// ErrNotFound, ErrInUse.
func (s *Store) remove(ctx context.Context, key string, dir *os.File, wait time.Duration) error {
	path := s.path(key)
	if dir == nil {
		var err error
		if dir, err = os.Open(path); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				err = ErrNotFound
			}
			return err
		}
		defer dir.Close()
	}
	if err := lock(ctx, dir, exclusive, wait); err != nil {
		if errors.Is(err, errLocked) {
			err = ErrInUse
		}
		return err
	}
	if !isAt(dir, path) {
		return ErrNotFound
	}
	old := filepath.Join(s.cfg.Dir, oldPrefix+key+"-"+strings.ToLower(rand.Text()[:8]))
	if err := os.Rename(path, old); err != nil {
		return err
	}
	return os.RemoveAll(old)
}

// clean removes what killed processes left of builds and removals.
func (s *Store) clean() error {
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, oldPrefix) {
			errs = append(errs, os.RemoveAll(filepath.Join(s.cfg.Dir, name)))
		}
		key, isNew := strings.CutPrefix(name, newPrefix)
		if !isNew {
			key, isNew = strings.CutPrefix(name, lockPrefix)
		}
		if !isNew || !isKey(key) {
			continue
		}
		l, err := s.lockBuild(context.Background(), key, 0)
		if errors.Is(err, errLocked) {
			continue // it is being built
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, os.RemoveAll(filepath.Join(s.cfg.Dir, newPrefix+key)), l.release())
	}
	return errors.Join(errs...)
}

// buildLock is the lock for building a template.
type buildLock struct{ file *os.File }

// lockBuild takes the lock for building key, waiting at most wait for others.
func (s *Store) lockBuild(ctx context.Context, key string, wait time.Duration) (*buildLock, error) {
	path := filepath.Join(s.cfg.Dir, lockPrefix+key)
	end := time.Now().Add(wait)
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		if err := lock(ctx, f, exclusive, time.Until(end)); err != nil {
			f.Close()
			return nil, err
		}
		if isAt(f, path) {
			return &buildLock{f}, nil
		}
		f.Close() // its owner removed it: there may be a new file
	}
}

// release removes and unlocks the lock file.
func (l *buildLock) release() error {
	// Removed while locked, so that no two files of this name are locked.
	return errors.Join(os.Remove(l.file.Name()), l.file.Close())
}

// errLocked: another process kept the lock.
var errLocked = errors.New("locked by another process")

// lock locks an open file; closing the file unlocks it. It tries at least once, and for
// at most wait. Errors: errLocked, or the cause of ctx.
func lock(ctx context.Context, f *os.File, kind lockKind, wait time.Duration) error {
	end := time.Now().Add(wait)
	for {
		ok, err := tryLock(f, kind)
		if err != nil {
			return fmt.Errorf("lock %q: %w", f.Name(), err)
		}
		if ok {
			return nil
		}
		if !time.Now().Before(end) {
			return fmt.Errorf("lock %q: %w", f.Name(), errLocked)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(lockPoll):
		}
	}
}

// isAt reports whether path still names the open file.
func isAt(f *os.File, path string) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(path)
	return err == nil && os.SameFile(open, named)
}

// only returns the elements of list that are in of.
func only(list, of []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return !slices.Contains(of, s) })
}
