//go:build linux && (amd64 || arm64)

package template

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// builderEnv makes of the test's program a builder: a lab's directory.
const builderEnv = "GLOVEBOX_TEST_BUILDER"

// builder builds the template that all builders build, and prints its progress
// and when it was made.
func builder() int {
	dir := os.Getenv(builderEnv)
	l, err := newLab(dir, filepath.Join(dir, "agent"))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer l.close()
	t, err := l.store.Build(context.Background(), contested(), func(line string) { fmt.Println(line) })
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("made", t.Key, t.Made.Format(time.RFC3339Nano))
	return 0
}

func contested() Spec {
	w := python()
	w.Name = "contested"
	return w
}

func builderCommand(tb testing.TB) *exec.Cmd {
	tb.Helper()
	exe, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), builderEnv+"="+open(tb).dir)
	return cmd
}

// TestBuild_ConcurrentCallsShareOneBuilder builds one template from goroutines of two processes:
// it is built once.
func TestBuild_ConcurrentCallsShareOneBuilder(t *testing.T) {
	s := open(t).store
	cmd := builderCommand(t)
	var theirs []byte
	var wg sync.WaitGroup
	wg.Go(func() {
		var err error
		if theirs, err = cmd.CombinedOutput(); err != nil {
			t.Errorf("builder: %v: %s", err, theirs)
		}
	})
	var all [3]progress
	var made [3]Template
	for i := range made {
		wg.Go(func() {
			var err error
			if made[i], err = s.Build(t.Context(), contested(), all[i].tell); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	defer s.Remove(made[0].Key)
	booted := strings.Count(string(theirs), "booting")
	seen := 0
	for i := range made {
		seen += strings.Count(all[i].String(), "booting")
		if !made[i].Made.Equal(made[0].Made) {
			t.Errorf("%+v is not %+v", made[i], made[0])
		}
	}
	if booted == 0 && seen == 0 || booted > 0 && seen > 0 {
		t.Errorf("here %d saw a boot, there %d:\n%s\n%s", seen, booted, &all[0], theirs)
	}
	if want := fmt.Sprintf("made %s %s\n", made[0].Key, made[0].Made.Format(time.RFC3339Nano)); !strings.HasSuffix(string(theirs), want) {
		t.Errorf("got %s, want %s", theirs, want)
	}
}

// TestBuild_AfterKilledBuilder kills a builder at every step: its files are not a
// template and are removed.
func TestBuild_AfterKilledBuilder(t *testing.T) {
	l := open(t)
	for _, step := range []string{"booting", "writing", "verifying"} {
		cmd := builderCommand(t)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		reached := false
		for lines := bufio.NewScanner(out); !reached && lines.Scan(); {
			reached = strings.Contains(lines.Text(), step)
		}
		cmd.Process.Kill()
		cmd.Wait()
		if !reached {
			t.Fatalf("%s was not reached", step)
		}
		names := strings.Join(ls(t, l.store.cfg.Dir), " ")
		if !strings.Contains(names, newPrefix) || !strings.Contains(names, lockPrefix) {
			t.Errorf("%s: it left only %q", step, names)
		}
		if _, ok := l.store.Find(contested()); ok {
			t.Errorf("%s: an unfinished build counts as a template", step)
		}
		if step == "writing" {
			continue // the next builder has to do with what is there
		}
		// Its processes may take a moment to end.
		eventually(t, "what it left after "+step+" is removed", func() bool {
			again, err := Open(l.store.cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			return !slices.ContainsFunc(ls(t, l.store.cfg.Dir), func(name string) bool { return !isKey(name) })
		})
	}
}
