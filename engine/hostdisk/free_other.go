//go:build !linux

package hostdisk

import (
	"errors"
	"os"
)

// Free returns errors.ErrUnsupported: no engine writes to a disk of this host here.
func Free(*os.File) (int64, error) { return 0, errors.ErrUnsupported }
