package server

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ackTimeout bounds how long sent data may stay unacknowledged. Heartbeats keep data
// flowing. The kernel's default of about 15 minutes would let a dead client keep its
// place that long.
const ackTimeout = time.Minute

// setAckTimeout sets the time after which the kernel closes the connection of a dead client.
func setAckTimeout(c net.Conn) {
	if secure, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = secure.NetConn() // below TLS
	}
	raw, ok := c.(syscall.Conn)
	if !ok {
		return
	}
	if sock, err := raw.SyscallConn(); err == nil {
		// If the kernel does not know the option, its default applies.
		_ = sock.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(ackTimeout.Milliseconds()))
		})
	}
}
