package server

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAccept_SetsAckTimeout: the kernel closes connections of dead clients, with TLS and
// without.
func TestAccept_SetsAckTimeout(t *testing.T) {
	for name, wrap := range map[string]func(net.Listener) net.Listener{
		"plain": func(ln net.Listener) net.Listener { return ln },
		"TLS":   func(ln net.Listener) net.Listener { return tls.NewListener(ln, &tls.Config{}) },
	} {
		t.Run(name, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			client, err := net.Dial("tcp", ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			c, err := ackListener{wrap(ln)}.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if secure, ok := c.(*tls.Conn); ok {
				c = secure.NetConn()
			} else if name == "TLS" {
				t.Fatalf("got a %T", c)
			}
			raw, err := c.(*net.TCPConn).SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			if err := raw.Control(func(fd uintptr) {
				ms, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
				if err != nil || time.Duration(ms)*time.Millisecond != ackTimeout {
					t.Errorf("got %d ms, %v", ms, err)
				}
			}); err != nil {
				t.Fatal(err)
			}
		})
	}
}
