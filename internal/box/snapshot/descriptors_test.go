//go:build linux

package snapshot

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestList_WithoutDescriptors: however many descriptors are left, List does not leave out a
// record that it could not read, and it lists the record once there are descriptors again.
func TestList_WithoutDescriptors(t *testing.T) {
	s := open(t, Config{})
	id := stored(t, s, box("a"), "content")
	old := time.Now().Add(-2 * settled) // so that the record may be cached
	if err := os.Chtimes(filepath.Join(s.dir, recordsDir, id), old, old); err != nil {
		t.Fatal(err)
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	low := limit
	low.Cur = 256
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
	var taken []int
	defer func() {
		for _, fd := range taken {
			syscall.Close(fd)
		}
	}()
	for {
		fd, err := syscall.Open("/dev/null", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		if err != nil {
			break
		}
		taken = append(taken, fd)
	}
	failed := 0
	for spare := range 6 {
		s.mu.Lock()
		s.seen, s.listed = nil, listing{}
		s.mu.Unlock()
		list, err := s.List(nil)
		if err == nil && len(list) != 1 {
			t.Errorf("with %d descriptors: got %d records and no error", spare, len(list))
		}
		if err != nil {
			failed++
		}
		last := len(taken) - 1
		syscall.Close(taken[last])
		taken = taken[:last]
		if list, err := s.List(nil); err == nil && len(list) != 1 {
			t.Errorf("with one descriptor more than %d: got %d records and no error", spare, len(list))
		}
	}
	if failed == 0 {
		t.Error("List never lacked a descriptor")
	}
	if list, err := s.List(nil); err != nil || len(list) != 1 {
		t.Errorf("with enough descriptors: got %d records, %v", len(list), err)
	}
}
