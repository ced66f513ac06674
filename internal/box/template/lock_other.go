//go:build !unix

package template

import "os"

type lockKind int

const (
	shared lockKind = iota
	exclusive
)

// tryLock locks nothing: no engine here has snapshots.
func tryLock(*os.File, lockKind) (bool, error) { return true, nil }
