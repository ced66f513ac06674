//go:build linux && (amd64 || arm64)

package gvisor

import (
	"fmt"
	"math"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"
)

// dialControl connects to the control server of a sentry.
//
// gVisor's own client makes its descriptors without close-on-exec, so that a
// sentry started at the same moment would hold them too: the control of another
// guest, and under a number that it may need for itself.
func dialControl(path string) (*urpc.Client, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		unix.Close(fd)
		return nil, err
	}
	// Nothing is started while it makes an event descriptor, which gets the lowest
	// number that is free, unless another goroutine is faster; see closeForeign.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	lowest, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("find a free descriptor: %w", err)
	}
	unix.Close(lowest)
	conn, err := unet.NewSocket(fd)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	unix.CloseOnExec(lowest)
	return urpc.NewClient(conn), nil
}

// firstForeign is above every descriptor that a part of gVisor is started with,
// some dozens, and below those that a sentry keeps for standard streams, from 253.
const firstForeign = 128

// closeForeign closes what this process has inherited by mistake.
func closeForeign() {
	// It fails on kernels that are too old for boxes, which say so themselves.
	_ = unix.CloseRange(firstForeign, math.MaxInt32, 0)
}
