//go:build linux && (amd64 || arm64)

package gvisor

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	gcontext "gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/lisafs"
	"gvisor.dev/gvisor/pkg/unet"
)

// rootOf returns a server of the root of a new guest, and the sentry's end.
func rootOf(t *testing.T) (*rootServer, *os.File) {
	t.Helper()
	e := open(t)
	b := create(t, e, "guest", newSpec(t))
	p, err := newPair()
	if err != nil {
		t.Fatal(err)
	}
	s, err := serveRoot(p.gofer, b.Guest.(*guest).tree.root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.close() })
	t.Cleanup(func() { p.sentry.Close() })
	return s, p.sentry
}

// TestRootServer_OpensRootOnly sends requests as a sentry does, and checks what the
// answer refers to.
func TestRootServer_OpensRootOnly(t *testing.T) {
	s, conn := rootOf(t)
	fd, err := unix.Dup(int(conn.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	sock, err := unet.NewSocket(fd)
	if err != nil {
		t.Fatal(err)
	}
	client, root, mounted, err := lisafs.NewClient(sock)
	if err != nil {
		t.Fatal(err)
	}
	if mode := root.Stat.Mode & unix.S_IFMT; mode != unix.S_IFDIR {
		t.Errorf("the root has mode %o", mode)
	}
	control := client.NewFD(root.ControlFD)
	_, opened, err := control.OpenAt(gcontext.Background(), unix.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range []int{mounted, opened} {
		defer unix.Close(fd)
		var own, up unix.Stat_t
		if err := unix.Fstat(fd, &own); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"..", "../..", "usr/../..", "usr/bin/../../.."} {
			if err := unix.Fstatat(fd, name, &up, 0); err != nil || up.Ino != own.Ino || up.Dev != own.Dev {
				t.Errorf("%s of the root is another directory: %v", name, err)
			}
		}
		if up, err := unix.Openat(fd, "usr/bin/env", unix.O_RDONLY, 0); err != nil {
			t.Errorf("open a file: %v", err)
		} else {
			unix.Close(up)
		}
		for _, name := range []string{"new", "usr/new", "home/user/new"} {
			if f, err := unix.Openat(fd, name, unix.O_CREAT|unix.O_WRONLY, 0o644); err != unix.EROFS {
				unix.Close(f)
				t.Errorf("make %s: %v", name, err)
			}
		}
	}
	for n := 0; ; n++ {
		_, opened, err := control.OpenAt(gcontext.Background(), unix.O_RDONLY)
		if err != nil {
			break
		}
		unix.Close(opened)
		if n > maxRequests {
			t.Fatal("the server answers without end")
		}
	}
	client.Close()
	if err := s.close(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
}

// TestRootServer_HostileSentry sends invalid requests.
func TestRootServer_HostileSentry(t *testing.T) {
	request := func(kind lisafs.MID, size uint32, rest ...byte) []byte {
		b := binary.NativeEndian.AppendUint32(nil, size)
		b = binary.NativeEndian.AppendUint16(b, uint16(kind))
		return append(append(b, 0, 0), rest...)
	}
	for what, bytes := range map[string][]byte{
		"another request":  request(lisafs.Walk, 0),
		"no request":       request(0xffff, 0),
		"too long":         request(lisafs.Mount, maxRequest+1),
		"half a header":    request(lisafs.Mount, 0)[:3],
		"half a request":   request(lisafs.OpenAt, 16, 1, 2, 3),
		"a channel":        request(lisafs.Channel, 0),
		"a path to create": request(lisafs.MkdirAt, 8, []byte("/etc/new")...),
	} {
		s, conn := rootOf(t)
		c, err := net.FileConn(conn)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(bytes); err != nil {
			t.Fatal(err)
		}
		c.(*net.UnixConn).CloseWrite()
		c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if n, err := io.Copy(io.Discard, c); n != 0 || err != nil && !os.IsTimeout(err) && err != io.EOF {
			t.Errorf("%s: answer of %d bytes, %v", what, n, err)
		}
		select {
		case <-s.done:
		case <-time.After(5 * time.Second):
			t.Errorf("%s: the server did not end", what)
		}
		c.Close()
	}
}

// FuzzRootServer sends what a sentry that was taken over might send. The server ends, and has
// given nothing but descriptors of the root.
func FuzzRootServer(f *testing.F) {
	header := func(kind lisafs.MID, size uint32) []byte {
		b := binary.NativeEndian.AppendUint32(nil, size)
		return append(binary.NativeEndian.AppendUint16(b, uint16(kind)), 0, 0)
	}
	f.Add(header(lisafs.Mount, 0))
	f.Add(append(header(lisafs.OpenAt, 2), append([]byte("xx"), header(lisafs.Close, 0)...)...))
	f.Add(header(lisafs.Walk, 1<<31))
	root, err := os.Open(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { root.Close() })
	own, err := root.Stat()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		pair, err := newPair()
		if err != nil {
			t.Fatal(err)
		}
		sentry, err := net.FileConn(pair.sentry)
		pair.sentry.Close()
		if err != nil {
			t.Fatal(err)
		}
		defer sentry.Close()
		s, err := serveRoot(pair.gofer, root)
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		go func() {
			sentry.Write(b) // the server may have ended
			sentry.(*net.UnixConn).CloseWrite()
		}()
		answer, oob := make([]byte, 4096), make([]byte, 256)
		for {
			n, m, _, _, err := sentry.(*net.UnixConn).ReadMsgUnix(answer, oob)
			if err != nil || n == 0 {
				break
			}
			messages, err := unix.ParseSocketControlMessage(oob[:m])
			if err != nil {
				t.Fatal(err)
			}
			for i := range messages {
				fds, err := unix.ParseUnixRights(&messages[i])
				if err != nil {
					t.Fatal(err)
				}
				for _, fd := range fds {
					file := os.NewFile(uintptr(fd), "given")
					if info, err := file.Stat(); err != nil || !os.SameFile(info, own) {
						t.Errorf("%x gets a descriptor of another file: %v", b, err)
					}
					file.Close()
				}
			}
		}
		select {
		case <-s.done:
		case <-time.After(10 * time.Second):
			t.Errorf("%x: the server did not end", b)
		}
	})
}
