//go:build linux

package client_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/polltest"
)

func TestFiles_WriteRead(t *testing.T) {
	l, g := newConn(t)
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // 4 MiB
	fi, err := l.Write(t.Context(), protocol.Write{Path: "a/b/c.bin", Parents: true, Mode: 0o640}, bytes.NewReader(big))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(big)
	want := protocol.FileInfo{
		Path: g.home + "/a/b/c.bin", Name: "c.bin", Type: "file", Size: int64(len(big)),
		Mode: 0o640, Modified: fi.Modified, SHA256: hex.EncodeToString(sum[:]),
	}
	if fi != want {
		t.Errorf("got %+v, want %+v", fi, want)
	}
	for _, tc := range []struct {
		offset, limit int64
		want          []byte
	}{
		{0, 0, big}, {5, 10, big[5:15]}, {int64(len(big)) - 3, 100, big[len(big)-3:]}, {1 << 40, 0, nil},
	} {
		var b bytes.Buffer
		if _, err := l.Read(t.Context(), protocol.Read{Path: g.home + "/a/b/c.bin", Offset: tc.offset, Limit: tc.limit}, &b); err != nil || !bytes.Equal(b.Bytes(), tc.want) {
			t.Errorf("read %d+%d: got %d bytes, %v; want %d bytes", tc.offset, tc.limit, b.Len(), err, len(tc.want))
		}
	}
	// A replaced file keeps its mode unless one is given.
	if fi, err := l.Write(t.Context(), protocol.Write{Path: "a/b/c.bin"}, strings.NewReader("x")); err != nil || fi.Mode != 0o640 {
		t.Errorf("replace: got %+v, %v", fi, err)
	}
	if _, err := l.Write(t.Context(), protocol.Write{Path: "a/b/c.bin", Exclusive: true}, strings.NewReader("y")); code(t, err) != protocol.CodeExists {
		t.Errorf("exclusive: got %v", err)
	}
	if _, err := l.Write(t.Context(), protocol.Write{Path: "new", Exclusive: true}, strings.NewReader("y")); err != nil {
		t.Errorf("exclusive, new: got %v", err)
	}
	if _, err := l.Write(t.Context(), protocol.Write{Path: "a/b/c.bin", MaxBytes: 3}, strings.NewReader("1234")); code(t, err) != protocol.CodeTooLarge {
		t.Errorf("too large: got %v", err)
	}
	broken := errors.New("the upload broke off")
	if _, err := l.Write(t.Context(), protocol.Write{Path: "a/b/c.bin"}, io.MultiReader(strings.NewReader("part"), &failing{broken})); !errors.Is(err, broken) {
		t.Errorf("broken upload: got %v", err)
	}
	if b, _ := os.ReadFile(g.home + "/a/b/c.bin"); string(b) != "x" {
		t.Errorf("content is %q after failed writes", b)
	}
	noTemp(t, g.home)
	if err := l.Remove(t.Context(), protocol.Remove{Path: "a"}); code(t, err) != protocol.CodeInvalid {
		t.Errorf("remove a full directory: got %v", err)
	}
	if err := l.Remove(t.Context(), protocol.Remove{Path: "a", Recursive: true}); err != nil {
		t.Error(err)
	}
	if _, err := l.Stat(t.Context(), "a"); code(t, err) != protocol.CodeNotFound {
		t.Errorf("stat of a removed file: got %v", err)
	}
}

type failing struct{ err error }

func (f *failing) Read([]byte) (int, error) { return 0, f.err }

// noTemp fails the test if a temporary file is left.
func noTemp(t *testing.T, dir string) {
	t.Helper()
	// A write with a failed upload ends shortly after the caller's error.
	none := func() bool {
		left := ""
		filepath.WalkDir(dir, func(p string, _ fs.DirEntry, _ error) error {
			if strings.Contains(filepath.Base(p), ".glovebox-") {
				left = p
			}
			return nil
		})
		return left == ""
	}
	if !polltest.Soon(5*time.Second, none) {
		t.Error("leak: a temporary file is left")
	}
}

