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

// Updated describes what Update did to a file.
type Updated struct {
	Changed bool   // false if the file had this content already
	Backup  string // copy of the previous file; empty if there was none
	Losses  []Loss
}

// Update merges cfg into the file at path like Merge, and replaces the file atomically.
// It keeps a copy of the previous file beside it, with the time in its name. The file
// may be new, but its directory must exist. It keeps its mode; a new file gets 0600.
// Update fails if the file changes in the meantime or is a symbolic link: name the file
// itself.
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
			return Updated{}, fmt.Errorf("copy the previous file: %w", err)
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

// unchanged returns an error if a file is not what was read before.
func unchanged(root *os.Root, name string, old []byte, info os.FileInfo) error {
	now, _, err := readBelow(root, name, maxFile)
	if info == nil && errors.Is(err, fs.ErrNotExist) || info != nil && err == nil && bytes.Equal(now, old) {
		return nil
	}
	return errors.New("another process has changed it in the meantime; try again")
}

// writeNew creates a file, which must not exist, and syncs it to disk.
func writeNew(root *os.Root, name string, data []byte, mode fs.FileMode) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	// The umask may have removed bits.
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err != nil {
		return errors.Join(err, root.Remove(name))
	}
	return nil
}
