//go:build unix

package child

import (
	"os"
	"os/exec"
	"syscall"
)

// ownGroup has a program start in a process group of its own, so that it can be
// ended with all that it starts, and so that Ctrl-C in a terminal is ours to handle.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// terminate asks the program alone: it may need its children to save what it has.
// What is left of them when it has ended is killed.
func terminate(p *os.Process) { _ = p.Signal(syscall.SIGTERM) } // gone is good

func killGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) } // none left is good