// TestFiles_PathAttacks tries to leave the home directory with every operation.
func TestFiles_PathAttacks(t *testing.T) {
	l, g := newConn(t)
	outside := filepath.Dir(g.home)
	secret := outside + "/secret"
	must(t, os.WriteFile(secret, []byte("secret"), 0o600))
	must(t, os.Mkdir(g.home+"/dir", 0o755))
	must(t, os.Symlink(secret, g.home+"/abs"))
	must(t, os.Symlink("../secret", g.home+"/rel"))
	must(t, os.Symlink(outside, g.home+"/up"))
	must(t, os.Symlink("/etc/passwd", g.home+"/dir/passwd"))
	must(t, os.Symlink("loop", g.home+"/loop"))
	must(t, os.Symlink("/proc/self/fd/0", g.home+"/fd"))
	must(t, unix.Mkfifo(g.home+"/fifo", 0o600))

	long := strings.Repeat("x/", 2048) + "x"
	for _, tc := range []struct {
		path string
		want protocol.Code
	}{
		{"../secret", protocol.CodeNotAllowed},
		{"dir/../../secret", protocol.CodeNotAllowed},
		{secret, protocol.CodeNotAllowed},
		{"/etc/passwd", protocol.CodeNotAllowed},
		{"/proc/self/mem", protocol.CodeNotAllowed},
		{"/dev/zero", protocol.CodeNotAllowed},
		{g.home + "x", protocol.CodeNotAllowed},
		{g.home + "/../secret", protocol.CodeNotAllowed},
		{"abs", protocol.CodeNotAllowed},
		{"rel", protocol.CodeNotAllowed},
		{"up/secret", protocol.CodeNotAllowed},
		{"dir/passwd", protocol.CodeNotAllowed},
		{"fd", protocol.CodeNotAllowed},
		{"loop", protocol.CodeInvalid},
		{"fifo", protocol.CodeInvalid},
		{"dir", protocol.CodeInvalid},
		{"", protocol.CodeInvalid},
		{"a\x00b", protocol.CodeInvalid},
		{long, protocol.CodeInvalid},
		{strings.Repeat("x", 256), protocol.CodeInvalid},
		{"nothing/here", protocol.CodeNotFound},
		{"..\\secret", protocol.CodeNotFound},
		{"-rf", protocol.CodeNotFound},
		{"new\nline", protocol.CodeNotFound},
	} {
		start := time.Now()
		var b bytes.Buffer
		_, err := l.Read(t.Context(), protocol.Read{Path: tc.path}, &b)
		if got := code(t, err); got != tc.want || b.Len() > 0 {
			t.Errorf("read %.40q: got %q (%v) and %d bytes, want %q", tc.path, got, err, b.Len(), tc.want)
		}
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("read %.40q took %v", tc.path, d)
		}
	}
	for _, p := range []string{"../x", secret, "up/x", "/etc/x", "/tmp/a", g.home + "x/y"} {
		ops := map[string]func() error{
			"write": func() error {
				_, err := l.Write(t.Context(), protocol.Write{Path: p, Parents: true}, strings.NewReader("x"))
				return err
			},
			"mkdir":   func() error { _, err := l.Mkdir(t.Context(), protocol.Mkdir{Path: p, Parents: true}); return err },
			"remove":  func() error { return l.Remove(t.Context(), protocol.Remove{Path: p, Recursive: true}) },
			"stat":    func() error { _, err := l.Stat(t.Context(), p); return err },
			"list":    func() error { _, err := l.List(t.Context(), protocol.List{Path: p}); return err },
			"archive": func() error { return l.Archive(t.Context(), p, io.Discard) },
			"extract": func() error { return l.Extract(t.Context(), p, tarOf(t, tarEntry{name: "f", body: "x"})) },
		}
		for name, op := range ops {
			if got := code(t, op()); got != protocol.CodeNotAllowed {
				t.Errorf("%s %q: got %q, want %q", name, p, got, protocol.CodeNotAllowed)
			}
		}
	}
	must(t, os.WriteFile(g.home+"/file", nil, 0o600))
	for name, err := range map[string]error{
		"list":                        second(l.List(t.Context(), protocol.List{Path: "file"})),
		"read":                        second(l.Read(t.Context(), protocol.Read{Path: "file/x"}, io.Discard)),
		"write":                       second(l.Write(t.Context(), protocol.Write{Path: "file/x"}, strings.NewReader("x"))),
		"write with its directories":  second(l.Write(t.Context(), protocol.Write{Path: "file/x", Parents: true}, strings.NewReader("x"))),
		"write with more directories": second(l.Write(t.Context(), protocol.Write{Path: "file/d/x", Parents: true}, strings.NewReader("x"))),
	} {
		if got := code(t, err); got != protocol.CodeInvalid || !strings.Contains(err.Error(), "not a directory") {
			t.Errorf("%s of a file as a directory: got %q (%v)", name, got, err)
		}
	}
	// Writing to a link replaces the link.
	if _, err := l.Write(t.Context(), protocol.Write{Path: "abs"}, strings.NewReader("mine")); err != nil {
		t.Error(err)
	}
	// Remove removes the link, not its target, and never home itself.
	if err := l.Remove(t.Context(), protocol.Remove{Path: "up", Recursive: true}); err != nil {
		t.Error(err)
	}
	for _, p := range []string{".", g.home, "dir/.."} {
		if err := l.Remove(t.Context(), protocol.Remove{Path: p, Recursive: true}); code(t, err) != protocol.CodeNotAllowed {
			t.Errorf("remove %q: got %v", p, err)
		}
	}
	if b, err := os.ReadFile(secret); err != nil || string(b) != "secret" {
		t.Errorf("the file outside is %q, %v", b, err)
	}
	noTemp(t, outside)
}

