package rawio

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func pipe(t *testing.T) (r, w int) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	return p[0], p[1]
}

// TestPipeTransfer sends more than a pipe holds, in pieces of every size, to a reader
// that starts late.
func TestPipeTransfer(t *testing.T) {
	rfd, wfd := pipe(t)
	r, err := NewReader(rfd)
	if err != nil {
		t.Fatal(err)
	}
	w, err := NewWriter(wfd)
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
	wrote := make(chan error, 1)
	go func() {
		defer w.Close()
		for p, n := want, 1; len(p) > 0; n = n*3 + 1 {
			part := p[:min(n, len(p))]
			if m, err := w.Write(part); err != nil || m != len(part) {
				wrote <- errors.Join(err, io.ErrShortWrite)
				return
			}
			p = p[len(part):]
		}
		wrote <- nil
	}()
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %d bytes, %v, want %d", len(got), err, len(want))
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
}

// TestWriteUntil checks that a write to a pipe without a reader ends at the deadline
// and reports how much was written.
func TestWriteUntil(t *testing.T) {
	rfd, wfd := pipe(t)
	defer unix.Close(rfd)
	w, err := NewWriter(wfd)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	big := make([]byte, 4<<20)
	n, err := w.WriteUntil(big, time.Now().Add(10*time.Millisecond))
	if !errors.Is(err, os.ErrDeadlineExceeded) || n == 0 || n == len(big) {
		t.Errorf("got %d, %v, want a part and os.ErrDeadlineExceeded", n, err)
	}
	if n, err := w.WriteUntil(big, time.Now().Add(-time.Second)); !errors.Is(err, os.ErrDeadlineExceeded) || n != 0 {
		t.Errorf("past deadline: got %d, %v", n, err)
	}
}

// TestWriteClosed checks that a waiting write ends when the reader closes its end.
func TestWriteClosed(t *testing.T) {
	rfd, wfd := pipe(t)
	w, err := NewWriter(wfd)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := w.Write(make([]byte, 4<<20))
		ended <- err
	}()
	buf := make([]byte, 1)
	if n, err := unix.Read(rfd, buf); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	unix.Close(rfd)
	if err := <-ended; !errors.Is(err, unix.EPIPE) {
		t.Errorf("got %v, want EPIPE", err)
	}
}

func TestPoll(t *testing.T) {
	rfd, wfd := pipe(t)
	defer unix.Close(rfd)
	if got := Poll(time.Millisecond, rfd, -1); got != 0 {
		t.Errorf("an empty pipe: got %b", got)
	}
	if _, err := Write(wfd, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if got := Poll(time.Minute, -1, rfd, rfd); got != 0b110 {
		t.Errorf("a pipe with a byte: got %b", got)
	}
	unix.Close(wfd)
	var b [2]byte
	for _, want := range []int{1, 0} {
		if n, err := Read(rfd, b[:]); n != want || err != nil {
			t.Errorf("got %d, %v, want %d", n, err, want)
		}
	}
	if got := Poll(time.Minute, rfd); got != 1 {
		t.Errorf("the end of a pipe: got %b", got)
	}
}

// TestReader_RegularFile reads a file that cannot be polled.
func TestReader_RegularFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewReader(fd)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); string(got) != "content" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}
