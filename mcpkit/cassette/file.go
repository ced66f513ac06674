package cassette

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// maxRecording bounds a recording in bytes, which suffices for some thousands of calls.
const maxRecording = 64 << 20

// A File is a recording on disk, readable by the user only. Its methods may be called
// concurrently.
type File struct {
	path string
	mu   sync.Mutex
	f    *os.File // guarded by mu
	left int64    // guarded by mu
	err  error    // guarded by mu: why the recording is incomplete
}

// Create creates a recording at path. It replaces an older recording, and returns an
// error for any other file. The caller closes it.
func Create(path string) (*File, error) {
	f, err := create(path)
	if err != nil {
		return nil, fmt.Errorf("record to %s: %w", path, err)
	}
	return &File{path: path, f: f, left: maxRecording}, nil
}

func create(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if !errors.Is(err, os.ErrExist) {
		return f, cause(err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		return nil, cause(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	if f, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
		return nil, cause(err)
	}
	err = func() error {
		// The name may denote another file by now.
		if now, err := f.Stat(); err != nil || !os.SameFile(info, now) {
			return errors.Join(errors.New("it was replaced in the meantime"), err)
		}
		if first, err := bufio.NewReader(io.LimitReader(f, maxHeader)).ReadBytes('\n'); len(first) > 0 {
			if _, bad := parseHeader(first); err != nil || bad != nil {
				return errors.New("the file exists and is not a recording; remove it, or choose another name")
			}
		}
		if err := f.Chmod(0o600); err != nil { // before it has content
			return err
		}
		_, err := f.Seek(0, io.SeekStart)
		return errors.Join(err, f.Truncate(0))
	}()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// cause removes the path, which the caller adds.
func cause(err error) error {
	if e := (*os.PathError)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}

// Write appends a line. After the first line that does not fit or cannot be written, it
// fails.
func (f *File) Write(line []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return 0, f.err
	}
	if int64(len(line)) > f.left {
		f.err = fmt.Errorf("record to %s: the limit of %d bytes is reached; the rest is missing", f.path, maxRecording)
		return 0, f.err
	}
	n, err := f.f.Write(line)
	f.left -= int64(n)
	if err != nil {
		f.err = fmt.Errorf("record to %s: %w", f.path, cause(err))
	}
	return n, f.err
}

// Close closes the recording. The error tells why it is incomplete.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := errors.Join(f.err, f.f.Close())
	if f.err == nil {
		f.err = fmt.Errorf("record to %s: %w", f.path, os.ErrClosed)
	}
	return err
}
