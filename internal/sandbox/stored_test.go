package sandbox

import (
	"archive/tar"
	"bytes"
	"io"
	"strings"
	"testing"
)

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
