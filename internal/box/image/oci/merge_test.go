package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/erofs"
)

// entry is an entry of a layer.
type entry struct {
	name string
	kind byte   // default: a file
	text string // content, or target of a link
	mode int64
	uid  int
}

func pack(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		hdr := &tar.Header{Name: e.name, Typeflag: e.kind, Mode: e.mode, Uid: e.uid, Gid: e.uid, ModTime: time.Unix(1700000000, 0)}
		if hdr.Mode == 0 {
			hdr.Mode = 0o755
		}
		switch e.kind {
		case 0, tar.TypeReg:
			hdr.Typeflag, hdr.Size = tar.TypeReg, int64(len(e.text))
		case tar.TypeSymlink, tar.TypeLink:
			hdr.Linkname = e.text
		}
		if err := w.WriteHeader(hdr); err != nil {
			t.Fatal(err)
		}
		if hdr.Size > 0 {
			if _, err := io.WriteString(w, e.text); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// merged merges layers and lists the result: a line for each file.
func merged(t testing.TB, layers ...[]byte) (map[string]string, error) {
	t.Helper()
	var data bytes.Buffer
	m := newMerger(&data, limits{entries: 1000, names: 1 << 20, data: 1 << 20})
	for _, l := range layers {
		if err := m.add(t.Context(), bytes.NewReader(l)); err != nil {
			return nil, err
		}
	}
	return list(m.root, data.Bytes()), nil
}

func list(root *erofs.Inode, data []byte) map[string]string {
	files := make(map[string]string)
	var walk func(path string, i *erofs.Inode)
	walk = func(path string, i *erofs.Inode) {
		switch i.Type() {
		case erofs.TypeDir:
			if path != "" {
				files[path] = "dir"
			}
			for name, child := range i.Entries {
				walk(strings.TrimPrefix(path+"/"+name, "/"), child)
			}
		case erofs.TypeSymlink:
			files[path] = "-> " + i.Target
		case erofs.TypeRegular:
			files[path] = string(data[i.Offset : i.Offset+i.Size])
		default:
			files[path] = fmt.Sprintf("%o", i.Mode)
		}
	}
	walk("", root)
	return files
}

// TestMerge compares merged layers with what container runtimes unpack.
func TestMerge(t *testing.T) {
	const link, hard, dir = tar.TypeSymlink, tar.TypeLink, tar.TypeDir
	for name, tc := range map[string]struct {
		layers [][]entry
		want   map[string]string
	}{
		"later layers and entries win": {
			[][]entry{{{name: "a", text: "1"}, {name: "b", text: "1"}}, {{name: "b", text: "2"}, {name: "b", text: "3"}}},
			map[string]string{"a": "1", "b": "3"},
		},
		"directories merge and missing ones appear": {
			[][]entry{{{name: "d/", kind: dir}, {name: "d/a", text: "1"}}, {{name: "./d/", kind: dir}, {name: "./d/b", text: "2"}, {name: "x/y/z", text: "3"}}},
			map[string]string{"d": "dir", "d/a": "1", "d/b": "2", "x": "dir", "x/y": "dir", "x/y/z": "3"},
		},
		"a file replaces a directory and the reverse": {
			[][]entry{{{name: "d/a", text: "1"}, {name: "f", text: "1"}}, {{name: "d", text: "2"}, {name: "f/", kind: dir}}},
			map[string]string{"d": "2", "f": "dir"},
		},
		"whiteouts remove from lower layers only": {
			[][]entry{{{name: "a", text: "1"}, {name: "d/x", text: "1"}, {name: "keep", text: "1"}},
				{{name: "a", text: "2"}, {name: ".wh.a"}, {name: ".wh.d"}, {name: ".wh.none"}, {name: "no/.wh.x"}, {name: ".wh..wh.plnk", text: "x"}}},
			map[string]string{"a": "2", "keep": "1"},
		},
		"an opaque directory hides lower layers, wherever it stands": {
			[][]entry{{{name: "d/old", text: "1"}, {name: "d/s/old", text: "1"}, {name: "d/t/old", text: "1"}},
				{{name: "d/new", text: "2"}, {name: "d/s/new", text: "2"}, {name: "d/.wh..wh..opq"}, {name: "d/late", text: "2"}}},
			map[string]string{"d": "dir", "d/new": "2", "d/s": "dir", "d/s/new": "2", "d/late": "2"},
		},
		"a whiteout of a directory keeps what its layer adds there, whichever comes first": {
			[][]entry{{{name: "a/old", text: "1"}, {name: "a/s/old", text: "1"}, {name: "b/old", text: "1"}, {name: "c/old", text: "1"}, {name: "e/s/old", text: "1"}},
				{{name: "a/s/new", text: "2"}, {name: ".wh.a"}, {name: ".wh.b"}, {name: "b/new", text: "2"}, {name: "c/", kind: dir}, {name: ".wh.c"}, {name: "e/s/.wh.old"}, {name: ".wh.e"}}},
			map[string]string{"a": "dir", "a/s": "dir", "a/s/new": "2", "b": "dir", "b/new": "2", "c": "dir"},
		},
		"what a whiteout removed comes back in a later layer, without its content": {
			[][]entry{{{name: "d/old", text: "1"}, {name: "f", text: "1"}, {name: "o/old", text: "1"}}, {{name: ".wh.d"}, {name: ".wh.f"}, {name: "o/.wh..wh..opq"}},
				{{name: "d/", kind: dir}, {name: "f/new", text: "3"}, {name: "o/new", text: "3"}}},
			map[string]string{"d": "dir", "f": "dir", "f/new": "3", "o": "dir", "o/new": "3"},
		},
		"an opaque directory hides no later layer, and a whiteout in it does no harm": {
			[][]entry{{{name: "d/a", text: "1"}, {name: "d/b", text: "1"}}, {{name: "d/.wh..wh..opq"}, {name: "d/.wh..wh..opq"}, {name: "d/.wh.a"}, {name: "d/a", text: "2"}, {name: "d/.wh.a"}},
				{{name: "d/c", text: "3"}, {name: "d/.wh.a"}}},
			map[string]string{"d": "dir", "d/c": "3"},
		},
		"an opaque root hides all lower layers": {
			[][]entry{{{name: "a", text: "1"}, {name: "d/b", text: "1"}}, {{name: "d/new", text: "2"}, {name: ".wh..wh..opq"}}},
			map[string]string{"d": "dir", "d/new": "2"},
		},
		"a whiteout removes a link and not what it leads to": {
			[][]entry{{{name: "d/a", text: "1"}, {name: "l", kind: link, text: "d"}}, {{name: ".wh.l"}}},
			map[string]string{"d": "dir", "d/a": "1"},
		},
		"a directory replaces a link, and does not go where it led": {
			[][]entry{{{name: "d/a", text: "1"}, {name: "l", kind: link, text: "d"}}, {{name: "l/", kind: dir}, {name: "l/b", text: "2"}}},
			map[string]string{"d": "dir", "d/a": "1", "l": "dir", "l/b": "2"},
		},
		"a file that replaced a directory leaves none of it when a directory is back": {
			[][]entry{{{name: "d/a", text: "1"}}, {{name: "d", text: "2"}}, {{name: "d/", kind: dir}, {name: "d/b", text: "3"}}},
			map[string]string{"d": "dir", "d/b": "3"},
		},
		"a hard link outlives the name that a whiteout removes": {
			[][]entry{{{name: "a", text: "1"}}, {{name: "b", kind: hard, text: "a"}, {name: ".wh.a"}}, {{name: "c", kind: hard, text: "b"}, {name: ".wh.b"}}},
			map[string]string{"c": "1"},
		},
		"a device hides what was in its place": {
			[][]entry{{{name: "a", text: "1"}, {name: "d/b", text: "1"}}, {{name: "a", kind: tar.TypeChar}, {name: "d", kind: tar.TypeBlock}}},
			map[string]string{},
		},
		"hard links share a file of this or a lower layer": {
			[][]entry{{{name: "a", text: "1"}}, {{name: "b", kind: hard, text: "a"}, {name: "a", text: "2"}, {name: "c", kind: hard, text: "./a"}}},
			map[string]string{"a": "2", "b": "1", "c": "2"},
		},
		"entries below a link go where it leads, within the image": {
			[][]entry{{{name: "usr/lib/", kind: dir}, {name: "lib", kind: link, text: "usr/lib"}, {name: "up", kind: link, text: "../../../../usr"}, {name: "abs", kind: link, text: "/usr"}},
				{{name: "lib/a", text: "1"}, {name: "up/b", text: "2"}, {name: "abs/c", text: "3"}}},
			map[string]string{"usr": "dir", "usr/lib": "dir", "usr/lib/a": "1", "usr/b": "2", "usr/c": "3", "lib": "-> usr/lib", "up": "-> ../../../../usr", "abs": "-> /usr"},
		},
		"devices are left out": {
			[][]entry{{{name: "null", kind: tar.TypeChar}, {name: "sda", kind: tar.TypeBlock}, {name: "pipe", kind: tar.TypeFifo, mode: 0o600}}},
			map[string]string{"pipe": "10600"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var layers [][]byte
			for _, l := range tc.layers {
				layers = append(layers, pack(t, l...))
			}
			got, err := merged(t, layers...)
			if err != nil || !maps.Equal(got, tc.want) {
				t.Errorf("got %v, %v; want %v", got, err, tc.want)
			}
		})
	}
}

// TestMerge_KeepsAttributes: owners, modes with setuid, and times are those of the image.
func TestMerge_KeepsAttributes(t *testing.T) {
	m := newMerger(io.Discard, defaultLimits)
	if err := m.add(t.Context(), bytes.NewReader(pack(t, entry{name: "su", mode: 0o4711, uid: 1 << 20, text: "x"}))); err != nil {
		t.Fatal(err)
	}
	if i := m.lookup("/su"); i.Mode != erofs.TypeRegular|0o4711 || i.UID != 1<<20 || i.GID != 1<<20 || i.MTime != 1700000000 {
		t.Errorf("got %+v", i)
	}
}

// TestMerge_RootByItsOwnName: builders such as umoci and kaniko call the root "/", others
// "./". It is not an absolute name of something below it.
func TestMerge_RootByItsOwnName(t *testing.T) {
	for _, name := range []string{"/", "./", "//", "/./"} {
		m := newMerger(io.Discard, defaultLimits)
		err := m.add(t.Context(), bytes.NewReader(pack(t, entry{name: name, kind: tar.TypeDir, mode: 0o711, uid: 7}, entry{name: "a", text: "1"})))
		if err != nil || m.root.Mode != erofs.TypeDir|0o711 || m.root.UID != 7 || m.lookup("/a") == nil {
			t.Errorf("root %q: %v, root %o of %d", name, err, m.root.Mode, m.root.UID)
		}
	}
}

// TestMerge_RefusesHostileLayers: each of these is an error, and takes neither much time
// nor memory.
func TestMerge_RefusesHostileLayers(t *testing.T) {
	const link, hard, dir = tar.TypeSymlink, tar.TypeLink, tar.TypeDir
	many := make([]entry, 1001)
	for n := range many {
		many[n] = entry{name: fmt.Sprint("f", n)}
	}
	names := make([]entry, 900)
	for n := range names {
		names[n] = entry{name: fmt.Sprint("l", n), kind: link, text: strings.Repeat("x", 4000)}
	}
	loop := []entry{{name: "a", kind: link, text: "b"}, {name: "b", kind: link, text: "a"}, {name: "a/x"}}
	farm := []entry{{name: "l0", kind: link, text: "."}}
	for n := range 60 {
		farm = append(farm, entry{name: fmt.Sprint("l", n+1), kind: link, text: fmt.Sprintf("l%d/l%d/l%d", n, n, n)})
	}
	farm = append(farm, entry{name: "l60/x"})
	for name, layer := range map[string][]entry{
		"traversal":                {{name: "../etc/passwd"}},
		"traversal inside":         {{name: "a/../../b"}},
		"absolute":                 {{name: "/etc/passwd"}},
		"traversal of a hard link": {{name: "a", kind: hard, text: "../../etc/passwd"}},
		"absolute hard link":       {{name: "a", kind: hard, text: "/etc/passwd"}},
		"hard link to nothing":     {{name: "a", kind: hard, text: "b"}},
		"hard link to a directory": {{name: "d/", kind: dir}, {name: "a", kind: hard, text: "d"}},
		"hard link to the root":    {{name: "a", kind: hard, text: "."}},
		"whiteout of ..":           {{name: "d/.wh..."}},
		"whiteout of .":            {{name: "d/.wh.."}},
		"whiteout of nothing":      {{name: "d/.wh."}},
		"file as directory":        {{name: "f"}, {name: "f/x"}},
		"loop of links":            loop,
		"farm of links":            farm,
		"link without target":      {{name: "l", kind: link}},
		"long target":              {{name: "l", kind: link, text: strings.Repeat("x", 4096)}},
		"long name":                {{name: strings.Repeat("x", 256)}},
		"long path":                {{name: strings.Repeat("x/", 2100) + "x"}},
		"deep":                     {{name: strings.Repeat("x/", 65) + "x"}},
		"deep behind links":        {{name: strings.Repeat("x/", 60) + "y/", kind: dir}, {name: "l", kind: link, text: strings.Repeat("x/", 60)}, {name: "l/" + strings.Repeat("z/", 10) + "z"}},
		"root / is a link":         {{name: "/", kind: link, text: "/"}},
		"hard link to /":           {{name: "a", kind: hard, text: "/"}},
		"root is a link":           {{name: ".", kind: link, text: "/"}},
		"owner":                    {{name: "a", uid: 1 << 33}},
		"negative owner":           {{name: "a", uid: -1}},
		"too many files":           many,
		"too many directories":     {{name: "d/", kind: dir}, {name: strings.Repeat("x/", 60) + "x"}, {name: "y", text: strings.Repeat("x", 1<<20+1)}},
		"too many names":           names,
		"too much data":            {{name: "a", text: strings.Repeat("x", 1<<19)}, {name: "b", text: strings.Repeat("x", 1<<19+1)}},
		"unknown type":             {{name: "a", kind: 'Z'}},
	} {
		begin := time.Now()
		if got, err := merged(t, pack(t, layer...)); !errors.Is(err, ErrHostile) {
			t.Errorf("%s: got %d files, %v", name, len(got), err)
		}
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("%s: it took %v", name, took)
		}
	}
	if _, err := merged(t, pack(t, entry{name: "a", text: "content"})[:515]); err == nil {
		t.Error("half a layer is no error")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	cancel(stop)
	if err := newMerger(io.Discard, defaultLimits).add(ctx, bytes.NewReader(pack(t, entry{name: "a"}))); !errors.Is(err, stop) {
		t.Errorf("with an ended context: %v", err)
	}
}

// FuzzMerge feeds any bytes as two layers: the result, if there is one, is a tree that an
// image can hold and that has everything a box needs.
func FuzzMerge(f *testing.F) {
	f.Add(pack(f, entry{name: "a", text: "1"}, entry{name: "d/b", kind: tar.TypeSymlink, text: "../a"}), pack(f, entry{name: "d/.wh..wh..opq"}, entry{name: "c", kind: tar.TypeLink, text: "a"}))
	f.Add(pack(f, entry{name: "etc", kind: tar.TypeSymlink, text: "tmp"}, entry{name: "tmp", kind: tar.TypeSymlink, text: "etc"}), pack(f, entry{name: "proc", text: "x"}, entry{name: "home", text: "x"}))
	f.Fuzz(func(t *testing.T, lower, upper []byte) {
		var data bytes.Buffer
		m := newMerger(&data, limits{entries: 1000, names: 1 << 20, data: 1 << 20})
		for _, l := range [][]byte{lower, upper} {
			if m.add(t.Context(), bytes.NewReader(l)) != nil {
				return
			}
		}
		m.limits.data += 1 << 20
		if err := m.finish(bytes.NewReader(bytes.Clone(data.Bytes()))); err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{"/proc", "/sys", "/dev", "/.glovebox", "/tmp", "/etc", "/home/user"} {
			if i := m.lookup(dir); i == nil || !i.IsDir() {
				t.Errorf("%s is no directory: %+v", dir, i)
			}
		}
		m.interpreters([]string{"PATH=/bin:/a:/d"})
		if err := erofs.Write(io.Discard, m.root, bytes.NewReader(data.Bytes()), [16]byte{}); err != nil {
			t.Fatal(err)
		}
	})
}

// TestFinish adds accounts to those of the image, and not twice.
func TestFinish(t *testing.T) {
	for name, tc := range map[string]struct{ passwd, want string }{
		"none":           {"", "user:x:1000:1000:user:/home/user:/bin/sh"},
		"of others":      {"root:x:0:0:root:/root:/bin/sh\nwww:x:33:33::/:", "www:x:33:33::/:\nuser:x:1000:1000:user:/home/user:/bin/sh"},
		"the id":         {"node:x:1000:1000::/home/node:/bin/sh\n", "node:x:1000:1000::/home/node:/bin/sh"},
		"the name":       {"user:x:5:5::/:\n", "user:x:5:5::/:\nglovebox:x:1000:1000:user:/home/user:/bin/sh"},
		"not an account": {"\n::::\n", "::::\nuser:x:1000:1000:user:/home/user:/bin/sh"},
	} {
		var data bytes.Buffer
		m := newMerger(&data, defaultLimits)
		if tc.passwd != "" {
			if err := m.add(t.Context(), bytes.NewReader(pack(t, entry{name: "etc/passwd", text: tc.passwd}))); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.finish(bytes.NewReader(bytes.Clone(data.Bytes()))); err != nil {
			t.Fatal(err)
		}
		got := list(m.root, data.Bytes())["etc/passwd"]
		if !strings.HasSuffix(strings.TrimSpace(got), tc.want) || strings.Count(got, ":1000:1000:") != 1 {
			t.Errorf("%s: got %q, want the end %q", name, got, tc.want)
		}
	}
}

// TestInterpreters finds interpreters where images have them.
func TestInterpreters(t *testing.T) {
	const link = tar.TypeSymlink
	for name, tc := range map[string]struct {
		env   string
		files []entry
		want  []string
	}{
		"debian": {"", []entry{{name: "usr/bin/python3.11"}, {name: "usr/bin/python3", kind: link, text: "python3.11"}, {name: "usr/lib/python3/dist-packages/numpy/__init__.py"}, {name: "bin", kind: link, text: "usr/bin"}},
			[]string{"python /usr/bin/python3 3.11 [numpy]"}},
		"official image": {"PATH=/usr/local/bin:/usr/bin", []entry{{name: "usr/local/bin/python3.13"}, {name: "usr/local/bin/python3", kind: link, text: "python3.13"}, {name: "usr/local/lib/python3.13/os.py"}, {name: "usr/local/lib/python3.13/json/__init__.py"}, {name: "usr/local/lib/python3.13/site-packages/pandas/__init__.py"}, {name: "usr/bin/python3"}, {name: "usr/lib/python3.11/os.py"}},
			[]string{"python /usr/local/bin/python3 3.13 [pandas]"}},
		"conda on PATH": {"PATH=/opt/c/bin:/bin", []entry{{name: "opt/c/bin/python3.12"}, {name: "opt/c/bin/python3", kind: link, text: "/opt/c/bin/python3.12"}, {name: "opt/c/bin/node"}},
			[]string{"python /opt/c/bin/python3 3.12 []", "javascript /opt/c/bin/node  []"}},
		"virtual environment": {"PATH=/app/bin", []entry{{name: "usr/bin/python3.9"}, {name: "app/bin/python3", kind: link, text: "/usr/bin/python3.9"}},
			[]string{"python /app/bin/python3 3.9 []"}},
		"dangling link": {"", []entry{{name: "usr/bin/python3", kind: link, text: "/nowhere/python3"}, {name: "usr/bin/node", mode: 0o644}}, nil},
		"too old":       {"", []entry{{name: "usr/bin/python3.6"}, {name: "usr/bin/python3", kind: link, text: "python3.6"}}, nil},
		"minimal":       {"", []entry{{name: "usr/bin/python3.11"}, {name: "usr/bin/python3", kind: link, text: "python3.11"}, {name: "usr/lib/python3.11/os.py"}}, nil},
		"no library":    {"", []entry{{name: "usr/bin/python3.11"}, {name: "usr/bin/python3", kind: link, text: "python3.11"}, {name: "usr/lib/python3.11/", kind: tar.TypeDir}}, nil},
		"only packages": {"", []entry{{name: "usr/bin/python3.11"}, {name: "usr/bin/python3", kind: link, text: "python3.11"}, {name: "usr/lib/python3.11/site-packages/numpy/__init__.py"}}, nil},
		"of another version": {"", []entry{{name: "usr/bin/python3.11"}, {name: "usr/bin/python3", kind: link, text: "python3.11"}, {name: "usr/lib/python3.11/", kind: tar.TypeDir},
			{name: "usr/lib/python3.10/os.py"}, {name: "usr/lib/python3.10/json/__init__.py"}}, nil},
		"library in a zip file": {"", []entry{{name: "usr/bin/python3.11"}, {name: "usr/bin/python3", kind: link, text: "python3.11"}, {name: "usr/lib/python3.11/", kind: tar.TypeDir}, {name: "usr/lib/python311.zip"}},
			[]string{"python /usr/bin/python3 3.11 []"}},
		"library in lib64": {"", []entry{{name: "usr/bin/python3.11"}, {name: "usr/bin/python3", kind: link, text: "python3.11"}, {name: "usr/lib/python3.11/site-packages/numpy/__init__.py"}, {name: "usr/lib64/python3.11/os.py"}},
			[]string{"python /usr/bin/python3 3.11 [numpy]"}},
		"script that starts another": {"", []entry{{name: "usr/local/bin/python3"}, {name: "usr/local/lib/python3.11/dist-packages/numpy/__init__.py"}},
			[]string{"python /usr/local/bin/python3 3.11 []"}},
		"virtual environment of copies": {"PATH=/app/bin", []entry{{name: "app/bin/python3.11"}, {name: "app/bin/python3", kind: link, text: "python3.11"}, {name: "app/pyvenv.cfg"}, {name: "app/lib/python3.11/site-packages/numpy/__init__.py"}},
			[]string{"python /app/bin/python3 3.11 [numpy]"}},
		"minimal and whole": {"", []entry{{name: "usr/bin/python3.11"}, {name: "usr/bin/python3", kind: link, text: "python3.11"}, {name: "usr/lib/python3.11/os.py"},
			{name: "opt/venv/bin/python3.12"}, {name: "opt/venv/bin/python3", kind: link, text: "python3.12"}, {name: "opt/venv/lib/python3.12/os.py"}, {name: "opt/venv/lib/python3.12/json/__init__.py"}},
			[]string{"python /opt/venv/bin/python3 3.12 []"}},
		"nothing": {"PATH=relative:", nil, nil},
	} {
		m := newMerger(io.Discard, defaultLimits)
		if err := m.add(t.Context(), bytes.NewReader(pack(t, tc.files...))); err != nil {
			t.Fatal(err)
		}
		found, notes := m.interpreters([]string{tc.env})
		var got []string
		for _, i := range found {
			got = append(got, fmt.Sprintf("%s %s %s %v", i.Language, i.Path, i.Version, i.Libraries))
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
		if text := strings.Join(notes, " "); strings.Contains(text, "commands only") != (len(tc.want) == 0) {
			t.Errorf("%s: notes %q", name, text)
		} else if name == "minimal" && !strings.Contains(text, "install the package python3 in the image") {
			t.Errorf("%s: notes %q, want what to do", name, text)
		}
	}
}
