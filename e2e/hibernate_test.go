package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

func TestRestart_KeepsBoxes(t *testing.T) {
	t.Parallel()
	dir := state(t)
	p := launch(t, dir)
	python := p.create(t, "kept")
	p.run(t, python, "import threading, pandas as pd\nx = pd.DataFrame({'a': [1, 2]})\nf = open('notes.txt', 'w'); f.write('half'); n = 0")
	js := p.call(t, "create_context", map[string]any{"name": "js", "language": "javascript"}).str("context_id")
	p.run(t, js, "let state = new Map([['k', 41]])")
	session := p.call(t, "execute_code", map[string]any{"code": "y = 7", "session_id": "mine"})
	if session.str("session_id") != "mine" {
		t.Fatal(session.text())
	}
	stopped := p.create(t, "stopped")
	p.stop(t)

	p = launch(t, dir)
	for _, id := range []string{python, js, stopped} {
		if s := p.status(t, id); s != "hibernated" {
			t.Errorf("after the restart %s is listed as %q, want hibernated", id, s)
		}
	}
	p.call(t, "stop_context", map[string]any{"context_id": stopped})
	if s := p.status(t, stopped); s != "" {
		t.Errorf("a hibernated context that was stopped is listed as %q", s)
	}
	a := p.call(t, "run_code", map[string]any{"context_id": "kept", "code": "f.write(' done'); f.close(); print(x.a.sum(), open('notes.txt').read())"})
	if a.str("stdout") != "3 half done\n" || !strings.Contains(a.text(), "hibernated") {
		t.Errorf("woken by its name: got %s", a.text())
	}
	if got := p.run(t, js, "state.get('k') + 1"); got != "42" {
		t.Errorf("JavaScript: got %q", got)
	}
	if a := p.call(t, "execute_code", map[string]any{"code": "print(y)", "session_id": "mine"}); !strings.HasPrefix(a.text(), "7") {
		t.Errorf("session: got %s", a.text())
	}
	// And once more, with a box that was woken and not touched again.
	p.stop(t)
	p = launch(t, dir)
	if got := p.run(t, python, "print(x.a.max())"); got != "2" {
		t.Errorf("after the second restart: got %q", got)
	}
	p.stop(t)
}

func TestKilledServer_LosesUnwrittenState(t *testing.T) {
	t.Parallel()
	dir := state(t)
	p := launch(t, dir, "GLOVEBOX_PAUSE_AFTER=1")
	idle, fresh := p.create(t, "idle"), p.create(t, "fresh")
	p.run(t, idle, "import random; x = 1")
	until(t, "the idle box is paused", func() bool { return p.status(t, idle) == "paused" })
	first := p.run(t, idle, "x = 2; print(random.random())")
	p.run(t, fresh, "x = 1") // may have been written while the other one paused
	other := p.create(t, "never written")
	p.kill(t)

	p = launch(t, dir, "GLOVEBOX_PAUSE_AFTER=1", "MSB_ORPHAN_CLEANUP_INTERVAL=1")
	a := p.call(t, "run_code", map[string]any{"context_id": idle, "code": "print(x, random.random())"})
	got := strings.Fields(a.str("stdout"))
	if len(got) != 2 || got[0] != "1" || a.StructuredContent["state_lost"] != true || !strings.Contains(a.text(), "killed") {
		t.Errorf("after the kill: got %s, want x as it was written, and that the rest is lost", a.text())
	}
	if len(got) == 2 && got[1] == first {
		t.Errorf("two restores of one state gave the same random number %s", first)
	}
	gone, err := p.try("run_code", map[string]any{"context_id": other, "code": "1"})
	if err != nil || !gone.IsError || !strings.Contains(gone.text(), "killed before the box had been written") {
		t.Errorf("a box that was never written: got %v, %v", gone, err)
	}
	// Processes of the dead server may still have been ending when this one started.
	until(t, "the instance of the dead server is removed", func() bool {
		instances, err := os.ReadDir(filepath.Join(dir, "gvisor"))
		return err == nil && len(instances) == 1
	})
	p.stop(t)
	instances, err := os.ReadDir(filepath.Join(dir, "gvisor"))
	if err != nil || len(instances) > 0 {
		t.Errorf("instances of the engine after the stop: %v, %v", instances, err)
	}
}

