//go:build linux

package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/glovebox-dev/glovebox/internal/erofs/erofstest"
)

// A testLayer collects the files of an image with a single layer. Directories need no
// entries.
type testLayer struct {
	t *testing.T
	b bytes.Buffer
	w *tar.Writer
}

func newTestLayer(t *testing.T) *testLayer {
	l := &testLayer{t: t}
	l.w = tar.NewWriter(&l.b)
	return l
}

// add adds a file or, with a target, a link.
func (l *testLayer) add(name string, mode int64, content []byte, target string) {
	l.t.Helper()
	h := &tar.Header{Name: strings.TrimPrefix(name, "/"), Mode: mode, Size: int64(len(content)), Linkname: target}
	if target != "" {
		h.Typeflag = tar.TypeSymlink
	}
	if err := l.w.WriteHeader(h); err != nil {
		l.t.Fatal(err)
	}
	if _, err := l.w.Write(content); err != nil {
		l.t.Fatal(err)
	}
}

// addHostFile adds the content of a file of this machine.
func (l *testLayer) addHostFile(name, from string) {
	l.t.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		l.t.Fatal(err)
	}
	info, err := os.Stat(from)
	if err != nil {
		l.t.Fatal(err)
	}
	l.add(name, int64(info.Mode().Perm()|0o444), content, "")
}

// addBusybox adds a shell and its programs.
func (l *testLayer) addBusybox() {
	l.t.Helper()
	l.addHostFile("bin/busybox", erofstest.Busybox(l.t))
	for _, applet := range erofstest.Applets(l.t) {
		if applet != "busybox" {
			l.add("bin/"+applet, 0, nil, "busybox")
		}
	}
}

// push pushes the image to a registry and returns its digest.
func (l *testLayer) push(ref string) (digest string) {
	l.t.Helper()
	if err := l.w.Close(); err != nil {
		l.t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(l.b.Bytes())), nil },
		tarball.WithCompressionLevel(gzip.BestSpeed))
	if err != nil {
		l.t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		l.t.Fatal(err)
	}
	parsed, err := name.ParseReference(ref)
	if err != nil {
		l.t.Fatal(err)
	}
	if err := remote.Write(parsed, img); err != nil {
		l.t.Fatal(err)
	}
	hash, err := img.Digest()
	if err != nil {
		l.t.Fatal(err)
	}
	return hash.String()
}

// pushBusybox pushes an image with busybox and /etc/mark to a registry.
func pushBusybox(t *testing.T, ref, mark string) (digest string) {
	t.Helper()
	l := newTestLayer(t)
	l.addBusybox()
	l.add("etc/mark", 0o644, []byte(mark), "")
	return l.push(ref)
}

// TestImage_BoxesOfTwo serves boxes of an image of a registry. They run commands only, wake
// with their own image on a server of another, and start without the registry.
func TestImage_BoxesOfTwo(t *testing.T) {
	r := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer r.Close()
	host := strings.TrimPrefix(r.URL, "http://")
	pushBusybox(t, host+"/app:1", "first\n")
	pushBusybox(t, host+"/app:2", "second\n")
	state := t.TempDir()
	start := func(tag string) (*serverProcess, boxes) {
		s := startServer(t, state, append([]string{"--image", host + "/app:" + tag}, plain...)...)
		return s, boxes{t, s.connect()}
	}
	want := func(b boxes, id, command, want string) {
		t.Helper()
		if out := b.must("execute_command", args{"session_id": id, "command": command}); out["stdout"] != want {
			t.Errorf("%s in %s: got %v, want %q", command, id, out, want)
		}
	}
	s, b := start("2")
	want(b, "two", "cat /etc/mark; id -u", "second\n1000\n")
	s.stop()
	s, b = start("1")
	want(b, "one", "cat /etc/mark; echo kept > /tmp/kept; sleep 1000 > /dev/null 2>&1 & echo started", "first\nstarted\n")
	want(b, "two", "cat /etc/mark", "second\n")
	b.refused("execute_code", args{"session_id": "one", "code": "1"}, "UNSUPPORTED_LANGUAGE", "commands only", "execute_command")
	s.stop()
	r.Close()
	s, b = start("1")
	want(b, "one", "cat /etc/mark /tmp/kept; pidof sleep | wc -w", "first\nkept\n1\n")
	s.stop()
}

// TestImage_RemovedUnderHibernatedBox removes the image of a hibernated box. The box wakes on
// no other file system: the error names the image, its files can be read, and it goes on as it
// was when the image is back.
func TestImage_RemovedUnderHibernatedBox(t *testing.T) {
	r := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer r.Close()
	ref := strings.TrimPrefix(r.URL, "http://") + "/app:1"
	pushBusybox(t, ref, "of the image\n")
	state := t.TempDir()
	glovebox := func(args ...string) {
		t.Helper()
		if code, _, log := run(append(args, "--state-dir", state)...); code != 0 {
			t.Fatalf("glovebox %s: exit code %d: %s", strings.Join(args, " "), code, log)
		}
	}
	call := args{"session_id": "one", "command": "cat /etc/mark; echo $kept"}
	s := startServer(t, state, append([]string{"--image", ref}, plain...)...)
	b := boxes{t, s.connect()}
	b.must("execute_command", args{"session_id": "one", "command": "echo 1 >~/note"})
	s.stop()
	glovebox("image", "rm", ref)

	s = startServer(t, state, plain...)
	b = boxes{t, s.connect()}
	for range 2 {
		b.refused("execute_command", call, "SANDBOX_CREATION_ERROR", "one cannot wake", "its image "+ref+" was removed", "glovebox image pull "+ref)
	}
	if out := b.must("download_file", args{"session_id": "one", "path": "note"}); out["content"] != "1\n" {
		t.Errorf("download_file: got %v", out)
	}
	glovebox("image", "pull", ref)
	if out := b.must("execute_command", call); out["stdout"] != "of the image\n\n" || out["state_lost"] != nil {
		t.Errorf("with its image again: got %v", out)
	}
	s.stop()

	// A server whose own image is removed says so, too.
	s = startServer(t, state, append([]string{"--image", ref}, plain...)...)
	b = boxes{t, s.connect()}
	glovebox("image", "rm", ref)
	b.refused("execute_command", args{"session_id": "two", "command": "true"}, "SANDBOX_CREATION_ERROR", "its image "+ref+" was removed", "glovebox image pull "+ref)
	s.stop()
}
