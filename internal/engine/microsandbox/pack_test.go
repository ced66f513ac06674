//go:build linux

package microsandbox

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
)

// contents returns the entries of an archive by name.
func contents(t *testing.T, r io.Reader) map[string]*tar.Header {
	t.Helper()
	all := make(map[string]*tar.Header)
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all[h.Name] = h
	}
}

// packed packs a directory.
func packed(t *testing.T, dir string) (layer, error) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "layer"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return packRoot(t.Context(), f, dir)
}

func TestPackRoot_KeepsFilesLinksAndModes(t *testing.T) {
	dir := t.TempDir()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "tmp"), 0o755), os.Chmod(filepath.Join(dir, "tmp"), 0o777|os.ModeSticky),
		os.WriteFile(filepath.Join(dir, "a"), []byte("content"), 0o755),
		os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "b")),
		os.Symlink("/etc/passwd", filepath.Join(dir, "link")),
		unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	l, err := packed(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	all := contents(t, io.NewSectionReader(l.file, 0, l.size))
	if len(all) != 4 {
		t.Errorf("got %d entries, want 4: no pipe", len(all))
	}
	if h := all["tmp/"]; h == nil || h.Typeflag != tar.TypeDir || h.Mode != 0o1777 || h.Uid != 0 {
		t.Errorf("tmp: got %+v", h)
	}
	if h := all["link"]; h == nil || h.Typeflag != tar.TypeSymlink || h.Linkname != "/etc/passwd" {
		t.Errorf("link: got %+v", h)
	}
	a, b := all["a"], all["b"]
	if a == nil || b == nil {
		t.Fatal("a or b is missing")
	}
	if a.Typeflag == tar.TypeLink {
		a, b = b, a
	}
	if a.Size != 7 || a.Mode != 0o755 || b.Typeflag != tar.TypeLink || b.Linkname != a.Name {
		t.Errorf("names of one file: got %+v and %+v", a, b)
	}
}

func TestPackRoot_RefusesDirectoriesThatAreTooDeep(t *testing.T) {
	dir := t.TempDir()
	deep := dir
	for range maxRootDepth + 2 {
		deep = filepath.Join(deep, "d")
	}
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := packed(t, dir); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("got %v", err)
	}
}

func TestWriteImage_RefersToItsBlobs(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := packed(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := writeImage(&b, l); err != nil {
		t.Fatal(err)
	}
	blobs := make(map[string][]byte)
	for in := tar.NewReader(&b); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if blobs[h.Name], err = io.ReadAll(in); err != nil {
			t.Fatal(err)
		}
	}
	var index struct{ Manifests []descriptor }
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	if err := json.Unmarshal(blobs["index.json"], &index); err != nil || len(index.Manifests) != 1 {
		t.Fatalf("index: %v, %+v", err, index)
	}
	if err := json.Unmarshal(blobs[blobName(index.Manifests[0].Digest)], &manifest); err != nil || len(manifest.Layers) != 1 {
		t.Fatalf("manifest: %v, %+v", err, manifest)
	}
	for _, d := range append(manifest.Layers, manifest.Config, index.Manifests[0]) {
		if blob := blobs[blobName(d.Digest)]; int64(len(blob)) != d.Size || d.Size == 0 {
			t.Errorf("%s: got %d bytes, want %d", d.MediaType, len(blob), d.Size)
		}
	}
}
