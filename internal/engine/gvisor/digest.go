//go:build linux && (amd64 || arm64)

package gvisor

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/regular"
)

// maxDigests bounds the executables that are remembered: few are in use.
const maxDigests = 64

// digests are the SHA-256 sums of executables, remembered while the files are as
// they were.
type digests struct {
	mu    sync.Mutex
	known map[string]digest // guarded by mu; by path
}

type digest struct {
	size, mtime int64
	inode       uint64
	sum         string
}

func newDigests() *digests { return &digests{known: make(map[string]digest)} }

// of returns the digest of an executable.
func (d *digests) of(path string) (string, error) {
	f, err := regular.Open(path)
	if err != nil {
		return "", fmt.Errorf("find agent: %w: %w", err, engine.ErrInvalid)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "", fmt.Errorf("find agent: %w", err)
	}
	now := digest{size: st.Size, mtime: st.Mtim.Nano(), inode: st.Ino}
	d.mu.Lock()
	have, ok := d.known[path]
	d.mu.Unlock()
	if ok && have.size == now.size && have.mtime == now.mtime && have.inode == now.inode {
		return have.sum, nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read agent: %w", err)
	}
	now.sum = hex.EncodeToString(h.Sum(nil))
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.known) >= maxDigests {
		clear(d.known)
	}
	d.known[path] = now
	return now.sum, nil
}
