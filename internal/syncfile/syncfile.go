// Package syncfile writes files that survive a crash of the host.
package syncfile

import (
	"errors"
	"os"
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

// Dir syncs the entries of a directory to the disk.
func Dir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
