//go:build linux && (amd64 || arm64)

package gvisor

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
)

// TestVolume_ConnectsNothing: a socket or a named pipe in a volume carries nothing between a
// guest and the host, whichever of the two has made it.
func TestVolume_ConnectsNothing(t *testing.T) {
	e := open(t)
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	socket, pipe := filepath.Join(dir, "socket"), filepath.Join(dir, "pipe")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	accepted := make(chan struct{}, 100)
	go func() { // ends with the listener
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.Close()
			accepted <- struct{}{}
		}
	}()
	if err := errors.Join(unix.Mkfifo(pipe, 0o600), os.Chmod(pipe, 0o666), os.Chmod(socket, 0o777)); err != nil {
		t.Fatal(err)
	}
	end, err := unix.Open(pipe, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(end)
	if c, err := net.Dial("unix", socket); err != nil { // the host itself can
		t.Fatal(err)
	} else {
		c.Close()
		<-accepted
	}

	spec := newSpec(t)
	spec.Mounts = []engine.Mount{{Host: dir, Guest: "/shared"}}
	b := create(t, e, "connects", spec)
	for _, as := range []string{"sh ", "shu "} {
		name := strings.TrimSpace(as)
		got := b.ask(t, as+`python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.connect("/shared/socket"); print("connected")' 2>&1`)
		if strings.Contains(got, "connected\n") || !strings.Contains(got, "Error") {
			t.Errorf("%s connects to a socket of the host: %q", name, got)
		}
		// It may open a pipe of that name, as long as that is one of its own.
		b.ask(t, as+`timeout 5 sh -c 'echo from the guest >/shared/pipe' 2>&1; true`)
		read := make([]byte, 64)
		if n, err := unix.Read(end, read); err != unix.EAGAIN {
			t.Errorf("%s: the host reads %q, %v from the pipe, want nothing", name, read[:max(n, 0)], err)
		}
		if _, err := unix.Write(end, []byte("from the host\n")); err != nil {
			t.Fatal(err)
		}
		got = b.ask(t, as+`timeout 5 head -n 1 /shared/pipe 2>&1; true`)
		if strings.Contains(got, "from the host") {
			t.Errorf("%s reads %q from the pipe", name, got)
		}
		if _, err := unix.Read(end, read); err != nil { // take it out again
			t.Errorf("%s: what the host wrote is gone: %v", name, err)
		}
		b.ask(t, as+`python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.bind("/shared/of-`+name+`"); s.listen()' 2>&1; true`)
		b.ask(t, as+"mkfifo -m 666 /shared/pipe-of-"+name+" 2>&1; true")
	}
	select {
	case <-accepted:
		t.Error("a guest has connected to a socket of the host")
	default:
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSocket == 0 || path == socket {
			return err
		}
		if c, err := net.Dial("unix", path); err == nil {
			c.Close()
			t.Errorf("the host connects to %s, which a guest has made", d.Name())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