func second[T any](_ T, err error) error { return err }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestFiles_PathsDuringSwapStayInside repeatedly replaces a directory by a link that leads
// outside while files below it are read and written.
func TestFiles_PathsDuringSwapStayInside(t *testing.T) {
	l, g := newConn(t)
	outside := filepath.Dir(g.home) + "/outside"
	must(t, os.Mkdir(outside, 0o755))
	must(t, os.WriteFile(outside+"/f", []byte("secret"), 0o644))
	must(t, os.Mkdir(g.home+"/real", 0o755))
	must(t, os.WriteFile(g.home+"/real/f", []byte("mine"), 0o644))
	must(t, os.Symlink(outside, g.home+"/link"))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			from := "/real"
			if i%2 == 0 {
				from = "/link"
			}
			os.Rename(g.home+from, g.home+"/d")
			os.Rename(g.home+"/d", g.home+from)
		}
	})
	n := 1000
	if testing.Short() {
		n = 100
	}
	for i := range n {
		var b bytes.Buffer
		l.Read(t.Context(), protocol.Read{Path: "d/f"}, &b)
		if strings.Contains(b.String(), "secret") {
			t.Fatal("read a file outside")
		}
		l.Write(t.Context(), protocol.Write{Path: "d/new"}, strings.NewReader("x"))
		if i%10 == 0 {
			b.Reset()
			l.Archive(t.Context(), "d", &b)
			if strings.Contains(b.String(), "secret") {
				t.Fatal("archived a file outside")
			}
			l.Remove(t.Context(), protocol.Remove{Path: "d", Recursive: true})
			os.Mkdir(g.home+"/real", 0o755)
			os.WriteFile(g.home+"/real/f", []byte("mine"), 0o644)
			os.Symlink(outside, g.home+"/link")
		}
	}
	close(stop)
	wg.Wait()
	names, _ := os.ReadDir(outside)
	if len(names) != 1 {
		t.Errorf("outside there is now %v", names)
	}
}

