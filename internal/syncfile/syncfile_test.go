package syncfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestCreate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := errors.Join(Create(path, []byte("content")), Dir(dir)); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "content" {
		t.Errorf("read: %q, %v", b, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("stat: %v, %v, want mode 0600", info, err)
	}
	if err := Create(path, nil); !errors.Is(err, fs.ErrExist) {
		t.Errorf("create it again: got %v, want ErrExist", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "content" {
		t.Errorf("read after a refusal: %q, %v", b, err)
	}
}

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, c := range []struct {
		content string
		mode    fs.FileMode
	}{{"old", 0o600}, {"new", 0o640}} {
		if err := Replace(path, []byte(c.content), c.mode); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		info, statErr := os.Stat(path)
		if err = errors.Join(err, statErr); err != nil || string(b) != c.content || info.Mode() != c.mode {
			t.Errorf("replace by %q: got %q with mode %v, %v, want mode %v", c.content, b, info.Mode(), err, c.mode)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Replace(filepath.Join(dir, "full"), []byte("x"), 0o600); err == nil {
		t.Error("replaced a directory by a file")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("the directory has %v, %v, want the file and the directory only", entries, err)
	}
}
