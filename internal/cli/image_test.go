//go:build linux

package cli

import (
	"archive/tar"
	"bytes"
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

// pushBusybox pushes an image with busybox and /etc/mark to a registry.
func pushBusybox(t *testing.T, ref, mark string) {
	t.Helper()
	busybox, err := os.ReadFile(erofstest.Busybox(t))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	file := func(name, content string, mode int64) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	file("bin/busybox", string(busybox), 0o755)
	file("etc/mark", mark, 0o644)
	for _, applet := range erofstest.Applets(t) {
		if applet == "busybox" {
			continue
		}
		if err := w.WriteHeader(&tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(parsed, img); err != nil {
		t.Fatal(err)
	}
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
