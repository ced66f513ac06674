//go:build !unix

package stdio

import (
	"context"
	"io"
)

// unread cannot be known here.
func unread(context.Context, io.Writer) bool { return false }
