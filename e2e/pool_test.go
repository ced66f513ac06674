package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// line returns the index of the first log line from start on that contains all words, or
// -1.
func (p *process) line(from int, words ...string) int {
	for i, line := range strings.Split(p.text(), "\n") {
		if i >= from && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			return i
		}
	}
	return -1
}

// awaitLine waits for such a line.
func (p *process) awaitLine(t *testing.T, from int, words ...string) int {
	t.Helper()
	until(t, fmt.Sprintf("the log has a line with %q", words), func() bool { return p.line(from, words...) >= 0 })
	return p.line(from, words...)
}

// residue prints traces of earlier boxes and a random number, and leaves traces for later
// boxes.
const residue = `
import os, random, subprocess
seen = [n for n in ("mark",) if n in globals()] + [v for v in os.environ if v == "MARK"]
paths = [os.path.expanduser(p) for p in ("/tmp/mark", "~/mark", "/dev/shm/mark")]
seen += [p for p in paths if os.path.exists(p)]
for pid in os.listdir("/proc"):
    if pid.isdigit() and "86399" in open(f"/proc/{pid}/cmdline").read():
        seen.append("process")
print(seen, random.getrandbits(64))
mark = os.environ["MARK"] = "mark"
for p in paths:
    open(p, "w").write("mark")
subprocess.Popen(["sleep", "86399"], start_new_session=True)
del seen, paths, pid, p
`

