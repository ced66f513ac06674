//go:build linux

package proctest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// roleEnv says what this program does when a test runs it again.
const roleEnv = "PROCTEST_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "contained":
		os.Exit(Contain(roleEnv + "=main"))
	case "main", "checked":
		os.Exit(Main(m))
	case "unchecked":
		os.Exit(Contain(roleEnv + "=free"))
	case "free":
		if err := adoptOrphans(); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// TestLeaves leaves an orphan of an orphan. The other tests run it.
func TestLeaves(t *testing.T) {
	if os.Getenv(roleEnv) == "" {
		t.Skip("run by the other tests")
	}
	out, err := exec.Command("sh", "-c", `setsid sh -c 'sleep 300 >/dev/null 2>&1 & echo $!' &`).Output()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("left %s\n", strings.TrimSpace(string(out)))
}

// TestUses leaves a process that uses a directory for half a second, or for longer than
// it waits for it.
func TestUses(t *testing.T) {
	if os.Getenv(roleEnv) == "" {
		t.Skip("run by the other tests")
	}
	dir := t.TempDir()
	cmd := exec.Command("sh", "-c", `setsid sh -c 'sleep "$SECONDS_OF_USE"; touch "$0"/late; exec true' "$0" >/dev/null 2>&1 &`, dir)
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	WaitUnused(t, dir, 5*time.Second)
	if _, err := os.Stat(dir + "/late"); err != nil && !t.Failed() {
		t.Error("the process still runs")
	}
}

func TestWaitUnused(t *testing.T) {
	for _, c := range []struct{ seconds, want string }{{"0.5", ""}, {"300", "leak: process"}} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestUses$")
		cmd.Env = append(os.Environ(), roleEnv+"=unchecked", "SECONDS_OF_USE="+c.seconds)
		out, err := cmd.CombinedOutput()
		if (err != nil) != (c.want != "") || !strings.Contains(string(out), c.want) {
			t.Errorf("a process of %s seconds: got %v, want %q\n%s", c.seconds, err, c.want, out)
		}
	}
}

// leave runs TestLeaves in a role and returns the process that it left.
func leave(t *testing.T, role string) (pid, out string, err error) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestLeaves$")
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	b, err := cmd.CombinedOutput()
	m := regexp.MustCompile(`left (\d+)`).FindSubmatch(b)
	if m == nil {
		t.Fatalf("%v:\n%s", err, b)
	}
	return string(m[1]), string(b), err
}

// gone fails unless the process has ended.
func gone(t *testing.T, pid string) {
	t.Helper()
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err == nil && !strings.Contains(string(stat), ") Z ") || err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("process %s is alive: %s, %v", pid, stat, err)
	}
}

func TestMain_FailsForLeftProcesses(t *testing.T) {
	pid, out, err := leave(t, "checked")
	if err == nil || !strings.Contains(out, "leak: process "+pid) || !strings.Contains(out, "sleep 300") {
		t.Errorf("got %v:\n%s", err, out)
	}
	gone(t, pid)
}

func TestContain_KillsLeftProcesses(t *testing.T) {
	pid, out, err := leave(t, "unchecked")
	if err != nil {
		t.Errorf("got %v:\n%s", err, out)
	}
	gone(t, pid)
	if _, out, err := leave(t, "contained"); err == nil {
		t.Errorf("the exit code of the contained program is lost:\n%s", out)
	}
}
