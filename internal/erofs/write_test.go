//go:build linux

package erofs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	reader "gvisor.dev/gvisor/pkg/erofs"

	"github.com/glovebox-dev/glovebox/internal/erofs"
)

// contents collects the data of files.
type contents struct{ bytes.Buffer }

func (c *contents) file(mode uint16, content string) *erofs.Inode {
	i := &erofs.Inode{Mode: erofs.TypeRegular | mode, UID: 1000, GID: 100, MTime: 1700000000, Size: int64(len(content)), Offset: int64(c.Len())}
	c.WriteString(content)
	return i
}

func dir(entries map[string]*erofs.Inode) *erofs.Inode {
	return &erofs.Inode{Mode: erofs.TypeDir | 0o755, Entries: entries}
}

func link(target string) *erofs.Inode {
	return &erofs.Inode{Mode: erofs.TypeSymlink | 0o777, Target: target}
}

// sample returns a tree with every kind of file, and sizes around each limit.
func sample() (*erofs.Inode, *contents) {
	data := &contents{}
	twice := data.file(0o4755, "#!/bin/sh\n")
	many := dir(map[string]*erofs.Inode{})
	for n := range 3000 {
		many.Entries[fmt.Sprintf("file-%d", n)] = twice
	}
	sizes := dir(map[string]*erofs.Inode{})
	for _, n := range []int{0, 1, 4031, 4032, 4033, 4095, 4096, 4097, 100_000} {
		sizes.Entries[fmt.Sprint("content-", n)] = data.file(0o600, strings.Repeat("x", n))
		if n > 0 && n <= erofs.MaxTarget {
			sizes.Entries[fmt.Sprint("link-", n)] = link(strings.Repeat("y", n))
		}
	}
	// Directories whose last block has each size around those that fit after an inode.
	for n := range 40 {
		d := dir(map[string]*erofs.Inode{})
		for k := range 15 {
			d.Entries[fmt.Sprintf("%02d%s", k, strings.Repeat("n", 240))] = twice
		}
		d.Entries["15"+strings.Repeat("n", 160+n)] = twice
		sizes.Entries[fmt.Sprint("dir-", n)] = d
	}
	deep := dir(nil)
	for range 100 {
		deep = dir(map[string]*erofs.Inode{"d": deep})
	}
	return dir(map[string]*erofs.Inode{
		"bin": link("usr/bin"), "usr": dir(map[string]*erofs.Inode{"bin": dir(map[string]*erofs.Inode{"sh": twice, "bash": twice})}),
		"many": many, "sizes": sizes, "deep": deep, "empty": dir(nil), "!before-dot": data.file(0o644, "1"), "-before-dot": data.file(0o644, "2"),
		"fifo": {Mode: erofs.TypeFIFO | 0o644}, strings.Repeat("n", erofs.MaxName): data.file(0o644, "long"), "ÿ\xff": data.file(0o644, "not UTF-8"),
		"private": {Mode: erofs.TypeDir | 0o1700, UID: 1 << 30, GID: 7, Entries: map[string]*erofs.Inode{"key": data.file(0o400, "secret")}},
	}), data
}

func write(t testing.TB, root *erofs.Inode, data io.ReaderAt) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "image.erofs")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := erofs.Write(f, root, data, [16]byte{1, 2, 3}); err != nil {
		t.Fatal(err)
	}
	return file
}

