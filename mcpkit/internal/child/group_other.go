//go:build !unix

package child

import (
	"os"
	"os/exec"
	"strconv"
)

func ownSession(*exec.Cmd) {}

// terminate ends the program and its descendants at once: there is no signal for it.
func terminate(p *os.Process) {
	_ = exec.Command("taskkill", "/T", "/F", "/PID", strconv.Itoa(p.Pid)).Run()
}

func killGroup(p *os.Process) { _ = p.Kill() } // fails if the process has exited
