//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/bench/report"
)

// real is the result of a run, as it was written.
const real = "report/testdata/real.json"

// runCommand runs the program and returns what it prints.
func runCommand(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, log bytes.Buffer
	err = command(t.Context(), args, &out, &log)
	return out.String(), log.String(), err
}

func TestRun_InvalidFlags(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"unknown flag":       {[]string{"-fast"}, "not defined"},
		"argument":           {[]string{"warm"}, `unexpected argument "warm"`},
		"no such scenario":   {[]string{"-only", "tepid"}, "matches no scenario"},
		"no expression":      {[]string{"-only", "("}, "-only"},
		"no such binary":     {[]string{"-binary", "nowhere/glovebox"}, "nowhere/glovebox"},
		"tolerance":          {[]string{"-compare", "-tolerance", "-1"}, "-tolerance"},
		"no result to store": {[]string{"-store", "-out", "nowhere.json"}, "nowhere.json"},
	} {
		t.Run(name, func(t *testing.T) {
			if out, _, err := runCommand(t, append(tc.args, "-dir", t.TempDir())...); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v gave %q and error %v, want one with %q", tc.args, out, err, tc.want)
			}
		})
	}
}

func TestList(t *testing.T) {
	out, _, err := runCommand(t, "-list")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range scenarios {
		if !strings.Contains(out, s.name) || s.about == "" || s.limit <= 0 || s.run == nil {
			t.Errorf("scenario %q is not listed or not complete", s.name)
		}
	}
}

// TestRun_StoreAndCompare goes the way of make bench-store and make bench-compare.
func TestRun_StoreAndCompare(t *testing.T) {
	dir := t.TempDir()
	result := filepath.Join(dir, "result.json")
	here := filepath.Join(dir, "bench")
	write := func(change func(*report.Result)) {
		t.Helper()
		r, err := report.Read(real)
		if err != nil {
			t.Fatal(err)
		}
		change(&r)
		if err := r.Write(result); err != nil {
			t.Fatal(err)
		}
	}
	flags := []string{"-bench", here, "-out", result}
	store, compare := append([]string{"-store"}, flags...), append([]string{"-compare"}, flags...)

	write(func(*report.Result) {})
	if _, _, err := runCommand(t, compare...); err == nil || !strings.Contains(err.Error(), "no baseline") {
		t.Errorf("compare without a baseline: %v", err)
	}
	write(func(r *report.Result) { r.Quick = true })
	if _, _, err := runCommand(t, store...); err == nil || !strings.Contains(err.Error(), "quick") {
		t.Errorf("store of a quick result: %v", err)
	}
	// A baseline that all would regress from, and one that is the same, which replaces it.
	for _, by := range []float64{0.01, 1} {
		write(func(r *report.Result) {
			r.At = r.At.Add(time.Duration(by * float64(time.Hour)))
			for i := range r.Figures {
				if !r.Figures[i].More {
					r.Figures[i].Ratio *= by
				}
			}
		})
		if out, _, err := runCommand(t, store...); err != nil || !strings.HasPrefix(out, here) {
			t.Fatalf("store: %q, %v", out, err)
		}
		if stored, err := filepath.Glob(filepath.Join(here, "results", "*.json")); err != nil || len(stored) != 1 {
			t.Fatalf("stored: %q, %v, want one", stored, err)
		}
	}
	write(func(*report.Result) {})
	if out, _, err := runCommand(t, compare...); err != nil {
		t.Errorf("compare of equal results: %v\n%s", err, out)
	}
	write(func(r *report.Result) {
		for i := range r.Figures {
			if r.Figures[i].ID == "warm.post" {
				r.Figures[i].Ratio *= 1.5
			}
		}
	})
	out, _, err := runCommand(t, compare...)
	if err == nil || !strings.Contains(err.Error(), "1 of our figures got worse") || !strings.Contains(out, "WORSE") {
		t.Errorf("compare of a slower result: %v\n%s", err, out)
	}
	if out, _, err := runCommand(t, append(compare, "-tolerance", "0.6")...); err != nil {
		t.Errorf("compare with a large tolerance: %v\n%s", err, out)
	}
	write(func(r *report.Result) { r.Figures = nil; r.Scenarios = nil })
	if out, _, err := runCommand(t, compare...); err == nil || !strings.Contains(err.Error(), "no ratio in common") {
		t.Errorf("compare with nothing in common: %v\n%s", err, out)
	}
}

// TestPeer_CannotRun: the row of a peer that cannot run gives the reason, and it is not
// started again.
func TestPeer_CannotRun(t *testing.T) {
	asked := 0
	broken := &peer{id: "peer.x", name: "x", once: func(context.Context) (float64, error) {
		asked++
		return 0, errors.New("no such thing")
	}}
	works := &peer{id: "peer.y", name: "y", once: func(context.Context) (float64, error) { return 2, nil }}
	beside := alternately(t.Context(), broken, works)
	for range 3 {
		beside.take(t.Context())
	}
	if asked != 1 {
		t.Errorf("a peer that cannot run was started %d times", asked)
	}
	ours := report.Measured("ours", "ours", "ms", 1)
	if f := ours.Against(beside.of(broken)); f.Ratio != 0 || !strings.Contains(f.Note, "no such thing") {
		t.Errorf("beside a peer that cannot run: %+v", f)
	}
	if f := ours.Against(beside.of(works)); f.Ratio != 0.5 || f.PeerP50 != 2 {
		t.Errorf("beside a peer that runs: %+v", f)
	}
	if f := beside.of(works); f.N != 3 {
		t.Errorf("a peer was sampled %d times, want 3 beside ours", f.N)
	}
}