// compare compares a file of an image, as gVisor reads it, with what was written.
func compare(t *testing.T, img *reader.Image, path string, nid, parent uint64, want *erofs.Inode, data []byte, links map[*erofs.Inode]uint64) {
	t.Helper()
	got, err := img.Inode(nid)
	if err != nil {
		t.Errorf("%.50s: %v", path, err)
		return
	}
	if got.Mode() != want.Mode || got.UID() != want.UID || got.GID() != want.GID || got.Mtime() != want.MTime {
		t.Errorf("%.50s: mode %o, owner %d:%d, time %d; want %+v", path, got.Mode(), got.UID(), got.GID(), got.Mtime(), want)
	}
	if first, ok := links[want]; ok {
		if first != nid {
			t.Errorf("%.50s: it is inode %d, and %d under another name", path, nid, first)
		}
		return
	}
	links[want] = nid
	switch want.Type() {
	case erofs.TypeRegular:
		if _, err := got.DataOffset(); err != nil {
			t.Errorf("%.50s: it cannot be mapped: %v", path, err)
		}
		ranges, err := got.DataRanges()
		content := slicesJoin(ranges[0].Bytes, ranges[1].Bytes)
		if err != nil || !bytes.Equal(content, data[want.Offset:want.Offset+want.Size]) {
			t.Errorf("%.50s: got %d bytes, want %d: %v", path, len(content), want.Size, err)
		}
	case erofs.TypeSymlink:
		if target, err := got.Readlink(); err != nil || target != want.Target {
			t.Errorf("%.50s: leads to %.50q, want %.50q: %v", path, target, want.Target, err)
		}
	case erofs.TypeDir:
		n, last, subdirs := 0, "", uint32(0)
		err := got.IterDirents(func(name string, _ uint8, child uint64) error {
			n++
			if n > 1 && name <= last {
				t.Errorf("%.50s: %q after %q", path, name, last)
			}
			last = name
			if found, err := got.Lookup(name); err != nil || found != child {
				t.Errorf("%.50s: look up %.50q: got %d, %v; want %d", path, name, found, err, child)
			}
			switch i := want.Entries[name]; {
			case name == "." && child == nid, name == ".." && child == parent:
			case i == nil:
				t.Errorf("%.50s: unexpected entry %q of inode %d", path, name, child)
			default:
				if i.IsDir() {
					subdirs++
				}
				compare(t, img, path+"/"+name, child, nid, i, data, links)
			}
			return nil
		})
		if err != nil || n != len(want.Entries)+2 {
			t.Errorf("%.50s: %d entries, want %d: %v", path, n, len(want.Entries)+2, err)
		}
		if got.Nlink() != 2+subdirs {
			t.Errorf("%.50s: %d links, want %d", path, got.Nlink(), 2+subdirs)
		}
	}
}

func slicesJoin(a, b []byte) []byte { return append(append([]byte(nil), a...), b...) }

// TestWrite_GVisorReadsIt writes a tree and compares what gVisor's own reader finds.
func TestWrite_GVisorReadsIt(t *testing.T) {
	root, data := sample()
	f, err := os.Open(write(t, root, bytes.NewReader(data.Bytes())))
	if err != nil {
		t.Fatal(err)
	}
	img, err := reader.OpenImage(f)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	compare(t, img, "", img.RootNid(), img.RootNid(), root, data.Bytes(), map[*erofs.Inode]uint64{})
}

// TestWrite_FsckAccepts has fsck.erofs, a second implementation, check an image and
// extract it.
func TestWrite_FsckAccepts(t *testing.T) {
	fsck, err := exec.LookPath("fsck.erofs")
	if err != nil {
		if os.Getenv("GLOVEBOX_TEST_COMPLETE") != "" {
			t.Fatal("no fsck.erofs")
		}
		t.Skip("no fsck.erofs: type: apt-get install erofs-utils")
	}
	root, data := sample()
	delete(root.Entries, "fifo") // not everybody may extract it
	image, to := write(t, root, bytes.NewReader(data.Bytes())), filepath.Join(t.TempDir(), "tree")
	if out, err := exec.Command(fsck, "--extract="+to, "--no-preserve", image).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	entries, err := os.ReadDir(filepath.Join(to, "many"))
	if err != nil || len(entries) != 3000 {
		t.Errorf("many has %d entries: %v", len(entries), err)
	}
	got, err := os.ReadFile(filepath.Join(to, "sizes", "content-100000"))
	if err != nil || len(got) != 100_000 {
		t.Errorf("a file has %d bytes: %v", len(got), err)
	}
}

