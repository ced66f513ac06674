package kube_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/glovebox-dev/glovebox/engine"
)

// entry is a file, directory or link of an image.
type entry struct {
	name, link string
	mode       int64
	content    []byte
}

// layer returns a layer with the entries.
func layer(t testing.TB, entries []entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.content)), Typeflag: tar.TypeReg, Linkname: e.link}
		switch {
		case e.link != "":
			h.Typeflag = tar.TypeSymlink
		case strings.HasSuffix(e.name, "/"):
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		w.Write(e.content)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// loadImage puts an image into the node's containerd and returns it. The registry does
// not exist: nodes have the image already.
func loadImage(t testing.TB, name string, entries []entry) *engine.Image {
	t.Helper()
	socket := os.Getenv("GLOVEBOX_TEST_CONTAINERD")
	if socket == "" {
		t.Skip("GLOVEBOX_TEST_CONTAINERD does not name the node's containerd; run make test-kube")
	}
	var files []entry
	blob := func(mediaType string, b []byte) descriptor {
		sum := sha256.Sum256(b)
		digest := hex.EncodeToString(sum[:])
		files = append(files, entry{name: "blobs/sha256/" + digest, mode: 0o644, content: b})
		return descriptor{MediaType: mediaType, Digest: "sha256:" + digest, Size: len(b)}
	}
	marshal := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	const oci = "application/vnd.oci.image."
	l := blob(oci+"layer.v1.tar", layer(t, entries))
	config := blob(oci+"config.v1+json", marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "config": map[string]any{"Cmd": []string{"/bin/sleep", "2147483647"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{l.Digest}},
	}))
	manifest := blob(oci+"manifest.v1+json", marshal(map[string]any{
		"schemaVersion": 2, "mediaType": oci + "manifest.v1+json", "config": config, "layers": []descriptor{l},
	}))
	ref := "localhost/" + name + ":1"
	manifest.Annotations = map[string]string{"io.containerd.image.name": ref}
	files = append(files,
		entry{name: "oci-layout", mode: 0o644, content: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		entry{name: "index.json", mode: 0o644, content: marshal(map[string]any{"schemaVersion": 2, "manifests": []descriptor{manifest}})})
	archive := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(archive, layer(t, files), 0o644); err != nil {
		t.Fatal(err)
	}
	image := &engine.Image{Name: "localhost/" + name, Digest: manifest.Digest}
	defer lockNode(t, socket)()
	for _, args := range [][]string{{"import", archive}, {"tag", "--force", ref, image.Name + "@" + image.Digest}} {
		cmd := exec.Command("ctr", append([]string{"--address", socket, "--namespace", "k8s.io", "images"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("ctr images %s: %v\n%s", args[0], err, out)
		}
	}
	return image
}

// lockNode keeps other test processes from loading images, until the caller unlocks.
func lockNode(t testing.TB, socket string) (unlock func()) {
	t.Helper()
	f, err := os.Create(socket + ".lock")
	if err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() { f.Close() }
}

// busybox returns a small system with the programs at further paths.
func busybox(t testing.TB, programs map[string]string) []entry {
	t.Helper()
	read := func(path string) []byte {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	const static = "/bin/busybox"
	entries := []entry{
		{name: "bin/", mode: 0o755}, {name: "usr/", mode: 0o755}, {name: "usr/bin/", mode: 0o755}, {name: "etc/", mode: 0o755},
		{name: "tmp/", mode: 0o1777}, {name: "home/", mode: 0o755}, {name: "root/", mode: 0o700}, {name: "proc/", mode: 0o755},
		{name: "sys/", mode: 0o755}, {name: "dev/", mode: 0o755}, {name: "run/", mode: 0o755}, {name: "var/", mode: 0o755},
		{name: "var/tmp/", mode: 0o1777}, {name: "glovebox/", mode: 0o755},
		{name: "etc/passwd", mode: 0o644, content: []byte("root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n")},
		{name: "bin/busybox", mode: 0o755, content: read(static)},
		{name: "usr/bin/env", link: "/bin/busybox"},
	}
	out, err := exec.Command(static, "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, applet := range strings.Fields(string(out)) {
		if applet != "busybox" {
			entries = append(entries, entry{name: "bin/" + applet, link: "busybox"})
		}
	}
	for target, path := range programs {
		entries = append(entries, entry{name: strings.TrimPrefix(target, "/"), mode: 0o755, content: read(path)})
	}
	return entries
}
