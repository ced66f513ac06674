//go:build linux

package box

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/crc32c"
)

// A pipe or a link in place of a stored file neither blocks nor leads elsewhere.
func TestOpenHome_PipesAndLinks(t *testing.T) {
	pipe := func(path string) error { return unix.Mkfifo(path, 0o600) }
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	link := func(path string) error { return os.Symlink(elsewhere, path) }
	for name, c := range map[string]struct {
		file    string
		replace func(path string) error
	}{
		"pipe for the archive": {homeTar, pipe}, "pipe for its description": {homeIndex, pipe},
		"link for the archive": {homeTar, link}, "link for its description": {homeIndex, link},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			content := []byte("archive")
			sum := crc32c.New()
			sum.Write(content)
			if err := errors.Join(os.WriteFile(filepath.Join(dir, homeTar), content, 0o600), writeHomeInfo(dir, &homeInfo{Format: homeFormat, Bytes: int64(len(content)), Sum: crc32c.Text(sum)})); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, c.file)
			b, err := os.ReadFile(path)
			if err := errors.Join(err, os.WriteFile(elsewhere, b, 0o600), os.Remove(path), c.replace(path)); err != nil {
				t.Fatal(err)
			}
			opened := make(chan error, 1)
			go func() {
				_, f, err := openHome(dir)
				if err == nil {
					f.Close()
				}
				opened <- err
			}()
			select {
			case err := <-opened:
				if err == nil {
					t.Error("it was opened")
				}
			case <-time.After(10 * time.Second):
				t.Error("it blocks")
			}
		})
	}
}
