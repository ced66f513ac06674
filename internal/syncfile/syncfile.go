// Package syncfile writes files that survive a crash of the host.
package syncfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Create writes a new file with the mode 0600 and syncs it to the disk. The file must not
// exist; after another error there is none. Its name is durable after Dir.
func Create(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// Replace writes a file with these permissions in place of the one with its name, if any, and
// syncs its content to the disk. Readers see the old content or the new one: after an error, the
// old one. The directory must exist. Its name is durable after Dir.
func Replace(path string, content []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Dir syncs the entries of a directory to the disk.
func Dir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
