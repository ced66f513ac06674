package stdiolink

import (
	"os"

	"golang.org/x/sys/unix"
)

// unread returns how many bytes of a pipe's writing end nobody has read yet; 0 if
// the pipe does not say.
func unread(w *os.File) int {
	raw, err := w.SyscallConn()
	if err != nil {
		return 0
	}
	n := 0
	if err := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); err != nil {
		return 0
	}
	return n
}