// TestRead_GrowingFile checks that reading a file that keeps growing ends.
func TestRead_GrowingFile(t *testing.T) {
	l, g := newConn(t)
	if _, err := l.Exec(t.Context(), protocol.Exec{Shell: "yes > grows", Background: true}, nil, nil); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, func() bool {
		fi, err := os.Stat(g.home + "/grows")
		return err == nil && fi.Size() > 0
	})
	fi, err := l.Read(t.Context(), protocol.Read{Path: "grows"}, io.Discard)
	if err != nil || fi.Size == 0 {
		t.Errorf("got %+v, %v", fi, err)
	}
	l.Signal(t.Context(), protocol.Signal{ID: "p1", Signal: "KILL"})
}

// TestRead_SparseFileCanBeCanceled checks that reading a file of ten terabytes can be
// canceled.
func TestRead_SparseFileCanBeCanceled(t *testing.T) {
	l, g := newConn(t)
	f, err := os.Create(g.home + "/sparse")
	must(t, err)
	if err := f.Truncate(10 << 40); err != nil {
		t.Skip("no sparse files here:", err)
	}
	f.Close()
	w := &limited{left: 10 << 20}
	if _, err := l.Read(t.Context(), protocol.Read{Path: "sparse"}, w); !errors.Is(err, errLimit) {
		t.Errorf("read: got %v", err)
	}
	w = &limited{left: 10 << 20}
	if err := l.Archive(t.Context(), ".", w); !errors.Is(err, errLimit) {
		t.Errorf("archive: got %v", err)
	}
}

var errLimit = errors.New("enough")

type limited struct{ left int }

func (l *limited) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left < 0 {
		return 0, errLimit
	}
	return len(p), nil
}

func TestFiles_ListDirectory(t *testing.T) {
	l, g := newConn(t)
	for _, p := range []string{"b/c/d/e", "a", ".hidden"} {
		_, err := l.Write(t.Context(), protocol.Write{Path: p, Parents: true}, strings.NewReader("x"))
		must(t, err)
	}
	must(t, os.Symlink("b", g.home+"/link"))
	names := func(x protocol.List) (string, bool) {
		t.Helper()
		res, err := l.List(t.Context(), x)
		must(t, err)
		var s []string
		for _, e := range res.Entries {
			rel, _ := filepath.Rel(g.home, e.Path)
			s = append(s, rel+":"+e.Type[:1])
		}
		return strings.Join(s, " "), res.Truncated
	}
	for _, tc := range []struct {
		x         protocol.List
		want      string
		truncated bool
	}{
		{protocol.List{}, ".hidden:f a:f b:d link:s", false},
		{protocol.List{Path: ".", Depth: 2}, ".hidden:f a:f b:d b/c:d link:s", false},
		{protocol.List{Path: ".", Depth: 99}, ".hidden:f a:f b:d b/c:d b/c/d:d b/c/d/e:f link:s", false},
		{protocol.List{Path: g.home + "/b"}, "b/c:d", false},
		{protocol.List{Path: ".", Depth: 9, Max: 3}, ".hidden:f a:f b:d", true},
		{protocol.List{Path: "link"}, "link/c:d", false},
	} {
		if got, truncated := names(tc.x); got != tc.want || truncated != tc.truncated {
			t.Errorf("list %+v: got %q, truncated %v; want %q, %v", tc.x, got, truncated, tc.want, tc.truncated)
		}
	}
	// The answer fits a frame, however long the names are.
	must(t, os.Mkdir(g.home+"/long", 0o755))
	for i := range 1200 {
		must(t, os.WriteFile(g.home+"/long/"+strings.Repeat("é", 100)+string(rune('a'+i%26))+string(rune('a'+i/26%26))+string(rune('a'+i/676)), nil, 0o644))
	}
	res, err := l.List(t.Context(), protocol.List{Path: "long"})
	if err != nil || !res.Truncated || len(res.Entries) < 100 {
		t.Errorf("got %d entries, %v, %v", len(res.Entries), res.Truncated, err)
	}
}

