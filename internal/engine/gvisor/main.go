//go:build linux && (amd64 || arm64)

package gvisor

import (
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
)

// The names by which the executable is started in another part than its own.
const (
	sentryName = "runsc-sandbox"
	goferName  = "runsc-gofer"
	selfExe    = "/proc/self/exe"
)

// Main runs the part of gVisor that argv[0] names and does not return then. It
// returns at once in every other process. Call it first in main and in TestMain.
func Main() {
	if !isPart(os.Args) {
		return
	}
	if name := filepath.Base(os.Args[0]); name == sentryName || name == goferName {
		awaitPlace()
		setOOMScore()
	}
	closeForeign()
	if filepath.Base(os.Args[0]) == sentryName {
		// A gofer does what needs power over files.
		sentrycmd.DirectfsSandboxLinuxCaps = &specs.LinuxCapabilities{}
		addFilter()
		holdProcs()
		boundMappings()
		_ = slackenSysmon() // without it, the sentry is slower
		startScavenger()
		log.SetLevel(log.Warning) // a debug log has all the same
	}
	cli.Run(nil, map[util.SubCommand]string{
		new(sentrycmd.Boot):   "",
		new(sentrycmd.Umount): "",
		new(cmd.Gofer):        "",
	}, nil)
	os.Exit(1) // not reached: cli.Run exits
}

// isPart reports whether args is the command line of a part of gVisor. The
// helper that unmounts /proc for the sentry is started by gVisor under the path
// of the executable.
func isPart(args []string) bool {
	if len(args) == 0 {
		return false
	}
	switch filepath.Base(args[0]) {
	case sentryName, goferName:
		return true
	}
	return args[0] == selfExe && len(args) > 1 && args[1] == "umount"
}
