package cli

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/box/catalog"
)

// archive returns a tar archive with a header and files as they are.
func archive(t testing.TB, header any, files ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	text, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeTar(tw, exportHeader, int64(len(text)), bytes.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	for _, h := range files {
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, strings.Repeat("x", int(h.Size))); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

const sumOfX = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881" // of "x"

func valid() exported {
	return exported{Format: exportFormat, Name: "data", Base: "python", Flavor: "small", Files: []exportedFile{{"sub/a", 1, sumOfX}}}
}

// extract reads an archive into a new directory, which it returns.
func extract(t testing.TB, b []byte) (string, error) {
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	tr := tar.NewReader(bytes.NewReader(b))
	e, err := readExported(tr)
	if err == nil {
		err = extractExported(t.Context(), tr, e, dir)
	}
	return dir, err
}

func TestImport(t *testing.T) {
	dir, err := extract(t, archive(t, valid(), tar.Header{Name: "data/sub/a", Size: 1, Mode: 0o777, Typeflag: tar.TypeReg}))
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "sub/a"))
	if err != nil || info.Mode() != 0o600 || info.Size() != 1 {
		t.Errorf("got %v, %v", info, err)
	}
}

// An archive may come from anybody: nothing is written outside of the directory, and
// nothing that the description does not announce.
func TestImport_HostileArchives(t *testing.T) {
	file := tar.Header{Name: "data/sub/a", Size: 1, Typeflag: tar.TypeReg}
	header := func(change func(*exported)) exported {
		e := valid()
		change(&e)
		return e
	}
	for name, c := range map[string]struct {
		archive []byte
		want    string
	}{
		"nothing":           {nil, "not an exported template"},
		"no archive":        {[]byte(strings.Repeat("x", 2000)), "not an exported template"},
		"another format":    {archive(t, header(func(e *exported) { e.Format = 2 }), file), "format 2"},
		"bad name":          {archive(t, header(func(e *exported) { e.Name = "../x" }), file), "invalid template name"},
		"reserved name":     {archive(t, header(func(e *exported) { e.Name = "python" }), file), "reserved"},
		"bad base":          {archive(t, header(func(e *exported) { e.Base = "ruby" }), file), "base \"ruby\""},
		"bad flavor":        {archive(t, header(func(e *exported) { e.Flavor = "huge" }), file), "flavor"},
		"control character": {archive(t, header(func(e *exported) { e.Description = "a\x1b[2J" }), file), "description"},
		"no files":          {archive(t, header(func(e *exported) { e.Files = nil })), "0 files"},
		"absolute path":     {archive(t, header(func(e *exported) { e.Files[0].Path = "/tmp/x" }), file), "invalid file name"},
		"path outside":      {archive(t, header(func(e *exported) { e.Files[0].Path = "../x" }), file), "invalid file name"},
		"its own details":   {archive(t, header(func(e *exported) { e.Files[0].Path = catalog.DetailsName }), file), "invalid file name"},
		"negative size":     {archive(t, header(func(e *exported) { e.Files[0].Size = -1 }), file), "less than none"},
		"huge":              {archive(t, header(func(e *exported) { e.Files[0].Size = 1 << 60 }), file), "more than"},
		"other file":        {archive(t, valid(), tar.Header{Name: "data/../../x", Size: 1, Typeflag: tar.TypeReg}), "is not the file"},
		"link":              {archive(t, valid(), tar.Header{Name: "data/sub/a", Linkname: "/etc/passwd", Typeflag: tar.TypeSymlink}), "is not the file"},
		"other size":        {archive(t, valid(), tar.Header{Name: "data/sub/a", Size: 2, Typeflag: tar.TypeReg}), "is not the file"},
		"cut":               {archive(t, valid()), "ends before or within"},
		"damaged":           {archive(t, header(func(e *exported) { e.Files[0].SHA256 = strings.Repeat("0", 64) }), file), "damaged"},
		"twice":             {archive(t, header(func(e *exported) { e.Files = append(e.Files, e.Files[0]) }), file, file), "exists"},
	} {
		dir, err := extract(t, c.archive)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		if entries, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(entries) != 1 {
			t.Errorf("%s: files beside the directory: %v, %v", name, entries, err)
		}
	}
}

func FuzzImport(f *testing.F) {
	f.Add(archive(f, valid(), tar.Header{Name: "data/sub/a", Size: 1, Typeflag: tar.TypeReg}))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir, err := extract(t, b)
		if entries, _ := os.ReadDir(filepath.Dir(dir)); len(entries) != 1 {
			t.Errorf("files beside the directory: %v (%v)", entries, err)
		}
	})
}
