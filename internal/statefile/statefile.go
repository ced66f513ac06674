// Package statefile keeps small JSON documents on disk that several processes of
// one user share: what was consented to, tokens, what is known of servers. Readers
// see the whole of the last update or of the one before; updates take turns.
//
// It is not a database: a document is read and written as a whole, and bounded.
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
)

const (
	// maxSize bounds a document. What is kept here are names, hashes and tokens.
	maxSize = 4 << 20
	// lockTimeout bounds the wait for another process, which holds the lock while
	// it reads and writes a small file, or refreshes a token over the network.
	lockTimeout = 60 * time.Second
	// lockPoll is how often a lock that is taken is tried.
	lockPoll = 20 * time.Millisecond
)

// ErrUnsafe is what a file is that others than its owner may change: what it says
// is not what the user said.
var ErrUnsafe = errors.New("others may write to it")

// A File is a document of type T in a file. Its directory is made when it is first
// written, for nobody but the user, and so is the file. Methods may be called
// concurrently, also by other processes.
type File[T any] struct {
	// Path is where it is; a lock file with the suffix ".lock" lies beside it.
	Path string
	// Version is written with the document. A file of another version is an error.
	Version int
}

// document is what the file holds.
type document[T any] struct {
	Version int `json:"version"`
	Data    T   `json:"data"`
}

// Read returns the document, or the zero value if there is none yet. A file that
// others may write to is [ErrUnsafe].
func (f *File[T]) Read() (T, error) {
	data, err := f.read()
	if err != nil {
		err = fmt.Errorf("read %s: %w", f.Path, err)
	}
	return data, err
}

func (f *File[T]) read() (zero T, err error) {
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
	case runtime.GOOS != "windows" && info.Mode().Perm()&0o022 != 0:
		return zero, fmt.Errorf("%w: its mode is %v; type: chmod 600 %s", ErrUnsafe, info.Mode().Perm(), f.Path)
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
		return zero, fmt.Errorf("it is damaged (%w); remove it to begin anew", err)
	}
	if d.Version != f.Version {
		return zero, fmt.Errorf("it has version %d, this program knows %d", d.Version, f.Version)
	}
	return d.Data, nil
}

// Update reads the document, lets change work on it and replaces the file, all
// under the lock. If change returns an error the file stays as it is and the error
// is returned. The wait for the lock ends with ctx, and after a minute.
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
	// The lock file stays: removing it would let two others lock different files.
	return func() { _ = lock.Close() }, nil
}

func (f *File[T]) write(dir string, data T) error {
	b, err := json.MarshalIndent(document[T]{f.Version, data}, "", "  ")
	if err != nil {
		return err
	}
	if len(b) > maxSize {
		return fmt.Errorf("it would be larger than %d bytes", maxSize)
	}
	tmp, err := os.CreateTemp(dir, "."+filepath.Base(f.Path)+"-*") // its mode is 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(append(b, '\n'))
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), f.Path)
}
