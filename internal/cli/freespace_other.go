//go:build !linux

package cli

import "errors"

// freeSpace is unknown: no engine writes to a disk of this host here.
func freeSpace(string) (int64, error) { return 0, errors.ErrUnsupported }