// TestPool drives a server with a pool of 3 from start to end. It does not run in
// parallel, because other tests take memory that the pool may use.
func TestPool(t *testing.T) {
	p := launch(t, state(t), "GLOVEBOX_POOL_SIZE=3", "GLOVEBOX_LOG_LEVEL=debug")
	checked := p.awaitLine(t, 0, "health check passed")
	at := 0
	for _, words := range [][]string{
		{"level=INFO", "pool begins to fill", "interpreter=python", "size=3"},
		{"level=INFO", "pool instance is ready", "interpreter=python", "ready=1"},
		{"level=INFO", "pool instance is ready", "interpreter=python", "ready=2"},
		{"level=INFO", "pool instance is ready", "interpreter=python", "ready=3"},
		{"level=INFO", "pool is full", "interpreter=python"},
		{"level=INFO", "health check passed"},
	} {
		i := p.line(at, words...)
		if i < 0 || i > checked {
			t.Fatalf("the log has no line with %q where it should be", words)
		}
		at = i
	}

	first := p.call(t, "create_context", map[string]any{"name": "first"})
	if got := first.Meta["glovebox/source"]; got != "warm" {
		t.Fatalf("create_context: got source %q, want warm", got)
	}
	id := first.str("context_id")
	p.run(t, id, residue)
	again := p.run(t, id, residue)
	for _, w := range []string{"'mark'", "'MARK'", "/tmp/mark", "/home/user/mark", "/dev/shm/mark", "'process'"} {
		if !strings.Contains(again, w) {
			t.Errorf("a box does not see its own traces: got %q, want %s among them", again, w)
		}
	}
	p.awaitLine(t, checked+1, "pool instance is ready", "interpreter=python", "ready=3")

	// More at once than the pool has.
	const burst = 10
	var mu sync.Mutex
	sources, outputs := make(map[string]int), make(map[string]int)
	ids := []string{id}
	var wg sync.WaitGroup
	for i := range burst {
		wg.Go(func() {
			made, err := p.try("create_context", map[string]any{"name": fmt.Sprint("burst-", i)})
			if err != nil || made.IsError {
				t.Errorf("create %d of %d at once: %v, %+v", i, burst, err, made)
				return
			}
			ran, err := p.try("run_code", map[string]any{"context_id": made.str("context_id"), "code": residue})
			if err != nil || ran.IsError {
				t.Errorf("run in box %d of %d: %v, %+v", i, burst, err, ran)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			ids = append(ids, made.str("context_id"))
			sources[fmt.Sprint(made.Meta["glovebox/source"])]++
			outputs[ran.str("stdout")]++
		})
	}
	wg.Wait()
	if sources["warm"] == 0 || sources["cold"] == 0 || sources["warm"]+sources["cold"] != burst {
		t.Errorf("%d creates at once: got sources %v, want some warm and the others cold", burst, sources)
	}
	for _, id := range ids {
		p.call(t, "stop_context", map[string]any{"context_id": id})
	}
	// Boxes of the pool that were made while others lived, and later ones.
	for i := range 4 {
		outputs[p.run(t, p.create(t, fmt.Sprint("later-", i)), residue)+"\n"]++
	}
	for out, n := range outputs {
		if !strings.HasPrefix(out, "[] ") || n != 1 {
			t.Errorf("%d boxes print %q, want empty boxes with different random numbers", n, out)
		}
	}
	if i := p.line(0, "level=WARN", "pool instance"); i >= 0 {
		t.Errorf("the log warns: %s", strings.Split(p.text(), "\n")[i])
	}
	p.stop(t)
}

// TestPool_BrokenPython checks that a server that cannot start any box reports why and exits.
func TestPool_BrokenPython(t *testing.T) {
	t.Parallel()
	const words = "this Python is broken"
	for _, c := range []struct {
		name  string
		make  func(t *testing.T, dir string) string // returns GLOVEBOX_PYTHON
		wants []string
	}{
		{"everywhere", func(t *testing.T, dir string) string {
			file := filepath.Join(dir, "python3")
			if err := os.WriteFile(file, []byte("#!/bin/sh\necho "+words+" >&2\nexit 7\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			return file
		}, []string{words, "GLOVEBOX_PYTHON"}},
		{"in boxes", func(t *testing.T, dir string) string {
			venv := filepath.Join(dir, "venv")
			if out, err := exec.Command("/usr/bin/python3", "-m", "venv", "--without-pip", venv).CombinedOutput(); err != nil {
				t.Skipf("no virtual environment can be made: %v: %s", err, out)
			}
			sites, err := filepath.Glob(filepath.Join(venv, "lib", "python3*", "site-packages"))
			if err != nil || len(sites) != 1 {
				t.Fatalf("site-packages of the environment: %v, %v", sites, err)
			}
			// The host queries the interpreter in isolated mode.
			code := "import os, sys; sys.flags.isolated or (os.write(2, b'" + words + "\\n'), os._exit(7))\n"
			if err := os.WriteFile(filepath.Join(sites[0], "broken.pth"), []byte(code), 0o644); err != nil {
				t.Fatal(err)
			}
			return filepath.Join(venv, "bin", "python3")
		}, []string{"health check", "python", words}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			// The user of boxes needs a way to the interpreter.
			for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
				os.Chmod(d, 0o755) // some are not ours to change and need not be
			}
			state := filepath.Join(dir, "state")
			python := c.make(t, dir)
			if c.name == "in boxes" {
				// The other language works, so that the server is of use.
				p := launch(t, state, "GLOVEBOX_PYTHON="+python, "GLOVEBOX_POOL_SIZE=1", "GLOVEBOX_PRELOAD=none")
				p.awaitLine(t, 0, "level=WARN", "health check passed in part", words)
				id := p.call(t, "create_context", map[string]any{"name": "js", "language": "javascript"}).str("context_id")
				if got := p.run(t, id, "console.log(6 * 7)"); got != "42" {
					t.Errorf("JavaScript beside a broken Python: got %q", got)
				}
				p.stop(t)
			}
			// Without a way to Node, nothing works.
			p := begin(t, state, "GLOVEBOX_PYTHON="+python, "GLOVEBOX_POOL_SIZE=3", "GLOVEBOX_PRELOAD=none", "PATH="+t.TempDir())
			select {
			case <-p.done:
			case <-time.After(3 * time.Minute):
				t.Fatal("the server has not ended after three minutes")
			}
			p.cmd.Wait() // its error is the exit code
			if code := p.cmd.ProcessState.ExitCode(); code != 1 {
				t.Errorf("got exit code %d, want 1", code)
			}
			_, said, ok := strings.Cut(p.text(), "glovebox: error: ")
			if !ok {
				t.Fatal("the server does not say why it ends")
			}
			for _, w := range append(c.wants, "glovebox: hint: ") {
				if !strings.Contains(said, w) {
					t.Errorf("the error does not say %q", w)
				}
			}
			if left := instances(t, state); len(left) > 0 {
				t.Errorf("left in the state directory: %q", left)
			}
		})
	}
}

// TestKilledServer_IsCleanedUp checks that the next server removes everything that a
// killed one left, and nothing of a running one.
func TestKilledServer_IsCleanedUp(t *testing.T) {
	t.Parallel()
	dir := state(t)
	checked := 0 // the line after which the last one was healthy
	healthy := func() *process {
		p := launch(t, dir, "GLOVEBOX_POOL_SIZE=1", "GLOVEBOX_LOG_LEVEL=debug")
		checked = p.awaitLine(t, 0, "health check passed")
		return p
	}
	living := healthy()
	mine := instances(t, dir)
	victim := healthy()
	theirs := slices.DeleteFunc(instances(t, dir), func(name string) bool { return slices.Contains(mine, name) })
	if len(mine) != 1 || len(theirs) != 1 {
		t.Fatalf("instances of the servers: %q and %q, want one each", mine, theirs)
	}
	id := living.create(t, "box")
	living.run(t, id, "x = 6 * 7")
	victim.run(t, victim.create(t, "box"), "x = 1")
	// Otherwise the processes of the next box would be missing from the list below.
	victim.awaitLine(t, checked+1, "pool instance is ready", "interpreter=python")

	pids := descendants(victim.cmd.Process.Pid)
	if len(pids) < 4 {
		t.Fatalf("the server has the processes %v, want those of two boxes at least", pids)
	}
	victim.kill(t)
	until(t, fmt.Sprintf("none of the processes %v of the killed server is left", pids), func() bool { return !slices.ContainsFunc(pids, lives) })

	next := healthy()
	if got := instances(t, dir); len(got) != 2 || !slices.Contains(got, mine[0]) || slices.Contains(got, theirs[0]) {
		t.Errorf("instances: got %q, want %q, a new one, and %q no more", got, mine[0], theirs[0])
	}
	for _, where := range []string{dir, "/sys/fs/cgroup"} {
		if left := named(t, where, theirs[0]); len(left) > 0 {
			t.Errorf("left of the killed server: %q", left)
		}
	}
	for _, pid := range []string{"self", strconv.Itoa(next.cmd.Process.Pid), strconv.Itoa(living.cmd.Process.Pid)} {
		mounts, err := os.ReadFile(filepath.Join("/proc", pid, "mountinfo"))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(mounts), theirs[0]) {
			t.Errorf("mounts of the killed server are left, as process %s sees it", pid)
		}
	}
	if got := living.run(t, id, "print(x)"); got != "42" {
		t.Errorf("the context of the other server: got %q, want 42", got)
	}
	if got := next.run(t, next.create(t, "fresh"), "print(6*7)"); got != "42" {
		t.Errorf("a context of the next server: got %q, want 42", got)
	}
	living.stop(t)
	next.stop(t)
	if left := instances(t, dir); len(left) > 0 {
		t.Errorf("left after the servers have ended: %q", left)
	}
	if left := named(t, "/sys/fs/cgroup", mine[0]); len(left) > 0 {
		t.Errorf("left after the server has ended: %q", left)
	}
}

// instances lists the directories of single servers.
func instances(t *testing.T, state string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(state, "gvisor"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// named lists the files below dir with part in their name. It ignores files that cannot be
// read or vanish meanwhile.
func named(t *testing.T, dir, part string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.Contains(filepath.Base(path), part) {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// descendants lists a process and all its descendants.
func descendants(pid int) []int {
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		all = append(all, children(all[i])...)
	}
	return all
}

// lives reports whether a process runs. A zombie does not; its adoptive parent reaps it.
func lives(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(b), ") Z ")
}
