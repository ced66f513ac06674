//go:build linux && (amd64 || arm64)

package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

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

// mountScratch mounts memory at dir, in this process's own mount namespace, so
// that nothing of it outlives the process. Only what is in use takes memory, and
// at most half of the host's.
func mountScratch(dir string) error {
	if err := unix.Mount("glovebox", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return fmt.Errorf("mount memory at %q: %w", dir, err)
	}
	return nil
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