type tarEntry struct {
	name, body, link string
	typ              byte
	mode             int64
}

func tarOf(t testing.TB, entries ...tarEntry) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Linkname: e.link, Typeflag: e.typ, Mode: e.mode, Size: int64(len(e.body))}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		must(t, w.WriteHeader(h))
		io.WriteString(w, e.body)
	}
	must(t, w.Close())
	return &b
}

func TestFiles_Archive(t *testing.T) {
	l, g := newConn(t)
	must(t, l.Extract(t.Context(), "in", tarOf(t,
		tarEntry{name: "d/", typ: tar.TypeDir, mode: 0o755},
		tarEntry{name: "d/f", body: "content", mode: 0o6755},
		tarEntry{name: "./deep/er/g", body: "more"},
		tarEntry{name: "l", typ: tar.TypeSymlink, link: "d/f"},
		tarEntry{name: "h", typ: tar.TypeLink, link: "d/f"},
	)))
	must(t, unix.Mkfifo(g.home+"/in/fifo", 0o600))
	fi, err := l.Stat(t.Context(), "in/d/f")
	if err != nil || fi.Mode != 0o755 || fi.Size != 7 {
		t.Errorf("got %+v, %v", fi, err)
	}
	if st, _ := os.Stat(g.home + "/in/d/f"); st.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
		t.Errorf("mode is %v", st.Mode())
	}
	var b bytes.Buffer
	must(t, l.Archive(t.Context(), "in", &b))
	var got []string
	r := tar.NewReader(&b)
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		must(t, err)
		body, _ := io.ReadAll(r)
		got = append(got, h.Name+"="+string(body)+h.Linkname)
	}
	want := []string{"d/=", "d/f=content", "deep/=", "deep/er/=", "deep/er/g=more", "h=content", "l=d/f"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	b.Reset()
	must(t, l.Archive(t.Context(), "in/d/f", &b))
	if h, err := tar.NewReader(&b).Next(); err != nil || h.Name != "f" {
		t.Errorf("archive of a file: got %+v, %v", h, err)
	}
}