// TestWrite_IsDeterministic: equal trees give equal images, and the identity is part of it.
func TestWrite_IsDeterministic(t *testing.T) {
	image := func(uuid byte) []byte {
		root, data := sample()
		var b bytes.Buffer
		if err := erofs.Write(&b, root, bytes.NewReader(data.Bytes()), [16]byte{uuid}); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	if !bytes.Equal(image(1), image(1)) {
		t.Error("two images of one tree differ")
	}
	if bytes.Equal(image(1)[:4096], image(2)[:4096]) {
		t.Error("images with different identities have equal superblocks")
	}
}

// TestWrite_RefusesOtherTrees: what EROFS cannot hold is an error, not another image.
func TestWrite_RefusesOtherTrees(t *testing.T) {
	loop := dir(map[string]*erofs.Inode{})
	loop.Entries["again"] = loop
	two := dir(nil)
	for name, root := range map[string]*erofs.Inode{
		"no directory": link("x"), "cycle": loop, "directory with two names": dir(map[string]*erofs.Inode{"a": two, "b": two}),
		"slash": dir(map[string]*erofs.Inode{"a/b": two}), "dots": dir(map[string]*erofs.Inode{"..": two}), "empty name": dir(map[string]*erofs.Inode{"": two}),
		"NUL": dir(map[string]*erofs.Inode{"a\x00": two}), "long name": dir(map[string]*erofs.Inode{strings.Repeat("n", 256): two}),
		"device": dir(map[string]*erofs.Inode{"null": {Mode: 0o020666}}), "no target": dir(map[string]*erofs.Inode{"l": link("")}),
		"long target": dir(map[string]*erofs.Inode{"l": link(strings.Repeat("x", 4096))}), "negative size": dir(map[string]*erofs.Inode{"f": {Mode: erofs.TypeRegular, Size: -1}}),
	} {
		if err := erofs.Write(io.Discard, root, bytes.NewReader(nil), [16]byte{}); !errors.Is(err, erofs.ErrInvalid) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	short := dir(map[string]*erofs.Inode{"f": {Mode: erofs.TypeRegular, Size: 2}})
	if err := erofs.Write(io.Discard, short, bytes.NewReader([]byte("x")), [16]byte{}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("missing data: got %v", err)
	}
	full := errors.New("disk full")
	if err := erofs.Write(writerFunc(func([]byte) (int, error) { return 0, full }), dir(nil), bytes.NewReader(nil), [16]byte{}); !errors.Is(err, full) {
		t.Errorf("full disk: got %v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// FuzzWrite builds trees out of bytes: gVisor reads what Write accepts as it was.
func FuzzWrite(f *testing.F) {
	f.Add([]byte("\x00abc\x01def\x02ghi\x03"))
	f.Add(bytes.Repeat([]byte{3, 200, 'a', 1, 7}, 50))
	f.Fuzz(func(t *testing.T, b []byte) {
		root, data := fuzzTree(b)
		var out bytes.Buffer
		if err := erofs.Write(&out, root, bytes.NewReader(data.Bytes()), [16]byte{}); err != nil {
			if !errors.Is(err, erofs.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		file := filepath.Join(t.TempDir(), "i")
		if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		src, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		img, err := reader.OpenImage(src)
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		compare(t, img, "", img.RootNid(), img.RootNid(), root, data.Bytes(), map[*erofs.Inode]uint64{})
	})
}

// fuzzTree makes a tree: each instruction is a kind, a length and a name of that length.
func fuzzTree(b []byte) (*erofs.Inode, *contents) {
	data := &contents{}
	root := dir(map[string]*erofs.Inode{})
	at, last := root, data.file(0, "x")
	for len(b) > 2 {
		kind, n := b[0], min(int(b[1]), len(b)-2)
		name := string(b[2 : 2+n])
		b = b[2+n:]
		switch kind % 5 {
		case 0:
			last = data.file(uint16(kind), strings.Repeat(name, 1+int(kind)))
			at.Entries[name] = last
		case 1:
			at.Entries[name] = link(name)
		case 2:
			d := dir(map[string]*erofs.Inode{})
			at.Entries[name] = d
			at = d
		case 3:
			at.Entries[name] = last
		case 4:
			at = root
		}
	}
	return root, data
}
