//go:build linux && (amd64 || arm64)

package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// checkWatch fails if the runtime of a process watches too often.
func checkWatch(t *testing.T, pid int) {
	t.Helper()
	dir, err := os.Open(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	threads, err := dir.Readdirnames(2)
	if err != nil || len(threads) < 2 {
		t.Fatalf("threads of process %d: %v, %v", pid, threads, err)
	}
	slack, err := os.ReadFile(fmt.Sprintf("/proc/%s/timerslack_ns", threads[1]))
	if got := strings.TrimSpace(string(slack)); err != nil || got != strconv.Itoa(sysmonSlack) {
		t.Errorf("thread %s of process %d: its timers may be late by %s ns (%v), want %d", threads[1], pid, got, err, sysmonSlack)
	}
}

// TestStart_RuntimeStaysSmall fails if a sentry adds processors to those that it uses, if
// its table of descriptors grows, or if its runtime's monitor runs too often.
func TestStart_RuntimeStaysSmall(t *testing.T) {
	dir := t.TempDir()
	e, err := Open(t.Context(), Config{StateDir: t.TempDir(), DebugDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	spec := newSpec(t)
	b := create(t, e, "guest", spec)
	b.ask(t, "echo up")
	image := snapshotOf(t, e, b)
	c := restore(t, e, "copy", spec, image)
	c.ask(t, "echo up")
	if sysmonErr != nil { // this process may not look at its own threads
		t.Errorf("the server watches too often: %v", sysmonErr)
	}
	for _, b := range []*box{b, c} {
		pid := b.Guest.(*guest).sentry.Process.Pid
		checkWatch(t, pid)
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		if m := regexp.MustCompile(`FDSize:\s+(\d+)`).FindSubmatch(status); m == nil {
			t.Error("the size of the table of descriptors is not known")
		} else if n, err := strconv.Atoi(string(m[1])); err != nil || n < wideTable {
			t.Errorf("table of descriptors: got room for %s, want %d", m[1], wideTable)
		}
	}
	logs, err := filepath.Glob(filepath.Join(dir, "*.boot.txt"))
	if err != nil || len(logs) != 2 {
		t.Fatalf("logs of the sentries: %v, %v", logs, err)
	}
	set := regexp.MustCompile(`Setting GOMAXPROCS to (-?\d+)`)
	refused := regexp.MustCompile(`gomaxprocs.Add\(\d+\) would cause`)
	found := false
	for _, log := range logs {
		b, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		found = found || refused.Match(b)
		for _, m := range set.FindAllSubmatch(b, -1) {
			if n, err := strconv.Atoi(string(m[1])); err != nil || n > runtime.NumCPU() {
				t.Errorf("a sentry sets GOMAXPROCS to %s", m[1])
			}
		}
	}
	if !found {
		t.Error("no sentry has tried to raise GOMAXPROCS: gVisor does so no more, and holdProcs has no use")
	}
}
