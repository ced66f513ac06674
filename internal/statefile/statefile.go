// Package statefile stores small JSON documents that several processes of one user
// share, such as approvals, tokens and facts about servers. Readers see a document
// before or after an update, never in between; updates are exclusive.
//
// It is not a database: a document is read and written as a whole, and its size is
// bounded.
package statefile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/gofrs/flock"

	"github.com/glovebox-dev/glovebox/internal/owned"
	"github.com/glovebox-dev/glovebox/internal/syncfile"
)

const (
	// maxSize bounds a document, which contains names, hashes and tokens.
	maxSize = 4 << 20
	// lockTimeout bounds the wait for another process, which holds the lock while it
	// reads and writes a small file, or while it refreshes a token over the network.
	lockTimeout = 60 * time.Second
	// lockPoll is the interval between attempts to take the lock.
	lockPoll = 20 * time.Millisecond
)

// ErrUnsafe reports a file that others can write to or replace, or that belongs to
// another user, so that its content may not be the user's.
var ErrUnsafe = errors.New("others can write to it")

// A File is a document of type T in a file. The first update creates the directory and
// the file, readable by the user only. Methods may be called concurrently, also by
// other processes.
type File[T any] struct {
	// Path is the path of the file. Its lock file has the suffix ".lock".
	Path string
	// Version is stored with the document. A file with another version is an error.
	Version int
}

// document is the content of the file.
type document[T any] struct {
	Version int `json:"version"`
	Data    T   `json:"data"`
}

// Read returns the document, or the zero value if the file does not exist. The error is
// [ErrUnsafe] if others can write to the file.
func (f *File[T]) Read() (T, error) {
	data, err := f.read()
	if err != nil {
		err = fmt.Errorf("read %s: %w", f.Path, err)
	}
	return data, err
}

func (f *File[T]) read() (zero T, err error) {
	// The file may be a symbolic link, as of people who keep their settings elsewhere.
	if err := owned.AboveState(f.Path); err != nil {
		return zero, fmt.Errorf("%w: %w", ErrUnsafe, err)
	}
	file, err := os.Open(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return zero, nil
	}
	if err != nil {
		return zero, errors.Unwrap(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return zero, err
	}
	switch {
	case !info.Mode().IsRegular():
		return zero, errors.New("it is not a regular file")
	case runtime.GOOS != "windows" && info.Mode().Perm()&0o022 != 0 && !owned.OnlyUser():
		return zero, fmt.Errorf("%w: its mode is %v; type: chmod 600 %s", ErrUnsafe, info.Mode().Perm(), f.Path)
	}
	if err := owned.Info(f.Path, info); err != nil {
		return zero, fmt.Errorf("%w: %w", ErrUnsafe, err)
	}
	b, err := io.ReadAll(io.LimitReader(file, maxSize+1))
	if err != nil {
		return zero, err
	}
	if len(b) > maxSize {
		return zero, fmt.Errorf("it is larger than %d bytes", maxSize)
	}
	var d document[T]
	dec := json.NewDecoder(bytes.NewReader(b))
	if err := dec.Decode(&d); err != nil {
		return zero, fmt.Errorf("the file is damaged (%w); delete it to reset", err)
	}
	if d.Version != f.Version {
		return zero, fmt.Errorf("it has version %d, this program supports %d", d.Version, f.Version)
	}
	return d.Data, nil
}

// Update reads the document, calls change with it and replaces the file, while it holds
// the lock. If change returns an error, the file stays unchanged and Update returns
// that error. The wait for the lock is bounded by ctx and by a minute.
func (f *File[T]) Update(ctx context.Context, change func(*T) error) error {
	dir := filepath.Dir(f.Path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("update %s: %w", f.Path, err)
	}
	unlock, err := f.lock(ctx)
	if err != nil {
		return fmt.Errorf("update %s: %w", f.Path, err)
	}
	defer unlock()
	data, err := f.read()
	if err != nil {
		return fmt.Errorf("update %s: %w", f.Path, err)
	}
	if err := change(&data); err != nil {
		return err
	}
	if err := f.write(dir, data); err != nil {
		return fmt.Errorf("update %s: %w", f.Path, err)
	}
	return nil
}

func (f *File[T]) lock(ctx context.Context) (unlock func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, lockTimeout, fmt.Errorf("another process holds %s.lock for more than %v", f.Path, lockTimeout))
	defer cancel()
	lock := flock.New(f.Path+".lock", flock.SetPermissions(0o600))
	if _, err := lock.TryLockContext(ctx, lockPoll); err != nil {
		_ = lock.Close()
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		return nil, err
	}
	// Keep the lock file: without it, two others could lock different files.
	return func() { _ = lock.Close() }, nil
}

func (f *File[T]) write(dir string, data T) error {
	b, err := json.MarshalIndent(document[T]{f.Version, data}, "", "  ")
	if err != nil {
		return err
	}
	if len(b) > maxSize { // for people; many short values are mostly spaces
		if b, err = json.Marshal(document[T]{f.Version, data}); err != nil {
			return err
		}
	}
	if len(b) > maxSize {
		return fmt.Errorf("it would be larger than %d bytes", maxSize)
	}
	return syncfile.Replace(f.Path, append(b, '\n'), 0o600)
}
