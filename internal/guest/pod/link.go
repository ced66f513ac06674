package pod

import (
	"io"
	"net"
	"os"
)

// socketDir has the socket of the helper. Only root may enter it, and the agent and
// user code see an empty directory in its place.
const (
	socketDir  = "/.glovebox-pod"
	socketPath = socketDir + "/link"
)

// linkEnded is the exit code of link when one of its streams has ended, which they do not
// by themselves. It is not 0: msb goes on reading the input of a program that has ended
// with 0.
const linkEnded = 3

// link copies between its standard streams and the helper's socket until one of them
// ends.
func link([]string) (int, error) {
	conn, err := net.Dial("unix", socketPath)
	if err != nil {
		return 1, err
	}
	done := make(chan error, 2)
	go func() {
		_, err := io.Copy(conn, os.Stdin)
		done <- err
	}()
	go func() {
		_, err := io.Copy(os.Stdout, conn)
		done <- err
	}()
	return linkEnded, <-done // the process ends, and with it the other copy
}
