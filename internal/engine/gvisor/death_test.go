//go:build linux && (amd64 || arm64)

package gvisor

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// serverEnv makes this test be a server that is killed.
const serverEnv = "GLOVEBOX_TEST_SERVER"

// TestServerHelper is the server of TestGuestsDieWithTheServer.
func TestServerHelper(t *testing.T) {
	if os.Getenv(serverEnv) == "" {
		t.Skip("run by another test")
	}
	e := open(t)
	for i := range 2 {
		create(t, e, fmt.Sprintf("orphan-%d", i), newSpec(t))
	}
	fmt.Println("server", os.Getpid(), "guests", strings.Trim(fmt.Sprint(descendants(os.Getpid())), "[]"))
	time.Sleep(time.Minute)
}

func TestGuestsDieWithTheServer(t *testing.T) {
	for _, victim := range []string{"inner", "outer"} {
		t.Run(victim, func(t *testing.T) {
			path, err := agent()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(selfExe, "-test.run=^TestServerHelper$", "-test.v")
			cmd.Env = append(os.Environ(), serverEnv+"=1", "GLOVEBOX_TEST_AGENT="+path)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stderr = os.Stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var pids []int
			for lines := bufio.NewScanner(out); pids == nil && lines.Scan(); {
				if _, rest, ok := strings.Cut(lines.Text(), "server "); ok {
					for _, s := range strings.Fields(rest) {
						if pid, err := strconv.Atoi(s); err == nil {
							pids = append(pids, pid)
						}
					}
				}
			}
			if len(pids) < 5 {
				cmd.Process.Kill()
				t.Fatalf("server and guests have the processes %v", pids)
			}
			// pids are those of the innermost process and below; the outer one is ours.
			if victim == "inner" {
				unix.Kill(pids[0], unix.SIGKILL)
			} else {
				cmd.Process.Kill()
			}
			cmd.Wait()
			left := pids
			for start := time.Now(); len(left) > 0 && time.Since(start) < 5*time.Second; time.Sleep(10 * time.Millisecond) {
				var running []int
				for _, pid := range left {
					// A zombie is waited for by whoever adopts orphans here.
					if alive(strconv.Itoa(pid)) {
						running = append(running, pid)
					}
				}
				left = running
			}
			if len(left) > 0 {
				t.Errorf("processes %v of %v outlive the server", left, pids)
			}
			open(t) // the next instance removes the cgroups of the killed one
			groups, err := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/*/%s%d-*", groupPrefix, pids[0]))
			if err != nil || len(groups) > 0 {
				t.Errorf("cgroups %v outlive the server; %v", groups, err)
			}
		})
	}
}
