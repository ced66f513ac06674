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
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/engine/gvisor"
	"github.com/glovebox-dev/glovebox/internal/proctest"
)

var (
	seedFlag  = flag.Uint64("seed", 1, "derives the operations and faults of TestChaos")
	opsFlag   = flag.Int("ops", 2000, "most operations of TestChaos")
	forFlag   = flag.Duration("for", 45*time.Second, "no operation of TestChaos begins later; 0: no limit")
	roundFlag = flag.Int("round", 2000, "operations between two checks for leaks")
)

// missing is the reason why there can be no guests here.
var missing error

func TestMain(m *testing.M) {
	gvisor.Main()
	missing = gvisor.Enter(false)
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

// TestChaos runs operations with faults, and fails when an invariant does not hold. How many
// operations it performs within its time depends on the machine.
func TestChaos(t *testing.T) {
	length := *forFlag
	if testing.Short() {
		length = min(length, 10*time.Second)
	}
	dir := stateDir(t)
	r := newRun(t, config{seed: *seedFlag, ops: *opsFlag, round: *roundFlag, every: faultEvery, dir: dir, length: length, most: maxViolations, patience: settleTime, out: os.Stderr})
	r.agent = agentFile(t, dir)
	r.began = time.Now()
	r.all()
	r.report(os.Stderr)
	for _, v := range r.violations {
		t.Error(v)
	}
	performed := int(r.ended.Load())
	switch {
	case t.Failed():
	case length == 0 && performed < r.ops:
		t.Errorf("%d of %d operations were performed", performed, r.ops)
	case performed == 0:
		t.Error("no operations were performed")
	case performed >= 1000 && sum(r.struck) < performed/100: // of 1 in faultEvery, many meet nothing to strike
		t.Errorf("%d faults struck in %d operations", sum(r.struck), performed)
	case r.controls.Load() == 0:
		t.Error("the control owner made no calls")
	}
}

// report writes what happened.
func (r *run) report(w io.Writer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(w, "\nchaos: seed %d, %d operations in %v as uid %d, %d faults, %d calls of the control owner, %d violations\n",
		r.seed, r.ended.Load(), time.Since(r.began).Round(time.Second), os.Getuid(), sum(r.struck), r.controls.Load(), len(r.violations))
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
