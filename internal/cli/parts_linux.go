//go:build linux && (amd64 || arm64)

package cli

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/glovebox-dev/glovebox/internal/engine/gvisor"
	"github.com/glovebox-dev/glovebox/internal/guest"
	"github.com/glovebox-dev/glovebox/internal/guestbin"
)

// Parts runs the part of the program that argv[0] names and does not return
// then: the processes of the isolation are this executable too and, in a build
// without an embedded agent, so is the agent. Call it first in main and in
// TestMain.
func Parts() {
	gvisor.Main()
	if len(os.Args) > 0 && filepath.Base(os.Args[0]) == guestbin.Name {
		os.Exit(guest.Main())
	}
}

// noNamespaces says why the namespaces that gVisor needs cannot be had and what
// to do about it, if that is what err is.
func noNamespaces(err error) (cause, fix string, ok bool) {
	var e *gvisor.NamespaceError
	if !errors.As(err, &e) {
		return "", "", false
	}
	return e.Cause.Error(), e.Fix, true
}
