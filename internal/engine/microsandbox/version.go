//go:build linux

package microsandbox

// Version returns the generation of msb that this package drives.
func Version() string { return supported + "x" }
