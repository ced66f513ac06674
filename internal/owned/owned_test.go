//go:build linux || darwin

package owned

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// stranger is a user and group that own nothing else.
const stranger = 54321

// give makes the stranger the owner. Only root can do that.
func give(t *testing.T, path string, uid, gid int) {
	t.Helper()
	if err := os.Lchown(path, uid, gid); err != nil {
		t.Fatal(err)
	}
}

func mode(t *testing.T, path string, m os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, m); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, to, path string) {
	t.Helper()
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
}

func TestDir(t *testing.T) {
	for name, c := range map[string]struct {
		root bool // only root can arrange it
		make func(t *testing.T, dir string) (path string)
		want string // part of the error; empty: safe
	}{
		"own": {make: func(t *testing.T, dir string) string { return dir }},
		"readable": {make: func(t *testing.T, dir string) string {
			mode(t, dir, 0o755)
			return dir
		}},
		"missing": {make: func(t *testing.T, dir string) string { return filepath.Join(dir, "a", "b") }},
		"with dots": {make: func(t *testing.T, dir string) string {
			mkdir(t, filepath.Join(dir, "a"))
			link(t, "../../"+filepath.Base(dir)+"/./a", filepath.Join(dir, "b"))
			return filepath.Join(dir, "b")
		}},
		"writable": {make: func(t *testing.T, dir string) string {
			mode(t, dir, 0o777)
			return dir
		}, want: "has mode 0777: other users can write to it"},
		"sticky": {make: func(t *testing.T, dir string) string {
			mode(t, dir, 0o777|os.ModeSticky)
			return dir
		}, want: "other users can write to it"},
		"in a sticky one": {make: func(t *testing.T, dir string) string {
			mkdir(t, filepath.Join(dir, "a"))
			mode(t, dir, 0o777|os.ModeSticky)
			return filepath.Join(dir, "a")
		}},
		"in a writable one": {make: func(t *testing.T, dir string) string {
			mkdir(t, filepath.Join(dir, "a"))
			mode(t, dir, 0o777)
			return filepath.Join(dir, "a")
		}, want: "other users can replace what is in it"},
		"missing in a writable one": {make: func(t *testing.T, dir string) string {
			mode(t, dir, 0o777)
			return filepath.Join(dir, "a")
		}, want: "other users can replace what is in it"},
		"behind a link in a writable one": {make: func(t *testing.T, dir string) string {
			mkdir(t, filepath.Join(dir, "open"))
			mkdir(t, filepath.Join(dir, "open", "a"))
			link(t, "open/a", filepath.Join(dir, "link"))
			mode(t, filepath.Join(dir, "open"), 0o777)
			return filepath.Join(dir, "link")
		}, want: "open has mode 0777"},
		"links in a circle": {make: func(t *testing.T, dir string) string {
			link(t, "b", filepath.Join(dir, "a"))
			link(t, "a", filepath.Join(dir, "b"))
			return filepath.Join(dir, "a")
		}, want: syscall.ELOOP.Error()},
		"a file": {make: func(t *testing.T, dir string) string {
			if err := os.WriteFile(filepath.Join(dir, "a"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			return filepath.Join(dir, "a", "b")
		}, want: syscall.ENOTDIR.Error()},
		"another user's": {root: true, make: func(t *testing.T, dir string) string {
			give(t, dir, stranger, -1)
			return dir
		}, want: "belongs to user 54321, not to user 0"},
		"in another user's": {root: true, make: func(t *testing.T, dir string) string {
			mkdir(t, filepath.Join(dir, "a"))
			give(t, dir, stranger, -1)
			return filepath.Join(dir, "a")
		}, want: "belongs to user 54321, who could replace"},
		"another user's in a sticky one": {root: true, make: func(t *testing.T, dir string) string {
			mkdir(t, filepath.Join(dir, "a"))
			mode(t, dir, 0o777|os.ModeSticky)
			give(t, filepath.Join(dir, "a"), stranger, -1)
			return filepath.Join(dir, "a")
		}, want: "belongs to user 54321"},
		"another user's link in a sticky one": {root: true, make: func(t *testing.T, dir string) string {
			mkdir(t, filepath.Join(dir, "a"))
			link(t, "a", filepath.Join(dir, "link"))
			mode(t, dir, 0o777|os.ModeSticky)
			give(t, filepath.Join(dir, "link"), stranger, -1)
			return filepath.Join(dir, "link")
		}, want: "is a symbolic link of user 54321"},
		"writable for another group": {root: true, make: func(t *testing.T, dir string) string {
			give(t, dir, -1, stranger)
			mode(t, dir, 0o770)
			return dir
		}, want: "has mode 0770"},
		"in one writable for another group": {root: true, make: func(t *testing.T, dir string) string {
			mkdir(t, filepath.Join(dir, "a"))
			give(t, dir, -1, stranger)
			mode(t, dir, 0o770)
			return filepath.Join(dir, "a")
		}, want: "has mode 0770"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.root && os.Geteuid() != 0 {
				t.Skip("only root can make files of other users")
			}
			dir := t.TempDir()
			mode(t, dir, 0o700)
			t.Cleanup(func() { os.Chmod(dir, 0o700) })
			err := Dir(c.make(t, dir))
			switch {
			case c.want == "" && err != nil:
				t.Errorf("got %v, want none", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want one with %q", err, c.want)
			case strings.Contains(c.want, "user") && !errors.Is(err, ErrUnsafe):
				t.Errorf("%v is not %v", err, ErrUnsafe)
			}
		})
	}
}

func TestAbove(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	mode(t, file, 0o666)
	if err := Above(file); err != nil {
		t.Errorf("a file in a directory of one's own: %v", err)
	}
	mode(t, dir, 0o777)
	if err := Above(file); !errors.Is(err, ErrUnsafe) {
		t.Errorf("a file in a directory that everybody can write: %v", err)
	}
}

func TestFile(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(at("file"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	mkdir(t, at("open"))
	link(t, at("file"), at("open/link"))
	link(t, "file", at("link"))
	mode(t, at("open"), 0o777)
	for name, safe := range map[string]bool{"file": true, "link": true, "open/link": false, "missing": true, "file/below": true} {
		if err := File(at(name)); errors.Is(err, ErrUnsafe) == safe {
			t.Errorf("%s: %v", name, err)
		}
	}
	mode(t, at("file"), 0o777)
	if err := File(at("link")); !errors.Is(err, ErrUnsafe) || !strings.Contains(err.Error(), at("file")) {
		t.Errorf("a link to a file that everybody can write: %v", err)
	}
}

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, m os.FileMode) {
		t.Helper()
		if err := os.WriteFile(at(name), []byte("12345"), 0o600); err != nil {
			t.Fatal(err)
		}
		mode(t, at(name), m)
	}
	write("own", 0o644)
	write("open", 0o646)
	link(t, "own", at("link"))
	if err := syscall.Mkfifo(at("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := ReadFile(at("own"), 5); err != nil || string(b) != "12345" {
		t.Errorf("got %q, %v", b, err)
	}
	bad := []string{"open", "link", "pipe", "missing"}
	if os.Geteuid() == 0 {
		write("foreign", 0o600)
		give(t, at("foreign"), stranger, -1)
		bad = append(bad, "foreign")
	}
	for _, name := range bad {
		if b, err := ReadFile(at(name), 5); err == nil {
			t.Errorf("%s: got %q", name, b)
		}
	}
	if _, err := ReadFile(at("own"), 4); err == nil {
		t.Error("a file of 5 bytes is read with a limit of 4")
	}
}
