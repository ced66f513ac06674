package partlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// files returns the content of all files below a directory.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		all[filepath.ToSlash(rel)] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func write(t *testing.T, l *Log, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if _, err := l.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLog_Rotates(t *testing.T) {
	dir := t.TempDir()
	l, err := Open(dir, "logs/x.log", 6, 3)
	if err != nil {
		t.Fatal(err)
	}
	write(t, l, "one\n", "a\n", "two\n", "larger than a part\n")
	if diff := cmp.Diff(map[string]string{
		"logs/x.segment-0001.log": "one\na\n", "logs/x.segment-0002.log": "two\n", "logs/x.log": "larger than a part\n",
	}, files(t, dir)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Write([]byte("late")); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("after close: %v", err)
	}
	for path, want := range map[string]fs.FileMode{"logs": fs.ModeDir | 0o700, "logs/x.log": 0o600, "logs/x.segment-0001.log": 0o600} {
		if info, err := os.Stat(filepath.Join(dir, path)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", path, info.Mode(), err, want)
		}
	}
	// It continues where it was, and leaves other files alone.
	for _, name := range []string{"x.segment-7.log", "x.segment-0009.txt", "y.segment-0009.log", "x.segment-0x10.log"} {
		if err := os.WriteFile(filepath.Join(dir, "logs", name), []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if l, err = Open(dir, "logs/x.log", 6, 3); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	write(t, l, "three\n", "four\n")
	if diff := cmp.Diff(map[string]string{
		"logs/x.segment-0003.log": "larger than a part\n", "logs/x.segment-0004.log": "three\n", "logs/x.log": "four\n",
		"logs/x.segment-7.log": "mine", "logs/x.segment-0009.txt": "mine", "logs/y.segment-0009.log": "mine", "logs/x.segment-0x10.log": "mine",
	}, files(t, dir)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestLog_KeepsMaxParts(t *testing.T) {
	for parts, want := range map[int]int{0: 10, 1: 1, 4: 4} {
		dir := t.TempDir()
		l, err := Open(dir, "x", 1, parts)
		if err != nil {
			t.Fatal(err)
		}
		write(t, l, strings.Split("0123456789", "")...)
		l.Close()
		got := files(t, dir)
		if len(got) != want || got["x"] != "9" {
			t.Errorf("max. %d: %v, want %d", parts, got, want)
		}
	}
}

// Parts are found among more files than one batch of directory entries.
func TestLog_DirectoryWithManyFiles(t *testing.T) {
	dir := t.TempDir()
	for i := range 3 * readdirBatch {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("other-", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l, err := Open(dir, "x.log", 1, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	write(t, l, "1", "2", "3", "4", "5")
	got := make(map[string]string)
	for name, text := range files(t, dir) {
		if !strings.HasPrefix(name, "other-") {
			got[name] = text
		}
	}
	if diff := cmp.Diff(map[string]string{"x.segment-0003.log": "3", "x.segment-0004.log": "4", "x.log": "5"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// Paths that lead out of the root are refused, also if a link appears later.
func TestLog_RefusesLinks(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	for name, target := range map[string]string{"link": elsewhere, "here": ".", "x.log": filepath.Join(elsewhere, "x.log"), "dead.log": filepath.Join(elsewhere, "dead")} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"link/x.log", "here/y.log", "x.log", "dead.log", "../x.log", "a/../../x.log", "", ".", "link"} {
		if l, err := Open(dir, name, 1, 1); err == nil {
			l.Close()
			t.Errorf("%q: no error", name)
		}
	}
	l, err := Open(dir, "a/b.log", 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	write(t, l, "1")
	if err := errors.Join(os.RemoveAll(filepath.Join(dir, "a")), os.Symlink(elsewhere, filepath.Join(dir, "a"))); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Write([]byte("2")); err == nil {
		t.Error("a directory that became a link: no error")
	}
	if got := files(t, elsewhere); len(got) != 0 {
		t.Errorf("files were written outside: %v", got)
	}
}

func TestOpen_AbsolutePath(t *testing.T) {
	dir := t.TempDir()
	l, err := Open("/nowhere", filepath.Join(dir, "x.log"), 10, 1)
	if err != nil {
		t.Fatal(err)
	}
	write(t, l, "x")
	l.Close()
	if got := files(t, dir); got["x.log"] != "x" {
		t.Error(got)
	}
}

// Two logs with the same name lose nothing when they rotate concurrently.
func TestLog_TwoWithTheSameName(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for who := range 2 {
		l, err := Open(dir, "x.log", 100, 0)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for i := range 200 {
				if _, err := fmt.Fprintf(l, "%d:%03d\n", who, i); err != nil {
					t.Error(err)
				}
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	var all string
	for _, text := range files(t, dir) {
		all += text
	}
	for who := range 2 {
		for i := range 200 {
			if line := fmt.Sprintf("%d:%03d\n", who, i); strings.Count(all, line) != 1 {
				t.Fatalf("%q occurs %d times", line, strings.Count(all, line))
			}
		}
	}
}
