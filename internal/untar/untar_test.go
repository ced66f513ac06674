package untar

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// entry is a file of an archive, or a link.
type entry struct{ name, data, link string }

func archive(t *testing.T, entries ...entry) *bytes.Buffer {
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
	return &b
}

// destination returns a new directory and the root to extract to, the directory "to" in it.
func destination(t *testing.T) (dir string, root *os.Root) {
	t.Helper()
	dir = t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "to"), 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(filepath.Join(dir, "to"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return dir, root
}

func TestExtract_Files(t *testing.T) {
	dir, root := destination(t)
	b := archive(t, entry{name: "a/b/c", data: "first"}, entry{name: "./d", data: "second"}, entry{name: "d", data: "third"})
	if skipped, err := Extract(root, b, 10); err != nil || skipped != 0 {
		t.Fatalf("got error %v, %d skipped", err, skipped)
	}
	for name, want := range map[string]string{"a/b/c": "first", "d": "third"} {
		if got, err := os.ReadFile(filepath.Join(dir, "to", name)); string(got) != want {
			t.Errorf("%s: got %q, error %v, want %q", name, got, err, want)
		}
	}
}

func TestExtract_RefusesPathsOutside(t *testing.T) {
	for _, name := range []string{"../evil", "/evil", "a/../../evil", "..", strings.Repeat("a/", 3000) + "evil"} {
		dir, root := destination(t)
		if _, err := Extract(root, archive(t, entry{name: name, data: "x"}), 100_000); err == nil {
			t.Errorf("%.20q: got no error", name)
		}
		if left, _ := os.ReadDir(dir); len(left) != 1 {
			t.Errorf("%.20q: written outside: %v", name, left)
		}
	}
}

func TestExtract_FollowsNoLink(t *testing.T) {
	dir, root := destination(t)
	if err := os.Mkdir(filepath.Join(dir, "outside"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../outside", filepath.Join(dir, "to", "there")); err != nil {
		t.Fatal(err)
	}
	skipped, err := Extract(root, archive(t, entry{name: "link", link: "../outside"}, entry{name: "there/file", data: "x"}), 10)
	if err == nil || skipped != 1 {
		t.Errorf("got error %v, %d skipped", err, skipped)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "outside")); len(left) != 0 {
		t.Errorf("%v was written through a link", left)
	}
}

// TestExtract_CountsParents: an archive names thousands of directories in one entry.
func TestExtract_CountsParents(t *testing.T) {
	for _, entries := range [][]entry{
		{{name: strings.Repeat("a/", 50) + "file"}},
		{{name: "a"}, {name: "b"}, {name: "b"}, {name: "b"}, {name: "b"}, {name: "b"}, {name: "b"}, {name: "b"}, {name: "b"}, {name: "b"}, {name: "b"}},
		{{name: "a", link: "x"}, {name: "b", link: "x"}, {name: "c", link: "x"}, {name: "d", link: "x"}, {name: "e", link: "x"}, {name: "f", link: "x"},
			{name: "g", link: "x"}, {name: "h", link: "x"}, {name: "i", link: "x"}, {name: "j", link: "x"}, {name: "k", link: "x"}},
	} {
		_, root := destination(t)
		if _, err := Extract(root, archive(t, entries...), 10); err == nil || !strings.Contains(err.Error(), "more than 10 files") {
			t.Errorf("%d entries from %q: got error %v", len(entries), entries[0].name, err)
		}
	}
}

func FuzzExtract(f *testing.F) {
	add := func(entries ...*tar.Header) {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range entries {
			if err := w.WriteHeader(h); err != nil {
				f.Fatal(err)
			}
		}
		w.Close()
		f.Add(b.Bytes())
	}
	add(&tar.Header{Name: "a/b"}, &tar.Header{Name: "../x"})
	add(&tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, &tar.Header{Name: "l/x"})
	add(&tar.Header{Name: "l", Typeflag: tar.TypeLink, Linkname: "../x"}, &tar.Header{Name: "l"})
	add(&tar.Header{Name: strings.Repeat("long/", 60) + "x", Format: tar.FormatPAX}, &tar.Header{Name: "d/", Typeflag: tar.TypeDir})
	add(&tar.Header{Name: "f", Typeflag: tar.TypeFifo}, &tar.Header{Name: "c", Typeflag: tar.TypeChar, Devmajor: 1})
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		base, err := os.MkdirTemp(dir, "")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(base)
		to := filepath.Join(base, "to")
		if err := os.Mkdir(to, 0o755); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(to)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		const most = 20
		Extract(root, bytes.NewReader(b), most)
		if left, _ := os.ReadDir(base); len(left) != 1 {
			t.Errorf("written outside: %v", left)
		}
		n := 0
		filepath.WalkDir(to, func(name string, d os.DirEntry, err error) error {
			n++
			if err != nil || !d.IsDir() && !d.Type().IsRegular() {
				t.Errorf("%q: type %v, error %v", name, d.Type(), err)
			}
			return nil
		})
		if n > 2*most+1 { // each entry counts its directory or its file
			t.Errorf("%d files and directories, want at most %d", n, 2*most)
		}
	})
}
