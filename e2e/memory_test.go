package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whence of lseek(2) that package io does not name.
const (
	seekData = 3
	seekHole = 4
)

// has reports whether the memory of a process contains a value: what it has mapped, and
// the files in memory that it has open, in which a sentry keeps the memory of its box.
func has(t *testing.T, pid int, value string) bool {
	t.Helper()
	return inMapped(t, pid, []byte(value)) || inFiles(t, pid, []byte(value))
}

// inMapped searches the mappings of a process that have no file in memory behind them.
func inMapped(t *testing.T, pid int, value []byte) bool {
	t.Helper()
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatalf("read the memory of a process: %v", err)
	}
	defer mem.Close()
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		var start, end int64
		var rights string
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x %s", &start, &end, &rights); n != 3 || rights[0] != 'r' || inMemory(lines.Text()) {
			continue
		}
		if contains(mem, start, end, value) {
			return true
		}
	}
	return false
}

func inMemory(name string) bool { return strings.Contains(name, "/memfd:") }

// inFiles searches the files in memory that a process has open, without their holes.
func inFiles(t *testing.T, pid int, value []byte) bool {
	t.Helper()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if name, err := os.Readlink(link); err != nil || !inMemory(name) {
			continue
		}
		f, err := os.Open(link)
		if err != nil {
			t.Fatalf("read the memory of a process: %v", err)
		}
		found := inData(f, value)
		f.Close()
		if found {
			return true
		}
	}
	return false
}

func inData(f *os.File, value []byte) bool {
	for at := int64(0); ; {
		start, err := f.Seek(at, seekData)
		if err != nil { // no data are left
			return false
		}
		end, err := f.Seek(start, seekHole)
		if err != nil {
			return false
		}
		if contains(f, start, end, value) {
			return true
		}
		at = end
	}
}

// contains reports whether the bytes from start to end contain a value. Pages that cannot
// be read are left out.
func contains(r io.ReaderAt, start, end int64, value []byte) bool {
	buf := make([]byte, 4<<20)
	for at := start; at < end; {
		n, err := r.ReadAt(buf[:min(int64(len(buf)), end-at)], at)
		if bytes.Contains(buf[:n], value) {
			return true
		}
		switch {
		case n == 0 && (err == nil || errors.Is(err, io.EOF)):
			return false
		case n == 0: // a page that is not there
			at += 4 << 10
		case at+int64(n) >= end:
			return false
		default:
			at += max(int64(n-len(value)+1), 1) // the value may begin in one part and end in the next
		}
	}
	return false
}