// The disk has the latest state of a paused box: a kill of its server loses nothing, and
// the next answer does not say so. A box that continued has lost what it did.
func TestKilledServer_KeepsPausedBox(t *testing.T) {
	t.Parallel()
	dir := state(t)
	p := launch(t, dir, "GLOVEBOX_PAUSE_AFTER=1")
	id := p.create(t, "idle")
	p.run(t, id, "x = 1")
	// The record says so a moment after the status does.
	paused := func() bool {
		notes, _ := filepath.Glob(filepath.Join(dir, "snapshots", "records", "*", "still"))
		return len(notes) == 1 && p.status(t, id) == "paused"
	}
	for _, want := range []string{"1\n", "2\n"} { // the second time as a box that was woken
		until(t, "the box is paused", paused)
		p.kill(t)
		p = launch(t, dir, "GLOVEBOX_PAUSE_AFTER=1")
		a := p.call(t, "run_code", map[string]any{"context_id": id, "code": "print(x); x += 1"})
		if a.str("stdout") != want || a.StructuredContent["state_lost"] == true || !strings.Contains(a.text(), "its variables and files are kept") {
			t.Errorf("after the kill: got %s, want %q and nothing lost", a.text(), want)
		}
	}
	until(t, "the box is paused again", paused)
	p.run(t, id, "x = 7") // resumed, and not written yet
	p.kill(t)
	p = launch(t, dir)
	if a := p.call(t, "run_code", map[string]any{"context_id": id, "code": "print(x)"}); a.str("stdout") != "3\n" || a.StructuredContent["state_lost"] != true {
		t.Errorf("first call after a resumed box was killed: got %s, want the loss reported", a.text())
	}
	p.stop(t)
}

// With memory for two boxes, five keep their state over every call. A call that finds no room
// for long is refused and says to try again, which clients do.
func TestMemory_MoreBoxesThanFit(t *testing.T) {
	t.Parallel()
	p := launch(t, state(t), "GLOVEBOX_MAX_CONTEXTS=2")
	const boxes, calls, tries = 5, 4, 4
	ids := make([]string, boxes)
	for i := range ids {
		ids[i] = p.create(t, fmt.Sprint("box", i))
		p.run(t, ids[i], fmt.Sprintf("x, n = %d, 0", i))
	}
	run := func(id string) (a *answer, err error) {
		for range tries {
			a, err = p.try("run_code", map[string]any{"context_id": id, "code": "n += 1; print(x, n)"})
			if err != nil || !a.IsError || !strings.Contains(a.text(), "Try again when a running call has ended") {
				break
			}
		}
		return a, err
	}
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() {
			for n := 1; n <= calls; n++ {
				a, err := run(id)
				if err != nil || a.IsError || a.str("stdout") != fmt.Sprintf("%d %d\n", i, n) {
					t.Errorf("box %d, call %d: got %v, %v", i, n, a, err)
					return
				}
			}
		})
	}
	wg.Wait()
	p.stop(t)
}

func TestMemory_IdleBoxLeaves(t *testing.T) {
	t.Parallel()
	p := launch(t, state(t), "MSB_SESSION_TIMEOUT=2", "MSB_CLEANUP_INTERVAL=1")
	id := p.create(t, "idle")
	p.run(t, id, "x = 5")
	until(t, "it is hibernated", func() bool { return p.status(t, id) == "hibernated" })
	until(t, "its processes are gone", func() bool { return len(sentries(t, p.cmd.Process.Pid)) == 0 })
	if got := p.run(t, id, "print(x)"); got != "5" {
		t.Errorf("after waking: got %q", got)
	}
	p.stop(t)
}

// A box whose code runs in the background is not idle, even without calls.
func TestBackground_BusyBoxIsNotPaused(t *testing.T) {
	t.Parallel()
	p := launch(t, state(t), "GLOVEBOX_PAUSE_AFTER=1")
	busy, idle := p.create(t, "busy"), p.create(t, "idle")
	p.run(t, busy, "import threading\ndone = False\ndef work():\n    while not done: sum(range(10000))\nthreading.Thread(target=work, daemon=True).start()")
	p.run(t, idle, "x = 1")
	until(t, "the idle box is paused", func() bool { return p.status(t, idle) == "paused" })
	if s := p.status(t, busy); s == "paused" {
		t.Error("a box whose threads compute was paused")
	}
	p.run(t, busy, "done = True")
	until(t, "the other one is paused when it has done its work", func() bool { return p.status(t, busy) == "paused" })
	p.stop(t)
}

