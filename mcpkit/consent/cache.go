package consent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"syscall"
	"time"
)

const (
	// maxCached bounds the files in a cache.
	maxCached = 1024
	// settled is the age from which a file's time of change identifies its content:
	// a later write gets another time.
	settled = 2 * time.Second
)

// A Cache remembers the hashes of files by identity, size and times. Its zero value is
// empty. Its methods may be called concurrently.
type Cache struct {
	mu   sync.Mutex
	sums map[identity]string // guarded by mu
}

// An identity of a file changes with its content.
type identity struct {
	dev, ino        uint64
	size            int64
	modified, state int64 // times of the last change of the content, and of the file, in ns
}

// describe returns the hash of a file, or the text that stands for it: see [File]. It
// takes the bytes that it hashes, or would hash without the cache, from left.
func (c *Cache) describe(ctx context.Context, path string, left *int64) (string, error) {
	f, err := openFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENAMETOOLONG):
		return "", nil
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.ELOOP):
		return "unreadable", nil
	case errors.Is(err, syscall.ENXIO): // a socket
		return "special", nil
	case err != nil:
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return "", err
	case info.IsDir():
		return "directory", nil
	case !info.Mode().IsRegular():
		return "special", nil
	case info.Size() > min(maxFile, *left):
		return fmt.Sprintf("%d bytes of %s", info.Size(), info.ModTime().UTC().Format(time.RFC3339Nano)), nil
	}
	*left -= info.Size()
	id, known := identityOf(info)
	if known {
		c.mu.Lock()
		sum, hit := c.sums[id]
		c.mu.Unlock()
		if hit {
			return sum, nil
		}
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(reader{ctx, f}, maxFile)); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	sum := hex.EncodeToString(h.Sum(nil))
	if known && time.Since(time.Unix(0, id.state)) > settled {
		if info, err := f.Stat(); err == nil {
			if after, _ := identityOf(info); after == id {
				c.put(id, sum)
			}
		}
	}
	return sum, nil
}

func (c *Cache) put(id identity, sum string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sums == nil || len(c.sums) >= maxCached {
		c.sums = make(map[identity]string)
	}
	c.sums[id] = sum
}

// reader reads until ctx ends.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(b []byte) (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	return r.r.Read(b)
}
