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