func TestFiles_ArchiveAttacks(t *testing.T) {
	l, g := newConn(t)
	outside := filepath.Dir(g.home)
	must(t, os.WriteFile(outside+"/secret", []byte("secret"), 0o600))
	many := make([]tarEntry, 100_001)
	for i := range many {
		many[i] = tarEntry{name: "d", typ: tar.TypeDir, mode: 0o755}
	}
	for name, tc := range map[string]struct {
		entries []tarEntry
		want    protocol.Code
	}{
		"dot dot":                {[]tarEntry{{name: "../x", body: "x"}}, protocol.CodeNotAllowed},
		"dot dot inside":         {[]tarEntry{{name: "a/../../x", body: "x"}}, protocol.CodeNotAllowed},
		"absolute":               {[]tarEntry{{name: "/tmp/a", body: "x"}}, protocol.CodeNotAllowed},
		"backslash":              {[]tarEntry{{name: `..\x`, body: "x"}}, protocol.CodeNotAllowed},
		"long element":           {[]tarEntry{{name: strings.Repeat("x", 300), body: "x"}}, protocol.CodeNotAllowed},
		"absolute link":          {[]tarEntry{{name: "l", typ: tar.TypeSymlink, link: outside}}, protocol.CodeNotAllowed},
		"link out":               {[]tarEntry{{name: "l", typ: tar.TypeSymlink, link: "../.."}}, protocol.CodeNotAllowed},
		"write through a link":   {[]tarEntry{{name: "l", typ: tar.TypeSymlink, link: "../../.."}, {name: "l/secret", body: "x"}}, protocol.CodeNotAllowed},
		"link chain":             {[]tarEntry{{name: "a", typ: tar.TypeSymlink, link: "."}, {name: "a/b", typ: tar.TypeSymlink, link: ".."}, {name: "b/secret", body: "x"}}, protocol.CodeNotAllowed},
		"hard link out":          {[]tarEntry{{name: "l", typ: tar.TypeLink, link: "../../secret"}}, protocol.CodeNotAllowed},
		"absolute hard link":     {[]tarEntry{{name: "l", typ: tar.TypeLink, link: outside + "/secret"}}, protocol.CodeNotAllowed},
		"hard link to a link":    {[]tarEntry{{name: "a", typ: tar.TypeSymlink, link: "b"}, {name: "l", typ: tar.TypeLink, link: "a"}}, protocol.CodeNotAllowed},
		"device":                 {[]tarEntry{{name: "d", typ: tar.TypeChar}}, protocol.CodeNotAllowed},
		"pipe":                   {[]tarEntry{{name: "d", typ: tar.TypeFifo}}, protocol.CodeNotAllowed},
		"file over a directory":  {[]tarEntry{{name: "d/x", body: "x"}, {name: "d", body: "x"}}, protocol.CodeExists},
		"directory over a file":  {[]tarEntry{{name: "d", body: "x"}, {name: "d", typ: tar.TypeDir}}, protocol.CodeExists},
		"too many":               {many, protocol.CodeTooLarge},
		"the same file again":    {[]tarEntry{{name: "f", body: "x"}, {name: "f", body: "y"}}, ""},
		"replaces a link itself": {[]tarEntry{{name: "l", typ: tar.TypeSymlink, link: "f"}, {name: "l", body: "y"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := l.Extract(t.Context(), "x/"+strings.ReplaceAll(name, " ", "-"), tarOf(t, tc.entries...))
			if got := code(t, err); got != tc.want {
				t.Errorf("got %q (%v), want %q", got, err, tc.want)
			}
		})
	}
	for _, in := range []string{"", "not a tar archive, but long enough for a header" + strings.Repeat("x", 1000)} {
		if err := l.Extract(t.Context(), "y", strings.NewReader(in)); len(in) > 0 && code(t, err) != protocol.CodeInvalid {
			t.Errorf("garbage: got %v", err)
		}
	}
	if b, err := os.ReadFile(outside + "/secret"); err != nil || string(b) != "secret" {
		t.Errorf("the file outside is %q, %v", b, err)
	}
	names, _ := os.ReadDir(outside)
	if len(names) != 2 {
		t.Errorf("outside there is now %v", names)
	}
}

// TestWrite_DiskFull checks that a write to a full disk returns that error and leaves
// nothing.
func TestWrite_DiskFull(t *testing.T) {
	if testing.Short() {
		t.Skip("it mounts, which tests of engines beside it take for theirs")
	}
	l, g := newConn(t)
	small := g.home + "/small"
	must(t, os.Mkdir(small, 0o755))
	if err := unix.Mount("none", small, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("mounting a small disk needs root:", err)
	}
	t.Cleanup(func() { unix.Unmount(small, unix.MNT_DETACH) })
	_, err := l.Write(t.Context(), protocol.Write{Path: "small/f"}, bytes.NewReader(make([]byte, 4<<20)))
	if code(t, err) != protocol.CodeNoSpace {
		t.Errorf("write: got %v", err)
	}
	noTemp(t, small)
	err = l.Extract(t.Context(), "small", tarOf(t, tarEntry{name: "f", body: strings.Repeat("x", 4<<20)}))
	if code(t, err) != protocol.CodeNoSpace {
		t.Errorf("extract: got %v", err)
	}
	if names, _ := os.ReadDir(small); len(names) != 0 {
		t.Errorf("left: %v", names)
	}
}