func TestPrograms(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	for name, tc := range map[string]struct {
		argv []string
		want string // in the error; none for success
	}{
		"works":        {[]string{"sh", "-c", "echo 1"}, ""},
		"wrong output": {[]string{"sh", "-c", "echo 2"}, `it printed "2", want "1"`},
		"fails":        {[]string{"sh", "-c", "echo why >&2; exit 3"}, "exit status 3: why"},
		"is not there": {[]string{"no-such-program"}, "not found"},
	} {
		took, err := timed(ctx, "1", nil, tc.argv...)
		switch {
		case tc.want == "" && (err != nil || took <= 0):
			t.Errorf("%s: %v ms, %v", name, took, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s: error %v, want one with %q", name, err, tc.want)
		}
	}

	d, err := converse(ctx, "sh", "-c", `while read verb rest; do echo "$rest"; [ "$verb" != last ] || exit 4; done`)
	if err != nil {
		t.Fatal(err)
	}
	if x, err := d.ask("run 1.5"); err != nil || x != 1.5 {
		t.Errorf("ask gave %v, %v", x, err)
	}
	if _, err := d.ask("run what"); err == nil {
		t.Error("an answer that is no number is taken")
	}
	if _, err := d.ask("last 2"); err != nil {
		t.Error(err)
	}
	if _, err := d.ask("run 3"); err == nil || !strings.Contains(err.Error(), "it ended") {
		t.Errorf("ask of a program that ended: %v", err)
	}

	// The end of the run ends programs and what they started.
	begun := time.Now()
	time.AfterFunc(200*time.Millisecond, cancel)
	if _, err := timed(ctx, "1", nil, "sh", "-c", "sleep 50; true"); err == nil || time.Since(begun) > stopDelay {
		t.Errorf("a cancelled program ended with %v after %v", err, time.Since(begun))
	}
}

func TestStorm(t *testing.T) {
	call := func(context.Context) (float64, error) { time.Sleep(time.Millisecond); return 1, nil }
	rate, took, err := storm(t.Context(), []caller{call, call, call}, 50*time.Millisecond)
	if err != nil || rate <= 0 || len(took) < 3 {
		t.Errorf("three callers: %v calls/s, %d calls, %v", rate, len(took), err)
	}
	broken := func(context.Context) (float64, error) { return 0, errors.New("no such thing") }
	if _, _, err := storm(t.Context(), []caller{call, broken}, 50*time.Millisecond); err == nil {
		t.Error("a caller that fails goes unnoticed")
	}
}

// TestRun_RealBinary runs the cheapest scenario with the built binary: from the flags
// to the table and the JSON, and nothing is left behind.
func TestRun_RealBinary(t *testing.T) {
	binary, err := filepath.Abs("../bin/glovebox")
	if err != nil {
		t.Fatal(err)
	}
	if path := os.Getenv("GLOVEBOX_BINARY"); path != "" {
		binary = path
	}
	if _, err := os.Stat(binary); err != nil {
		t.Skipf("no binary to measure: make build makes one: %v", err)
	}
	if testing.Short() {
		t.Skip("boots a server; not in short runs")
	}
	dir := t.TempDir()
	out := filepath.Join(dir, "result.json")
	table, log, err := runCommand(t, "-quick", "-only", "^start$", "-binary", binary, "-dir", dir, "-out", out, "-bench", ".")
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	r, err := report.Read(out)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Quick || r.Only != "^start$" || len(r.Scenarios) != 1 || r.Storable() == nil {
		t.Errorf("the result does not say what was run: %+v", r)
	}
	if r.Versions["glovebox"] == "" || r.Machine.CPUs < 1 || r.Machine.Kernel == "" {
		t.Errorf("the result does not say of what and where: %v, %+v", r.Versions, r.Machine)
	}
	for _, id := range []string{"start.first", "start.again", "start.size"} {
		found := false
		for _, f := range r.Figures {
			if f.ID == id {
				found = f.N > 0 && f.P50 > 0 && f.Missing == "" && strings.Contains(table, f.Name)
			}
		}
		if !found {
			t.Errorf("no figure %s in the result or the table:\n%s", id, table)
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, "run-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestRun_Interrupted ends a run in the middle: no result is written, no server left.
func TestRun_Interrupted(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a server; not in short runs")
	}
	binary, err := filepath.Abs("../bin/glovebox")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(binary); err != nil {
		t.Skipf("no binary to measure: make build makes one: %v", err)
	}
	dir := t.TempDir()
	out := filepath.Join(dir, "result.json")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stdout bytes.Buffer
	// Ends it as soon as the scenario begins.
	log := writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil })
	err = command(ctx, []string{"-quick", "-only", "^start$", "-binary", binary, "-dir", dir, "-out", out, "-bench", "."}, &stdout, log)
	if err == nil || !strings.Contains(err.Error(), "nothing is written") {
		t.Errorf("an interrupted run ended with %v", err)
	}
	left, globErr := filepath.Glob(filepath.Join(dir, "*"))
	if globErr != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, globErr)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
