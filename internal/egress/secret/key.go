package secret

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/glovebox-dev/glovebox/internal/owned"
)

// keySize is the length of a master key in bytes.
const keySize = 32

// LoadKey returns the master key in the directory dir of the state directory. All
// servers of a state directory share it: the first one creates dir and the key. Only
// this user and root can read it. Errors: owned.ErrUnsafe, those of the file system,
// and one for a file that is not a key.
func LoadKey(dir string) ([]byte, error) {
	key, err := loadKey(dir)
	if err != nil {
		return nil, fmt.Errorf("load the master key of secrets: %w", err)
	}
	return key, nil
}

func loadKey(dir string) ([]byte, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := owned.Dir(dir); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "key")
	key, err := owned.ReadFile(path, keySize)
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeKey(dir, path); err == nil {
			key, err = owned.ReadFile(path, keySize)
		}
	}
	switch {
	case err != nil:
		return nil, err
	case len(key) != keySize:
		return nil, fmt.Errorf("%s has %d bytes, want %d: delete it to have a new key made; boxes then get new placeholders and certificates", path, len(key), keySize)
	}
	return key, nil
}

// makeKey makes the file, unless another process was faster. It appears complete or not
// at all.
func makeKey(dir, path string) (err error) {
	f, err := os.CreateTemp(dir, "key-*.tmp") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	key := make([]byte, keySize)
	rand.Read(key) // never fails
	_, err = f.Write(key)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
