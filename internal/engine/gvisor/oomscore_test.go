//go:build linux && (amd64 || arm64)

package gvisor

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

func oomScore(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestOOMScore_GuestsBeforeServer: when the host's memory runs out, its kernel chooses
// any process of a guest before the server.
func TestOOMScore_GuestsBeforeServer(t *testing.T) {
	e := open(t)
	server := oomScore(t, os.Getpid())
	if server >= maxOOMScore {
		t.Skipf("this process has an oom_score_adj of %d, and guests cannot have more", server)
	}
	for name, spec := range map[string]func() *guest{
		"without volumes": func() *guest { return create(t, e, "plain", newSpec(t)).Guest.(*guest) },
		"with a gofer":    func() *guest { return create(t, e, "gofer", withVolume(t, newSpec(t))).Guest.(*guest) },
	} {
		g := spec()
		var roots []int
		for _, cmd := range g.processes() {
			roots = append(roots, cmd.Process.Pid)
		}
		pids := descendants(roots...)
		if len(pids) < len(roots)+2 {
			t.Fatalf("%s: only %d processes found", name, len(pids))
		}
		for _, pid := range pids {
			if got := oomScore(t, pid); got <= server {
				comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
				t.Errorf("%s: oom_score_adj of process %d (%s): got %d, want more than the server's %d", name, pid, strings.TrimSpace(string(comm)), got, server)
			}
		}
	}
}
