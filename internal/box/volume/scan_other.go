//go:build !linux

package volume

import (
	"context"
	"errors"
	"time"
)

// scan does not exist: boxes need Linux.
type scan struct {
	bytes int64
	took  time.Duration
}

func newScan(string, int64, limits) (*scan, error) {
	return nil, errors.Join(errUnfinished, errors.ErrUnsupported)
}

func (*scan) run(context.Context, time.Duration) (bool, error) { return true, errors.ErrUnsupported }
func (*scan) close()                                           {}
func (*scan) weight() int                                      { return 0 }
