// Package regular opens files that others may have put in place.
package regular

import (
	"fmt"
	"os"
	"syscall"
)

// Open opens a regular file for reading. It does not block: opening a named pipe would, until
// somebody writes to it. An error for another kind of file names the path.
func Open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a regular file", path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
