//go:build linux && (amd64 || arm64)

package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/glovebox-dev/glovebox/internal/cli/engines"
	"github.com/glovebox-dev/glovebox/internal/guest/agent"
	"github.com/glovebox-dev/glovebox/internal/guest/embed"
	"github.com/glovebox-dev/glovebox/internal/guest/pod"
)

// Parts runs the helper process that argv[0] names, and does not return then. This
// executable is also the engine's helper processes and, in a build without an
// embedded agent, the agent and its helper. Call it first in main and in TestMain.
func Parts() {
	engines.Main()
	if len(os.Args) == 0 {
		return
	}
	switch filepath.Base(os.Args[0]) {
	case embed.Name:
		os.Exit(agent.Main())
	case pod.Name:
		os.Exit(pod.Main(os.Args[1:]))
	}
}

// finishTemplatesInBackground starts a process with the same settings that builds the
// templates which this server has not finished. Servers of clients that disconnect early
// would otherwise rebuild them every time. The process has a session of its own and
// inherits no descriptors of the client.
func finishTemplatesInBackground() error {
	cmd := &exec.Cmd{
		Path:        "/proc/self/exe",
		Args:        finisherArgs(os.Args),
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a process for them: %w", err)
	}
	return cmd.Process.Release()
}
