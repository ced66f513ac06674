//go:build !unix

package child

import (
	"os"
	"os/exec"
	"strconv"
)

func ownGroup(*exec.Cmd) {}

// terminate ends the program and what it has started; there is no gentle way.
func terminate(p *os.Process) {
	_ = exec.Command("taskkill", "/T", "/F", "/PID", strconv.Itoa(p.Pid)).Run()
}

func killGroup(p *os.Process) { _ = p.Kill() } // gone is good
