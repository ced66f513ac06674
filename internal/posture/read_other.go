//go:build !linux

package posture

import "errors"

// Read fails: this system has no such processes.
func Read(Process) (Facts, error) { return Facts{}, errors.ErrUnsupported }
