//go:build !linux

package enginetest

import "os"

// sameOwner is not implemented on this system.
func sameOwner(a, b os.FileInfo) bool { return true }
