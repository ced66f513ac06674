//go:build linux

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/attack"
)

// attackLimit bounds the attacks: several times what they take on two busy processors.
const attackLimit = 30 * time.Minute

// aloneClasses judge how quickly the machine answers under load and how much memory it
// has left. Other tests would disturb them: scripts/attack runs them alone.
var aloneClasses = []string{"kernel-memory", "storm"}

// connectionClasses attack a server through its connections to clients, other servers and
// hosts. Their outcome depends on no right of the user who runs it.
var connectionClasses = []string{"codemode", "egress", "gateway", "http", "mcp-client", "secrets"}

// boxClasses attack from a box, or what a server keeps of boxes. Their outcome depends on no
// right of the user who runs the server that an ordinary user lacks.
var boxClasses = []string{"agent", "files", "images", "narrowing", "snapshot", "state"}

// escapeClasses attack the host from a box. A root server has the most to lose.
var escapeClasses = []string{"escape"}

// TestAttack runs the classes that are about this machine against the engine of this
// program. Their outcome depends on the user of the test.
func TestAttack(t *testing.T) {
	runAttacks(t, func(class string) bool {
		return !slices.Contains(slices.Concat(aloneClasses, connectionClasses, boxClasses, escapeClasses), class)
	})
}

// TestAttack_InBoxes runs boxClasses. scripts/test runs it as an ordinary user only.
func TestAttack_InBoxes(t *testing.T) {
	runAttacks(t, func(class string) bool { return slices.Contains(boxClasses, class) })
}

// TestAttack_Escapes runs escapeClasses. scripts/test runs it as root only.
func TestAttack_Escapes(t *testing.T) {
	runAttacks(t, func(class string) bool { return slices.Contains(escapeClasses, class) })
}

// TestAttack_OverConnections runs connectionClasses. scripts/test runs it as root only.
func TestAttack_OverConnections(t *testing.T) {
	runAttacks(t, func(class string) bool { return slices.Contains(connectionClasses, class) })
}

// runAttacks runs the attacks of classes in a process of their own and checks the report.
func runAttacks(t *testing.T, runs func(class string) bool) {
	if testing.Short() {
		t.Skip("takes minutes")
	}
	// Tests of other packages run at the same time. make attack has the machine for itself.
	args := []string{"glovebox", "attack", "--json", "--answer", attack.MaxAnswer.String(), "--state-dir", t.TempDir()}
	want := 0
	for _, a := range attack.All() {
		if runs(a.Class) {
			want++
			if only := "--only=" + a.Class; !slices.Contains(args, only) {
				args = append(args, only)
			}
		}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	cmd := exec.Cmd{
		Path: exe, Args: args,
		Stdout: &out, Stderr: &errs, SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(attackLimit, func() { cmd.Process.Signal(syscall.SIGINT) })
	defer late.Stop()
	err = cmd.Wait()
	var report attack.Report
	if jerr := json.Unmarshal(out.Bytes(), &report); jerr != nil {
		t.Fatalf("%v; %v; standard error:\n%s", err, jerr, errs.String())
	}
	// A test for each attack: scripts/test lists those that every user skips.
	for _, r := range report.Results {
		t.Run(r.ID, func(t *testing.T) {
			switch r.Outcome {
			case attack.Skipped:
				t.Skip(r.Why)
			case attack.Broken, attack.Failed:
				t.Errorf("%s: %s %s", r.Outcome, r.Why, strings.Join(r.Broken, "; "))
			}
		})
	}
	for _, left := range report.Left {
		t.Errorf("leak: left behind: %s", left)
	}
	if err != nil || !report.OK {
		t.Errorf("%v; ok is %t; standard error:\n%s", err, report.OK, errs.String())
	}
	if n := len(report.Results); n != want {
		t.Errorf("%d attacks have a result, want %d", n, want)
	}
	t.Logf("as %s: %v in %.0f s", report.User, report.Counts, report.Seconds)
}

// TestAttackProgress: a run says how far it is every few attacks, and a short one after each.
func TestAttackProgress(t *testing.T) {
	for _, c := range []struct {
		total, lines int
		first        string
	}{
		{1, 0, ""},
		{3, 2, "glovebox: 1 of 3 attacks done, the last was class/0\n"},
		{21, 10, "glovebox: 2 of 21 attacks done, the last was class/1\n"},
		{329, 19, "glovebox: 17 of 329 attacks done, the last was class/16\n"},
	} {
		var out strings.Builder
		progress := (&app{Streams: Streams{Err: &out}}).attackProgress(c.total)
		for i := range c.total {
			progress(attack.Result{ID: fmt.Sprintf("class/%d", i), Outcome: attack.Held})
		}
		if got := out.String(); strings.Count(got, "\n") != c.lines || !strings.HasPrefix(got, c.first) {
			t.Errorf("%d attacks: got %q, want %d lines, the first of them %q", c.total, got, c.lines, c.first)
		}
	}
	var out strings.Builder
	progress := (&app{Streams: Streams{Err: &out}}).attackProgress(100)
	progress(attack.Result{ID: "class/name", Outcome: attack.Broken})
	if got, want := out.String(), "glovebox: broken: class/name\n"; got != want {
		t.Errorf("an attack that was not held: got %q, want %q", got, want)
	}
}

// TestAttackDir_SweepsKilledRuns: a run removes the directories that killed runs have left, and
// none of a run in progress.
func TestAttackDir_SweepsKilledRuns(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	killed, lock, err := attackDir()
	if err != nil {
		t.Fatal(err)
	}
	lock.Close() // as the kernel does
	running, lock, err := attackDir()
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	next, lock, err := attackDir()
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	for dir, there := range map[string]bool{killed: false, running: true, next: true} {
		if _, err := os.Stat(dir); (err == nil) != there {
			t.Errorf("%s: %v, want it there: %t", dir, err, there)
		}
	}
}
