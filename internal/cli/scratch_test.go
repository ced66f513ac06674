//go:build linux && (amd64 || arm64)

package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestScratch_LargeFork forks a context that is too large for the memory that copies may
// take.
func TestScratch_LargeFork(t *testing.T) {
	state := t.TempDir()
	s := startServer(t, state, plain...)
	b := boxes{t, s.connect()}

	var mounts string // of the server, which has a mount namespace of its own
	children, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range children {
		pids, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for pid := range strings.FieldsSeq(string(pids)) {
			info, err := os.ReadFile("/proc/" + pid + "/mountinfo")
			if err != nil {
				t.Fatal(err)
			}
			mounts += string(info)
		}
	}
	m := regexp.MustCompile(regexp.QuoteMeta(state) + `/scratch\S* .* tmpfs \S+ \S*size=(\d+)k`).FindStringSubmatch(mounts)
	if m == nil {
		t.Fatalf("no tmpfs of limited size below %s/scratch in\n%s", state, mounts)
	}
	if kib, err := strconv.ParseInt(m[1], 10, 64); err != nil || kib<<10 > maxScratch {
		t.Errorf("the tmpfs for copies has %s KiB, want at most %d", m[1], maxScratch>>10)
	}

	id := b.context("large", "python")
	b.run(id, "x = b'x' * (300 << 20)")
	fork := b.must("fork_context", args{"context_id": id, "name": "copy"})["context_id"].(string)
	b.want(b.run, fork, "print(len(x) >> 20, x[-1:])", "300 b'x'")
	b.want(b.run, id, "print(len(x) >> 20)", "300")

	left, err := filepath.Glob(filepath.Join(state, "scratch", "disk-*", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left on disk after the fork: %v, %v", left, err)
	}
}

// TestScratch_Sweep: what a killed process has left on disk is removed, what a running
// one uses is not.
func TestScratch_Sweep(t *testing.T) {
	parent := t.TempDir()
	used, left := filepath.Join(parent, "disk-used"), filepath.Join(parent, "disk-left")
	for _, dir := range []string{used, left} {
		if err := os.MkdirAll(filepath.Join(dir, "fork-1", "memory"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	lock, err := lockScratch(used)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	sweepUnlocked(parent, "disk-*")
	if _, err := os.Stat(used); err != nil {
		t.Errorf("the directory of a running process: %v", err)
	}
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("the directory of a process that is gone is there: %v", err)
	}
}
