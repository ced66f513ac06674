package server

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long what was sent may go without a sign of the other end.
// Heartbeats see to it that something is sent; the kernel's own patience is some
// 15 minutes, for which a client that is gone would keep its place.
const patience = time.Minute

// limitPatience has the kernel give up on a client that is gone.
func limitPatience(c net.Conn) {
	if secure, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = secure.NetConn() // below TLS
	}
	raw, ok := c.(syscall.Conn)
	if !ok {
		return
	}
	if sock, err := raw.SyscallConn(); err == nil {
		// Where the kernel does not know the option, its own patience holds.
		_ = sock.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(patience.Milliseconds()))
		})
	}
}
