//go:build unix

package child

import (
	"os"
	"os/exec"
	"syscall"
)

// ownSession starts a program in its own session and process group. The whole group can
// be killed, and Ctrl-C in a terminal does not reach it. It has no controlling terminal:
// with one, it could write prompts to /dev/tty that look like those of this program.
func ownSession(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// terminate signals only the program, which may need its children to save state. The
// rest of the group is killed when it has exited.
func terminate(p *os.Process) { _ = p.Signal(syscall.SIGTERM) } // fails if the process has exited

func killGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) } // fails if the group is empty
