//go:build linux

package proctest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// grace is how long processes may take to end after the last test: much longer
// than a killed process takes on a busy machine.
const grace = 3 * time.Second

// Main runs the tests of m and returns the exit code for TestMain. It is a failure
// if a process that a test started, however indirectly, is still alive afterwards:
// Main names it on standard error and kills it.
func Main(m *testing.M) int {
	if err := adoptOrphans(); err != nil {
		fmt.Fprintln(os.Stderr, "proctest:", err)
		return 1
	}
	code := m.Run()
	left := descendants()
	for end := time.Now().Add(grace); len(left) > 0 && time.Now().Before(end); left = descendants() {
		time.Sleep(10 * time.Millisecond)
	}
	for _, p := range left {
		fmt.Fprintf(os.Stderr, "proctest: leak: process %d (%s) outlives the tests: %s\n", p.pid, p.state, p.command())
		code = max(code, 1)
	}
	killAll()
	return code
}

// WaitUnused waits until no process that the tests started names dir in its arguments or
// its environment, and fails the test if one still does after patience. Tests that run
// under Main call it before they remove a directory that such processes write to.
func WaitUnused(t testing.TB, dir string, patience time.Duration) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		var users []process
		for _, p := range descendants() {
			if p.names(dir) {
				users = append(users, p)
			}
		}
		if len(users) == 0 {
			return
		}
		if time.Now().After(end) {
			for _, p := range users {
				t.Errorf("leak: process %d (%s) uses %s %v after the end of the test: %s", p.pid, p.state, dir, patience, p.command())
			}
			return
		}
	}
}

// Contain runs this program again with the environment that it has and env, waits
// for it and returns its exit code. Every process that it leaves is killed, also if
// SIGTERM ends Contain early.
func Contain(env ...string) int {
	if err := adoptOrphans(); err != nil {
		fmt.Fprintln(os.Stderr, "proctest:", err)
		return 1
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "proctest:", err)
		return 1
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	var err error
	select {
	case err = <-done:
	case <-ended:
		cmd.Process.Kill()
		err = <-done
	}
	killAll()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return exit.ExitCode()
	}
	return 1
}

// adoptOrphans makes this process the parent of its descendants whose parents end.
func adoptOrphans() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the parent of orphans: %w", err)
	}
	return nil
}

// killAll kills every descendant and returns when none is alive.
func killAll() {
	for end := time.Now().Add(grace); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		left := descendants()
		if len(left) == 0 {
			return
		}
		for _, p := range left {
			unix.Kill(p.pid, unix.SIGKILL)
		}
	}
}

// process is a process as /proc tells it.
type process struct {
	pid, parent int
	state       string
}

// command returns the command line.
func (p process) command() string {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " "))
}

// names reports whether the arguments or the environment of the process contain text.
// The environment of some processes of other users cannot be read; it does not count.
func (p process) names(text string) bool {
	for _, file := range []string{"cmdline", "environ"} {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.pid, file)); err == nil && bytes.Contains(b, []byte(text)) {
			return true
		}
	}
	return false
}

// descendants lists the living processes below this one.
func descendants() []process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]process{}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // it has ended
		}
		// The name, in parentheses, may hold anything.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		parent, _ := strconv.Atoi(fields[1])
		children[parent] = append(children[parent], process{pid, parent, fields[0]})
	}
	var list []process
	for todo := []int{os.Getpid()}; len(todo) > 0; todo = todo[1:] {
		for _, p := range children[todo[0]] {
			if p.state != "Z" && p.state != "X" {
				list = append(list, p)
			}
			todo = append(todo, p.pid)
		}
	}
	return list
}
