package mcpserver

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestPatience(t *testing.T) {
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
	c, err := door{ln, &connections{limit: 1}}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		ms, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
		if err != nil || time.Duration(ms)*time.Millisecond != patience {
			t.Errorf("got %d ms, %v", ms, err)
		}
	}); err != nil {
		t.Fatal(err)
	}
}
