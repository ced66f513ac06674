package box

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
)

// TestStored_LongNames: reading the archive of a home takes a bounded amount of memory,
// however long its file names are.
func TestStored_LongNames(t *testing.T) {
	archive := func(n, length int) *bytes.Reader {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for i := range n {
			h := &tar.Header{Name: fmt.Sprintf("%s%06d", strings.Repeat("d/", (length-6)/2), i), Typeflag: tar.TypeReg, Format: tar.FormatPAX}
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return bytes.NewReader(b.Bytes())
	}
	files, err := readStored(archive(3, 60_000), "/home/user")
	if err != nil || len(files) != 1 {
		t.Errorf("names that no call can pass: %d files, %v; want the home alone", len(files), err)
	}
	if files, err := readStored(archive(maxStoredNames/4000+10, 4000), "/home/user"); err == nil {
		t.Errorf("many long names: %d files are held, want an error", len(files))
	}
	if files, err := readStored(archive(1000, 100), "/home/user"); err != nil || len(files) != 1001 {
		t.Errorf("a thousand files: got %d, %v", len(files), err)
	}
}

// TestStored_ListMax: a listing has no more entries than were asked for.
func TestStored_ListMax(t *testing.T) {
	st := &StoredFiles{home: "/home/user", files: map[string]storedFile{"": {FileInfo: FileInfo{Path: "/home/user", Type: "directory"}}}}
	for i := range 20 {
		name := fmt.Sprintf("f%02d", i)
		st.files[name] = storedFile{FileInfo: FileInfo{Path: "/home/user/" + name, Name: name, Type: "file"}}
	}
	res, err := st.List(t.Context(), ListRequest{Path: ".", Max: 5})
	if err != nil || len(res.Entries) != 5 || !res.Truncated || res.Entries[4].Name != "f04" {
		t.Errorf("got %d entries, truncated %v, %v; want the first 5", len(res.Entries), res.Truncated, err)
	}
}

// FuzzStored reads archives that a guest might have made.
func FuzzStored(f *testing.F) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []*tar.Header{
		{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "d/f", Typeflag: tar.TypeReg, Size: 2, Mode: 0o644, Format: tar.FormatPAX},
		{Name: "../../etc/passwd", Typeflag: tar.TypeSymlink, Linkname: "/"},
	} {
		if err := w.WriteHeader(h); err != nil {
			f.Fatal(err)
		}
		if h.Size > 0 {
			io.WriteString(w, "hi")
		}
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte("no archive"))
	f.Fuzz(func(t *testing.T, in []byte) {
		files, err := readStored(bytes.NewReader(in), "/home/user")
		if err != nil {
			return
		}
		for name, file := range files {
			if name != "" && !strings.HasPrefix(file.Path, "/home/user/") || strings.Contains("/"+name+"/", "/../") {
				t.Errorf("%q is at %q", name, file.Path)
			}
		}
	})
}
