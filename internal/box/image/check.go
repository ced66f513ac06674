package image

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/owned"
)

// checkSkeleton returns an error unless dir is a directory that only this user and root
// can have made.
func checkSkeleton(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return &fs.PathError{Op: "open", Path: dir, Err: fs.ErrInvalid}
	}
	return owned.Info(dir, info)
}

// checkTree returns an error unless a tree that was read from the state directory shows
// of the host only what an image may show.
func checkTree(tree *engine.Tree, stateDir string) error {
	state, err := filepath.EvalSymlinks(stateDir)
	if err != nil {
		return err
	}
	dir, err := filepath.EvalSymlinks(tree.Dir)
	if err != nil {
		return err
	}
	if filepath.Dir(dir) == filepath.Join(state, "images") {
		err = checkSkeleton(tree.Dir)
	} else {
		err = checkShown(dir, state)
	}
	if err != nil {
		return err
	}
	for _, m := range tree.Binds {
		if err := checkShown(m.Host, state); err != nil {
			return err
		}
	}
	return nil
}

// checkShown returns an error if a path of the host must not be shown in guests: it holds
// more than programs, or leads to the kernel's files or to this program's state.
func checkShown(host, state string) error {
	real, err := filepath.EvalSymlinks(host)
	if err != nil {
		return err
	}
	if slices.Contains(shown, host) || isWithin(real, "/usr") {
		return nil
	}
	for _, dir := range systemDirs {
		if real == dir {
			return nil
		}
	}
	for _, private := range []string{"/proc", "/sys", "/dev", "/run", "/etc", "/root/.ssh", state} {
		if isWithin(real, private) {
			return fmt.Errorf("%q is within %q", host, private)
		}
	}
	if isWithin(state, real) {
		return fmt.Errorf("%q contains the state directory", host)
	}
	_, err = neededFor(real)
	return err
}
