package cli

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A write that waits for a client which does not read ends when the streams are replaced.
func TestReplaceStreams_WriteWaits(t *testing.T) {
	var in, out, log [2]int
	for _, pipe := range []*[2]int{&in, &out, &log} {
		if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(pipe[0])
		defer unix.Close(pipe[1])
	}
	ended := make(chan error, 2)
	for _, fd := range []int{out[1], log[1]} {
		go func() {
			for {
				// A signal may end it after a part.
				n, err := unix.Write(fd, make([]byte, 1<<20))
				if err != unix.EINTR && (err != nil || n == 1<<20) {
					ended <- err
					return
				}
			}
		}()
	}
	select {
	case err := <-ended:
		t.Fatalf("a write did not wait: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	if err := replaceStreams(in[0], out[1], log[1]); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		select {
		case err := <-ended:
			if err != nil && !errors.Is(err, unix.EPIPE) {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("a write waits on")
		}
	}
}
