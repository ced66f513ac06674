//go:build linux && (amd64 || arm64)

package gvisor

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/urpc"
)

func TestExhausted_ReadsTextOfOtherProcessesOnly(t *testing.T) {
	const text = "no space left on device"
	for name, c := range map[string]struct {
		err    error
		report string
		want   bool
	}{
		"errno":                     {fmt.Errorf("write: %w", &os.PathError{Op: "write", Path: "x", Err: unix.ENOSPC}), "", true},
		"another errno":             {fmt.Errorf("write: %w", unix.EPERM), "", false},
		"text of this process":      {fmt.Errorf("open %q: %w", text, unix.ENOENT), "", false},
		"text of the sentry":        {fmt.Errorf("save: %w", urpc.RemoteError{Message: "write: " + text}), "", true},
		"other text of the sentry":  {fmt.Errorf("save: %w", urpc.RemoteError{Message: "it is broken"}), "", false},
		"last words of a process":   {errors.New("it ended"), "fork/exec: " + unix.EAGAIN.Error(), true},
		"other words of a process":  {errors.New("it ended"), "panic", false},
		"last words and other errs": {unix.EMFILE, "panic", true},
	} {
		if got := exhausted(c.err, c.report); got != c.want {
			t.Errorf("%s: got %t, want %t", name, got, c.want)
		}
	}
}