// A box that computes is saved soon after its last call, as an idle one is.
func TestKilledServer_KeepsBusyBox(t *testing.T) {
	t.Parallel()
	dir := state(t)
	p := launch(t, dir, "GLOVEBOX_PAUSE_AFTER=1")
	busy := p.create(t, "busy")
	p.run(t, busy, "import threading\ndef work():\n    while True: sum(range(10000))\nthreading.Thread(target=work, daemon=True).start(); x = 7")
	until(t, "the box is on disk", func() bool {
		written, err := filepath.Glob(filepath.Join(dir, "snapshots", "records", "*", "saved.json"))
		return err == nil && len(written) > 0
	})
	p.kill(t)
	p = launch(t, dir)
	if a := p.call(t, "run_code", map[string]any{"context_id": busy, "code": "print(x)"}); a.str("stdout") != "7\n" {
		t.Errorf("after the kill: got %s", a.text())
	}
	p.stop(t)
}

func TestStateDirectory_SharedByServers(t *testing.T) {
	t.Parallel()
	dir := state(t)
	a, b := launch(t, dir), launch(t, dir)
	id := a.create(t, "of a")
	a.run(t, id, "x = 3")
	if s := b.status(t, id); s != "in use by another server" {
		t.Errorf("a living box of one server is listed by the other as %q", s)
	}
	got, err := b.try("run_code", map[string]any{"context_id": id, "code": "x"})
	if err != nil || !got.IsError {
		t.Errorf("a living box of one server answers in the other: %v, %v", got, err)
	}
	a.stop(t)
	if got := b.run(t, id, "print(x)"); got != "3" {
		t.Errorf("after the first server stopped: got %q", got)
	}
	b.stop(t)
}

