//go:build unix

package child

import (
	"os"
	"os/exec"
	"syscall"
)

// ownGroup starts a program in its own process group, so that the whole group can be
// killed, and so that Ctrl-C in a terminal does not reach it.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// terminate signals only the program, which may need its children to save state. The
// rest of the group is killed when it has exited.
func terminate(p *os.Process) { _ = p.Signal(syscall.SIGTERM) } // fails if the process has exited

func killGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) } // fails if the group is empty
