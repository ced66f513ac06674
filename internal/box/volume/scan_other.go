//go:build !linux

package volume

import (
	"context"
	"errors"
)

// measure fails: boxes need Linux.
func measure(context.Context, string, int64, limits) (int64, error) {
	return 0, errors.Join(errUnfinished, errors.ErrUnsupported)
}