func TestSnapshot_DamagedIsRefused(t *testing.T) {
	t.Parallel()
	dir := state(t)
	p := launch(t, dir)
	id := p.create(t, "damaged")
	const fill = "x = 1; open('kept', 'w').write('mine')"
	p.run(t, id, fill)
	p.call(t, "execute_code", map[string]any{"code": fill, "session_id": "s"})
	p.stop(t)
	pages, err := filepath.Glob(filepath.Join(dir, "snapshots", "records", "*", "data-*", "pages.img"))
	if err != nil || len(pages) != 2 {
		t.Fatalf("snapshots on disk: %v, %v", pages, err)
	}
	for _, path := range pages {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		data[len(data)/2] ^= 0x40
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p = launch(t, dir)
	// Nothing of the memory runs; the files are stored apart from it.
	const look = "'x' in globals(), open('kept').read()"
	for _, call := range []struct {
		tool string
		args map[string]any
	}{
		{"run_code", map[string]any{"context_id": id, "code": look}},
		{"execute_code", map[string]any{"session_id": "s", "code": look}},
	} {
		a := p.call(t, call.tool, call.args)
		if !strings.Contains(a.str("stdout"), "(False, 'mine')") || !strings.Contains(a.str("lost_reason"), "incomplete or damaged") || strings.Contains(a.text(), dir) {
			t.Errorf("%s in a damaged box: got %s and the reason %q", call.tool, a.text(), a.str("lost_reason"))
		}
	}
	p.stop(t)
}

// If the disk has no room for a box, it stays in memory, and a new one is refused.
func TestDisk_FullKeepsBoxInMemory(t *testing.T) {
	t.Parallel()
	p := launch(t, state(t), "GLOVEBOX_SNAPSHOT_DISK_MB=1", "GLOVEBOX_MAX_CONTEXTS=1")
	id := p.create(t, "first")
	p.run(t, id, "x = 1")
	a, err := p.try("create_context", map[string]any{"name": "second"})
	if err != nil || !a.IsError || !strings.Contains(a.text(), "Contexts limit exceeded") || !strings.Contains(a.text(), "could not be written to disk") {
		t.Errorf("a second one: got %v, %v, want it refused", a, err)
	}
	if got := p.run(t, id, "print(x)"); got != "1" {
		t.Errorf("the first one: got %q", got)
	}
	p.stop(t)
}

// The next call reports a hibernated box that was evicted from disk.
func TestDisk_EvictedBoxIsReported(t *testing.T) {
	t.Parallel()
	dir := state(t)
	p := launch(t, dir)
	first := p.create(t, "first")
	p.run(t, first, "x = 1")
	p.stop(t)
	files, err := filepath.Glob(filepath.Join(dir, "snapshots", "records", "*", "data-*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	var size int64
	for _, path := range files {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}

	p = launch(t, dir, "GLOVEBOX_MAX_CONTEXTS=1", fmt.Sprintf("GLOVEBOX_SNAPSHOT_DISK_MB=%d", size*3/2>>20))
	second := p.create(t, "second")
	p.run(t, second, "x = 2")
	if s := p.status(t, first); s != "hibernated" {
		t.Errorf("the first one is listed as %q, want hibernated", s)
	}
	third := p.create(t, "third") // takes the place of the second in memory, and that the first one's on disk
	until(t, "the first one is gone", func() bool { return p.status(t, first) == "" })
	a, err := p.try("run_code", map[string]any{"context_id": first, "code": "x"})
	if err != nil || !a.IsError || !strings.Contains(a.text(), "it was evicted") || !strings.Contains(a.text(), "because the disk that hibernated boxes may use was full") {
		t.Errorf("the first one: got %v, %v", a, err)
	}
	// The disk has no room for the third beside the second, so it does not leave memory for it.
	a, err = p.try("run_code", map[string]any{"context_id": second, "code": "x"})
	if err != nil || !a.IsError || !strings.Contains(a.text(), "an idle box could not be written to disk") {
		t.Errorf("the second one beside the third: got %v, %v", a, err)
	}
	p.call(t, "stop_context", map[string]any{"context_id": third})
	if got := p.run(t, second, "print(x)"); got != "2" {
		t.Errorf("the second one: got %q", got)
	}
	p.stop(t)
}

// After a stop that could not write a box to disk, the next server reports the loss to the
// caller. It also reports a box that ended before the stop.
func TestTombstones_SurviveRestart(t *testing.T) {
	t.Parallel()
	dir := state(t)
	p := launch(t, dir, "GLOVEBOX_SNAPSHOT_DISK_MB=1")
	id := p.create(t, "unwritten")
	p.run(t, id, "x = 1")
	p.call(t, "execute_code", map[string]any{"code": "x = 1", "session_id": "s"})
	stopped := p.create(t, "stopped")
	p.call(t, "stop_context", map[string]any{"context_id": stopped})
	p.stop(t)

	p = launch(t, dir)
	for id, words := range map[string][]string{
		id:      {"it was closed with the server", "because it could not be written to disk: the disk that boxes may use is full"},
		stopped: {"it was stopped"},
	} {
		a, err := p.try("run_code", map[string]any{"context_id": id, "code": "x"})
		for _, w := range words {
			if err != nil || !a.IsError || !strings.Contains(a.text(), w) {
				t.Errorf("context %s: got %v, %v, want it to say %q", id, a, err, w)
			}
		}
	}
	a := p.call(t, "execute_code", map[string]any{"code": "'x' in globals()", "session_id": "s"})
	if a.StructuredContent["state_lost"] != true || a.str("lost_reason") != "shutdown" || !strings.Contains(a.text(), "could not be written to disk") {
		t.Errorf("session: got %s, %v", a.text(), a.StructuredContent)
	}
	p.stop(t)
}

// The next call reports a box whose kernel or gofer was killed, and resumes it from its
// last save.
func TestKilledBox_ResumesFromLastSave(t *testing.T) {
	t.Parallel()
	shared := t.TempDir()
	p := launch(t, state(t), "GLOVEBOX_PAUSE_AFTER=1", "GLOVEBOX_PRELOAD=none", "MSB_SHARED_VOLUME_PATH="+shared+":/shared:rw")
	for _, part := range []string{"runsc-sandbox", "runsc-gofer"} {
		kill := func() {
			t.Helper()
			var pids []int
			until(t, "there is one box, and no template is built", func() bool {
				pids = parts(t, p.cmd.Process.Pid, part)
				return len(pids) == 1
			})
			if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		// underACall kills it during a call and returns the error of the call.
		underACall := func(id string) string {
			t.Helper()
			ran := make(chan *answer, 1)
			go func() {
				a, err := p.try("run_code", map[string]any{"context_id": id, "code": "import time; x = 2; open('/shared/on', 'w').close(); time.sleep(28)"})
				if err != nil {
					t.Error(err)
					a = &answer{}
				}
				ran <- a
			}()
			on := filepath.Join(shared, "on")
			until(t, "the code runs", func() bool { return os.Remove(on) == nil })
			kill()
			a := <-ran
			if !a.IsError || !strings.Contains(a.text(), "it crashed") {
				t.Errorf("%s killed under a call: got %s", part, a.text())
			}
			return a.text()
		}
		// loses has the next call find the box as it was written, and say so.
		loses := func(id string) {
			t.Helper()
			a := p.call(t, "run_code", map[string]any{"context_id": id, "code": "print(x)"})
			if a.str("stdout") != "1\n" || a.StructuredContent["state_lost"] != true || !strings.HasPrefix(a.str("lost_reason"), "it crashed; what the context did after 20") ||
				strings.Contains(a.text(), "the server was killed") {
				t.Errorf("%s killed, the next call: got %s", part, a.text())
			}
		}

		// Nothing of it is on disk.
		id := p.create(t, "unwritten")
		if text := underACall(id); !strings.Contains(text, "Create a new context") {
			t.Errorf("%s killed: got %s", part, text)
		}
		if a, err := p.try("run_code", map[string]any{"context_id": id, "code": "1"}); err != nil || !a.IsError || !strings.Contains(a.text(), "it crashed") {
			t.Errorf("%s killed, the next call: got %v, %v", part, a, err)
		}

		id = p.create(t, "written")
		p.run(t, id, "x = 1")
		until(t, "it is paused", func() bool { return p.status(t, id) == "paused" })
		if text := underACall(id); !strings.Contains(text, "Call again: it wakes as it was written to disk at 20") || strings.Contains(text, "new context") {
			t.Errorf("%s killed: got %s", part, text)
		}
		loses(id)
		until(t, "it is paused again", func() bool { return p.status(t, id) == "paused" })
		kill()
		until(t, "the server has found out", func() bool { return p.status(t, id) != "paused" })
		// It was written when it paused, and has done nothing since.
		a := p.call(t, "run_code", map[string]any{"context_id": id, "code": "print(x)"})
		if a.str("stdout") != "1\n" || a.StructuredContent["state_lost"] == true || !strings.Contains(a.text(), "its variables and files are kept") {
			t.Errorf("%s killed while the box was paused, the next call: got %s", part, a.text())
		}
		p.call(t, "stop_context", map[string]any{"context_id": id})
	}
	p.stop(t)
}

func TestCreate_TwoHundredAtOnce(t *testing.T) {
	t.Parallel()
	p := launch(t, state(t), "GLOVEBOX_MAX_CONTEXTS=4", "GLOVEBOX_POOL_SIZE=2", "MCP_MAX_CONNECTIONS=300", "GLOVEBOX_MAX_CALLS=300")
	var made, refused atomic.Int32
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			a, err := p.try("create_context", map[string]any{"name": fmt.Sprint("c", i)})
			switch {
			case err != nil:
				t.Error(err)
			case !a.IsError:
				made.Add(1)
			case strings.Contains(a.text(), "limit exceeded"):
				refused.Add(1)
			default:
				t.Errorf("create %d: %s", i, a.text())
			}
		})
	}
	wg.Wait()
	if made.Load() < 4 {
		t.Errorf("%d contexts were made, %d refused", made.Load(), refused.Load())
	}
	if list, _ := p.call(t, "list_contexts", map[string]any{}).StructuredContent["contexts"].([]any); len(list) != int(made.Load()) {
		t.Errorf("%d contexts are listed, %d were made", len(list), made.Load())
	}
	id := p.create(t, "after")
	if got := p.run(t, id, "print(1)"); got != "1" {
		t.Errorf("afterwards: got %q", got)
	}
	p.stop(t)
}

// sentries returns the processes below pid that are kernels of boxes.
func sentries(t *testing.T, pid int) []int { return parts(t, pid, "runsc-sandbox") }

// parts returns the processes below pid that play one part of boxes.
func parts(t *testing.T, pid int, part string) []int {
	t.Helper()
	var found []int
	for _, child := range children(pid) {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child))
		if strings.HasPrefix(string(name), part) {
			found = append(found, child)
		}
		found = append(found, parts(t, child, part)...)
	}
	return found
}

// children returns the child processes of pid.
func children(pid int) []int {
	var found []int
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, path := range tasks {
		data, _ := os.ReadFile(path)
		for word := range strings.FieldsSeq(string(data)) {
			var child int
			if _, err := fmt.Sscan(word, &child); err == nil {
				found = append(found, child)
			}
		}
	}
	return found
}
