package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// exchanging exchanges a file for a link once something has been written.
type exchanging struct {
	bytes.Buffer
	exchange func() error
}

func (e *exchanging) Write(p []byte) (int, error) {
	if f := e.exchange; f != nil {
		e.exchange = nil
		if err := f(); err != nil {
			return 0, err
		}
	}
	return e.Buffer.Write(p)
}

// A directory that is copied into a box may be a volume, in which another box exchanges a
// file for a link after its header was written.
func TestPack_ExchangedFile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs symbolic links")
	}
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("do not read"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"absolute": secret, "relative": "../secret"} {
		source := filepath.Join(dir, name)
		if err := os.Mkdir(source, 0o700); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(source, "file")
		if err := os.WriteFile(file, []byte("honest text"), 0o600); err != nil {
			t.Fatal(err)
		}
		out := &exchanging{exchange: func() error {
			if err := os.Remove(file); err != nil {
				return err
			}
			return os.Symlink(to, file)
		}}
		root, err := os.OpenRoot(source)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		err = pack(out, root)
		if err == nil || bytes.Contains(out.Bytes(), []byte("do not read")) {
			t.Errorf("%s link: the archive has the file outside: %v", name, err)
		}
	}
}
