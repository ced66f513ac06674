//go:build !linux

package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Boxes run on Linux only. Elsewhere the package compiles and Open fails.

var errPlatform = fmt.Errorf("hold records: %w", errors.ErrUnsupported)

type stamp struct{}

func tryLock(*os.File, int64, bool) (bool, error) { return false, errPlatform }
func unlock(*os.File, int64, int64) error         { return errPlatform }
func locked(*os.File, int64) (bool, error)        { return false, errPlatform }
func stampOf(fs.FileInfo) stamp                   { return stamp{} }
func checkOwner(fs.FileInfo) error                { return errPlatform }
func exchange(*os.Root, string, string) error     { return errPlatform }
