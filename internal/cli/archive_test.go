package cli

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// entry is a file of an archive, or a link.
type entry struct{ name, data, link string }

func archive(t *testing.T, entries ...entry) *tar.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: 0o777, Size: int64(len(e.data)), Typeflag: tar.TypeReg}
		if e.link != "" {
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return tar.NewReader(&b)
}

func mkdir(t *testing.T, parts ...string) string {
	t.Helper()
	dir := filepath.Join(parts...)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func FuzzUntar(f *testing.F) {
	f.Add("a/b", "../x", true)
	f.Add("../a", "", false)
	f.Fuzz(func(t *testing.T, first, second string, link bool) {
		dir := t.TempDir()
		to := mkdir(t, dir, "to")
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for i, name := range []string{first, second} {
			h := &tar.Header{Name: name, Mode: 0o777, Typeflag: tar.TypeReg}
			if link && i == 0 {
				h.Typeflag, h.Linkname = tar.TypeSymlink, ".."
			}
			if w.WriteHeader(h) != nil {
				return
			}
		}
		w.Close()
		root, err := os.OpenRoot(to)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		untar(root, tar.NewReader(&b))
		if left, _ := os.ReadDir(dir); len(left) != 1 {
			t.Errorf("%q, %q: written outside: %v", first, second, left)
		}
	})
}
