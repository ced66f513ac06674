//go:build linux && (amd64 || arm64) && !cgo

package chaos

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/engine/gvisor"
	"github.com/glovebox-dev/glovebox/internal/proctest"
)

var (
	seedFlag  = flag.Uint64("seed", 1, "derives the operations and faults of TestChaos")
	opsFlag   = flag.Int("ops", 0, "number of operations of TestChaos; 0: it is skipped")
	selfFlag  = flag.Bool("self", false, "run TestInvariants_CanFail")
	roundFlag = flag.Int("round", 2000, "operations between two checks for leaks")
)

// missing is the reason why there can be no guests here.
var missing error

func TestMain(m *testing.M) {
	gvisor.Main()
	missing = gvisor.Enter()
	os.Exit(proctest.Main(m))
}

// stateDir returns a directory on a file system of its own, which a fault can fill without
// filling the machine's.
func stateDir(t testing.TB) string {
	t.Helper()
	if missing != nil {
		t.Skip("guests cannot be isolated here:", missing)
	}
	dir, err := os.MkdirTemp("", "chaos-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	// In the mount namespace of this process.
	if err := unix.Mount("chaos", dir, "tmpfs", 0, fmt.Sprintf("mode=0700,size=%dm", diskMB)); err != nil {
		t.Fatalf("mount tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("leak: unmount the state directory: %v", err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	for _, sub := range []string{"volume", "scratch"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestChaos runs operations with faults, and fails when an invariant does not hold.
func TestChaos(t *testing.T) {
	if *opsFlag == 0 {
		t.Skip("run by make chaos")
	}
	dir := stateDir(t)
	r := newRun(t, config{seed: *seedFlag, ops: *opsFlag, round: *roundFlag, every: faultEvery, dir: dir, most: maxViolations, patience: settleTime, out: os.Stderr})
	r.agent = agentFile(t, dir)
	r.all()
	r.report(os.Stderr)
	for _, v := range r.violations {
		t.Error(v)
	}
	switch {
	case t.Failed():
	case int(r.next.Load()) < r.ops:
		t.Errorf("%d of %d operations were performed", r.next.Load(), r.ops)
	case sum(r.struck) < r.ops/100:
		t.Errorf("%d faults struck in %d operations", sum(r.struck), r.ops)
	case r.controls.Load() == 0:
		t.Error("the control owner made no calls")
	}
}

// report writes what happened.
func (r *run) report(w io.Writer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(w, "\nchaos: seed %d, %d operations in %v as uid %d, %d faults, %d calls of the control owner, %d violations\n",
		r.seed, r.next.Load(), time.Since(r.began).Round(time.Second), os.Getuid(), sum(r.struck), r.controls.Load(), len(r.violations))
	for _, table := range []struct {
		title string
		rows  map[string]int
	}{{"operations", r.done}, {"faults", r.struck}, {"errors by code", r.refused}, {"reported losses by reason", r.reported}, {"violations", r.kinds}} {
		var cells []string
		for _, name := range slices.Sorted(maps.Keys(table.rows)) {
			cells = append(cells, fmt.Sprintf("%s %d", name, table.rows[name]))
		}
		fmt.Fprintf(w, "  %s: %s\n", table.title, strings.Join(cells, ", "))
	}
}

// TestInvariants_CanFail breaks something for each invariant, and wants the violation.
func TestInvariants_CanFail(t *testing.T) {
	if !*selfFlag {
		t.Skip("run with -self; takes minutes")
	}
	for name, c := range map[string]struct {
		broken broken
		ops    int
		want   string // kind of violation
	}{
		"lost boxes are not reported":     {broken{silent: true}, 2000, "lost"},
		"variables vanish":                {broken{forgetful: true}, 200, "lost"},
		"a call hangs":                    {broken{hangs: true, grace: 6 * time.Second}, 60, "hang"},
		"faults strike the control owner": {broken{harms: true}, 2000, "neighbor"},
		"losses without a fault":          {broken{kills: true}, 200, "unexplained"},
		"guests are not destroyed":        {broken{immortal: true}, 40, "leak"},
		"goroutines are left":             {broken{atBoot: func() { go func() { select {} }() }}, 20, "leak"},
		"descriptors are left":            {broken{atBoot: leakFile}, 20, "leak"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := stateDir(t)
			r := newRun(t, config{seed: 7, ops: c.ops, round: c.ops, every: 4, dir: dir, most: 1, patience: 3 * time.Second, broken: c.broken, out: io.Discard})
			r.agent = agentFile(t, dir)
			r.all()
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.kinds[c.want] == 0 {
				t.Errorf("got the violations %v, want %q", r.kinds, c.want)
			}
		})
	}
	closeLeaks()
}

var leaks struct {
	sync.Mutex
	files []*os.File
}

func leakFile() {
	f, err := os.Open("/dev/null")
	if err == nil {
		leaks.Lock()
		leaks.files = append(leaks.files, f)
		leaks.Unlock()
	}
}

func closeLeaks() {
	for _, f := range leaks.files {
		f.Close()
	}
}
