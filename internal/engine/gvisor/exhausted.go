//go:build linux && (amd64 || arm64)

package gvisor

import (
	"errors"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/urpc"
)

// exhaustion lists the errors of resources of the host that ran out.
var exhaustion = []syscall.Errno{unix.ENOSPC, unix.EDQUOT, unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.EAGAIN, unix.EUSERS}

// exhausted reports whether a resource of the host ran out. Errors of this process carry their
// errno. Those of a sentry or gofer arrive as text without one: its control server sends an
// error as a string (urpc.RemoteError), and a process that fails during its boot writes report
// to a pipe and exits.
func exhausted(err error, report string) bool {
	for _, errno := range exhaustion {
		if errors.Is(err, errno) {
			return true
		}
	}
	text := report
	var remote urpc.RemoteError
	if errors.As(err, &remote) {
		text += " " + remote.Message
	}
	for _, errno := range exhaustion {
		if strings.Contains(text, errno.Error()) {
			return true
		}
	}
	return false
}
