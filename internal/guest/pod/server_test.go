package pod

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/engine/stdiolink"
	"github.com/glovebox-dev/glovebox/internal/guest/podlink"
)

// startEcho serves an agent that returns its input, and returns the socket.
func startEcho(t *testing.T) string {
	t.Helper()
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		io.Copy(outW, inR)
		outW.Close()
	}()
	dir, err := os.MkdirTemp("", "pod-") // not t.TempDir: the address of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "link")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	stream := stdiolink.New(outR, inW)
	go newServer(stream).serve(l)
	t.Cleanup(func() {
		l.Close()
		stream.Close()
		inR.Close()
		os.RemoveAll(dir)
	})
	return path
}

func dial(t *testing.T, path string, hello podlink.Hello) (net.Conn, podlink.Reply, error) {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := hello.Write(conn); err != nil {
		t.Fatal(err)
	}
	reply, err := podlink.ReadReply(conn)
	return conn, reply, err
}

func roundTrip(t *testing.T, s *podlink.Session, text string) {
	t.Helper()
	if _, err := s.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, len(text))
	if _, err := io.ReadFull(s, b); err != nil || string(b) != text {
		t.Fatalf("the agent returned %q, %v; want %q", b, err, text)
	}
}

func TestServer_ResumesAndSupersedes(t *testing.T) {
	path := startEcho(t)
	first, id := podlink.NewSession(), podlink.NewSessionID()
	gen, _ := first.Begin()
	conn, reply, err := dial(t, path, podlink.Hello{Session: id})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 2)
	go func() { ended <- first.Run(gen, conn, reply.Received) }()
	roundTrip(t, first, "one")
	conn.Close()
	<-ended
	if _, err := first.Write([]byte("two")); err != nil { // waits for the next connection
		t.Fatal(err)
	}
	gen, _ = first.Begin()
	conn, reply, err = dial(t, path, podlink.Hello{Session: id, Resume: true, Received: gen.Received})
	if err != nil {
		t.Fatal(err)
	}
	go func() { ended <- first.Run(gen, conn, reply.Received) }()
	b := make([]byte, 3)
	if _, err := io.ReadFull(first, b); err != nil || string(b) != "two" {
		t.Fatalf("after the resumption the agent returned %q, %v", b, err)
	}

	second := podlink.NewSession()
	gen, _ = second.Begin()
	conn, reply, err = dial(t, path, podlink.Hello{Session: podlink.NewSessionID()})
	if err != nil {
		t.Fatal(err)
	}
	<-ended // the first one's connection
	go second.Run(gen, conn, reply.Received)
	roundTrip(t, second, "three")
	if _, _, err := dial(t, path, podlink.Hello{Session: id, Resume: true}); !errors.Is(err, podlink.ErrSuperseded) {
		t.Errorf("resume a superseded session: got %v", err)
	}
	second.Close(nil)
}

func TestMain_RefusesUnknownParts(t *testing.T) {
	for _, args := range [][]string{nil, {"no-such-part"}, {"run", "name"}, {"install", "x"}} {
		if code := Main(args); code != 2 {
			t.Errorf("%q: exit code %d, want 2", args, code)
		}
	}
}

func TestInstall_CopiesAProgram(t *testing.T) {
	dir := t.TempDir()
	source, target := filepath.Join(dir, "source"), filepath.Join(dir, "target")
	if err := os.WriteFile(source, []byte("program"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code := Main([]string{"install", source, target}); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	info, err := os.Stat(target)
	if err != nil || info.Mode().Perm() != 0o755 || info.Size() != 7 {
		t.Errorf("installed %+v, %v", info, err)
	}
	if code := Main([]string{"install", filepath.Join(dir, "missing"), target}); code != 1 {
		t.Errorf("install a missing file: exit code %d, want 1", code)
	}
}
