package hostdisk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
)

// TestFree_UnitsOfFragments: a file system may count its blocks in other units than the
// size that it prefers for writes.
func TestFree_UnitsOfFragments(t *testing.T) {
	const blocks, bsize, frsize = 1000, 1 << 20, 4096
	dir, err := os.Open(mountWith(t, blocks, bsize, frsize))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if got, err := Free(dir); err != nil || got != blocks*frsize {
		t.Errorf("got %d bytes, %v; want %d blocks of %d bytes", got, err, blocks, frsize)
	}
}

func TestFree_OfNoDescriptor(t *testing.T) {
	f, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if got, err := Free(f); err == nil {
		t.Errorf("a closed file: got %d bytes and no error", got)
	}
}

// mountWith mounts a FUSE file system that is served by this test and has the given
// numbers. It answers nothing but requests for them.
func mountWith(t *testing.T, blocks uint64, bsize, frsize uint32) string {
	t.Helper()
	dir := t.TempDir()
	dev, err := syscall.Open("/dev/fuse", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("open /dev/fuse: %v", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", dev)
	if err := syscall.Mount("glovebox-test", dir, "fuse.test", syscall.MS_NOSUID|syscall.MS_NODEV, options); err != nil {
		syscall.Close(dev)
		t.Skipf("mount a FUSE file system: %v", err)
	}
	served := make(chan error, 1)
	go func() { served <- serve(dev, blocks, bsize, frsize) }()
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
			syscall.Unmount(dir, syscall.MNT_DETACH)
		}
		if err := <-served; err != nil {
			t.Errorf("serve FUSE: %v", err)
		}
		syscall.Close(dev)
	})
	return dir
}

// Operations of FUSE; see linux/fuse.h.
const (
	fuseForget      = 2
	fuseStatfs      = 17
	fuseInit        = 26
	fuseDestroy     = 38
	fuseBatchForget = 42
	fuseMinor       = 31
)

// serve answers requests until the file system is unmounted.
func serve(dev int, blocks uint64, bsize, frsize uint32) error {
	le := binary.LittleEndian
	in := make([]byte, 64<<10)
	for {
		n, err := syscall.Read(dev, in)
		switch {
		case errors.Is(err, syscall.ENODEV): // unmounted
			return nil
		case errors.Is(err, syscall.EINTR), errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOENT):
			continue
		case err != nil:
			return fmt.Errorf("read request: %w", err)
		case n < 40:
			return fmt.Errorf("read request: only %d bytes", n)
		}
		out := make([]byte, 16) // its length, an error and the number of the request
		switch op := le.Uint32(in[4:]); op {
		case fuseForget, fuseBatchForget:
			continue // nobody waits for an answer
		case fuseInit:
			body := make([]byte, 64)
			le.PutUint32(body, 7)
			le.PutUint32(body[4:], fuseMinor)
			le.PutUint32(body[20:], 4096) // largest write
			out = append(out, body...)
		case fuseStatfs:
			body := make([]byte, 80)
			for i := range 3 { // all, free, available
				le.PutUint64(body[8*i:], blocks)
			}
			le.PutUint32(body[40:], bsize)
			le.PutUint32(body[44:], 255) // longest name
			le.PutUint32(body[48:], frsize)
			out = append(out, body...)
		case fuseDestroy:
		default:
			enosys := -int32(syscall.ENOSYS)
			le.PutUint32(out[4:], uint32(enosys))
		}
		le.PutUint32(out, uint32(len(out)))
		copy(out[8:], in[8:16])
		if _, err := syscall.Write(dev, out); err != nil && !errors.Is(err, syscall.ENOENT) {
			return fmt.Errorf("answer request: %w", err)
		}
	}
}
