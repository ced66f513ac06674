package mcpjson

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Updated says what Update did to a file.
type Updated struct {
	Changed bool   // false if the file said all of it already
	Backup  string // where the file as it was is kept; empty if there was none
	Losses  []Loss
}

// Update merges cfg into the file at path as Merge does, and writes it so that
// no reader ever sees half of it. What was there is kept beside it under a name
// with the time in it. The file may be new, its directory must exist; it is
// written with its mode, or 0600. A file that changes meanwhile is left alone,
// as is one that is a symbolic link: the caller names the file itself.
func Update(path string, cfg *Config, d Dialect) (Updated, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return Updated{}, fmt.Errorf("make the path %q absolute: %w", path, err)
	}
	root, err := os.OpenRoot(filepath.Dir(abs))
	if err != nil {
		return Updated{}, fmt.Errorf("change %s: %w", path, cause(err))
	}
	defer root.Close()
	u, err := updateBelow(root, filepath.Base(abs), cfg, d, time.Now())
	if err != nil {
		return Updated{}, fmt.Errorf("change %s: %w", path, cause(err))
	}
	if u.Backup != "" {
		u.Backup = filepath.Join(filepath.Dir(path), u.Backup)
	}
	return u, nil
}

func updateBelow(root *os.Root, name string, cfg *Config, d Dialect, now time.Time) (u Updated, err error) {
	mode := fs.FileMode(0o600)
	old, info, err := readBelow(root, name, maxFile)
	switch {
	case err == nil:
		mode = info.Mode().Perm()
	case !errors.Is(err, fs.ErrNotExist):
		return u, err
	}
	data, losses, err := Merge(old, cfg, d)
	if err != nil {
		return u, err
	}
	u.Losses = losses
	if info != nil && bytes.Equal(old, data) {
		return u, nil
	}
	if info != nil {
		u.Backup = name + "." + now.UTC().Format("20060102-150405.000") + ".bak"
		if err := writeNew(root, u.Backup, old, mode); err != nil {
			return Updated{}, fmt.Errorf("keep what was there: %w", err)
		}
	}
	temporary := "." + name + "." + rand.Text()[:8] + ".tmp"
	if err := writeNew(root, temporary, data, mode); err != nil {
		return Updated{}, err
	}
	if err := unchanged(root, name, old, info); err != nil {
		return Updated{}, errors.Join(err, root.Remove(temporary))
	}
	if err := root.Rename(temporary, name); err != nil {
		return Updated{}, errors.Join(err, root.Remove(temporary))
	}
	u.Changed = true
	return u, nil
}

// unchanged says whether a file is still what was read.
func unchanged(root *os.Root, name string, old []byte, info os.FileInfo) error {
	now, _, err := readBelow(root, name, maxFile)
	if info == nil && errors.Is(err, fs.ErrNotExist) || info != nil && err == nil && bytes.Equal(now, old) {
		return nil
	}
	return errors.New("somebody else has changed it meanwhile; try again")
}

// writeNew writes a file that must not be there yet, down to the disk.
func writeNew(root *os.Root, name string, data []byte, mode fs.FileMode) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	// The mode that the process was started with may have taken bits away.
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err != nil {
		return errors.Join(err, root.Remove(name))
	}
	return nil
}
