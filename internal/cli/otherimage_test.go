//go:build linux

package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// venv makes a virtual environment, and returns its interpreter and a file in its
// site-packages that boxes can map.
func venv(t *testing.T) (python, library string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "venv")
	// Not the interpreter of a version manager, which is in a home directory.
	if out, err := exec.Command("/usr/bin/python3", "-m", "venv", "--without-pip", dir).CombinedOutput(); err != nil {
		t.Skipf("no virtual environments with /usr/bin/python3: %v: %s", err, out)
	}
	for up := dir; up != os.TempDir() && up != "/"; up = filepath.Dir(up) {
		if err := os.Chmod(up, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sites, err := filepath.Glob(filepath.Join(dir, "lib", "python3*", "site-packages"))
	if err != nil || len(sites) != 1 {
		t.Fatalf("site-packages: %q, %v", sites, err)
	}
	library = filepath.Join(sites[0], "library.bin")
	if err := os.WriteFile(library, []byte(strings.Repeat("version 1 ", 1000)), 0o644); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "bin", "python"), library
}

// replaceFile replaces a file as package managers do.
func replaceFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// stop stops a server, which hibernates its boxes.
func (s *serverProcess) stop() {
	s.t.Helper()
	s.cmd.Process.Signal(syscall.SIGTERM)
	if code, log := s.wait(time.Minute); code != 0 {
		s.t.Fatalf("the server ended with %d:\n%s", code, log)
	}
}

// TestToolchain_BoxesOfTwo starts a server with another interpreter: each box wakes with
// its own.
func TestToolchain_BoxesOfTwo(t *testing.T) {
	state := t.TempDir()
	one, _ := venv(t)
	two, _ := venv(t)
	s := startServer(t, state, append([]string{"--python", one}, plain...)...)
	b := boxes{t, s.connect()}
	b.execute("first", "import sys; x = 41; open('kept.txt', 'w').write('file')")
	b.want(b.execute, "first", "print(sys.prefix)", filepath.Dir(filepath.Dir(one)))
	s.stop()

	s = startServer(t, state, append([]string{"--python", two}, plain...)...)
	b = boxes{t, s.connect()}
	b.want(b.execute, "second", "import sys; print(sys.prefix)", filepath.Dir(filepath.Dir(two)))
	out := b.must("execute_code", args{"session_id": "first", "code": "print(x + 1, sys.prefix, open('kept.txt').read())"})
	if want := "42 " + filepath.Dir(filepath.Dir(one)) + " file\n"; out["stdout"] != want || out["state_lost"] != nil {
		t.Errorf("the box of the first toolchain: got %v, want %q", out, want)
	}
	// A copy has the image of its original.
	fork := b.must("fork_session", args{"session_id": "first", "new_session_id": "copy"})
	if fork["session_id"] != "copy" {
		t.Errorf("fork_session: got %v", fork)
	}
	b.want(b.execute, "copy", "print(x, sys.prefix)", "41 "+filepath.Dir(filepath.Dir(one)))
	s.stop()

	// Both are hibernated, and wake under a third setting.
	s = startServer(t, state, plain...)
	b = boxes{t, s.connect()}
	b.want(b.execute, "first", "print(x, sys.prefix)", "41 "+filepath.Dir(filepath.Dir(one)))
	b.want(b.execute, "second", "print(sys.prefix)", filepath.Dir(filepath.Dir(two)))
	s.stop()
}

const mapLibrary = "import mmap, glob, sys; x = 41; f = open(glob.glob(sys.prefix + '/lib/python3*/site-packages/library.bin')[0], 'rb'); " +
	"m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ); m[:]; open('kept.txt', 'w').write('file')"

// TestToolchain_LibraryChangesUnderBox changes a file that a hibernated box has mapped: its
// memory must not be restored, its files must be, and nothing may be deleted.
func TestToolchain_LibraryChangesUnderBox(t *testing.T) {
	state := t.TempDir()
	python, library := venv(t)
	settings := append([]string{"--python", python}, plain...)
	before, err := os.ReadFile(library)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(library)
	if err != nil {
		t.Fatal(err)
	}
	s := startServer(t, state, settings...)
	b := boxes{t, s.connect()}
	b.execute("box", mapLibrary)
	id := b.context("named", "python")
	b.run(id, mapLibrary)
	kept := b.must("snapshot_context", args{"context_id": id})["snapshot_id"].(string)
	s.stop()
	replaceFile(t, library, "version 2")

	s = startServer(t, state, settings...)
	b = boxes{t, s.connect()}
	out := b.must("execute_code", args{"session_id": "box", "code": "print('x' in globals(), open('kept.txt').read())"})
	if out["stdout"] != "False file\n" || out["state_lost"] != true || out["session_created"] == true {
		t.Errorf("execute_code: got %v, want the files and no variables", out)
	}
	if why, _ := out["lost_reason"].(string); !strings.Contains(why, library) {
		t.Errorf("lost_reason is %q, want it to name %s", why, library)
	}
	if out := b.must("execute_code", args{"session_id": "box", "code": "1"}); out["state_lost"] != nil {
		t.Errorf("second call: got %v, want the loss reported once only", out)
	}
	ctx := b.must("run_code", args{"context_id": id, "code": "print('x' in globals(), open('kept.txt').read())"})
	if ctx["stdout"] != "False file\n" || ctx["state_lost"] != true {
		t.Errorf("run_code: got %v, want the files and no variables", ctx)
	}
	b.execute("box", "open('later.txt', 'w').write('later')")

	// The old state still exists, and so does the saved snapshot.
	aside := ""
	list := b.items("list_snapshots", "snapshots")
	for _, item := range list {
		if item["session_id"] == "box" {
			aside = item["snapshot_id"].(string)
		}
	}
	if len(list) != 3 || aside == "" {
		t.Fatalf("list_snapshots: got %v, want the state of both boxes and the snapshot", list)
	}
	// The files of a saved snapshot are restored, too.
	copied := b.must("restore_context", args{"snapshot_id": kept})
	b.want(b.run, copied["context_id"].(string), "print('x' in globals(), open('kept.txt').read())", "False file")
	if message, _ := copied["message"].(string); !strings.Contains(message, "Variables") {
		t.Errorf("restore_context: got %q", message)
	}
	s.stop()

	// With the original file back, the old memory is restored.
	replaceFile(t, library, string(before))
	if err := os.Chtimes(library, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	s = startServer(t, state, settings...)
	b = boxes{t, s.connect()}
	b.must("restore_session", args{"snapshot_id": aside, "session_id": "old"})
	b.want(b.execute, "old", "print(x + 1, m[:9])", "42 b'version 1'")
	b.want(b.execute, "box", "print('x' in globals(), open('later.txt').read())", "False later")
	s.stop()
}

// TestToolchain_ServerKilledAfterRescue kills the server right after a box continued with its
// files: the next server has them.
func TestToolchain_ServerKilledAfterRescue(t *testing.T) {
	state := t.TempDir()
	python, library := venv(t)
	settings := append([]string{"--python", python}, plain...)
	s := startServer(t, state, settings...)
	b := boxes{t, s.connect()}
	b.execute("box", mapLibrary)
	s.stop()
	replaceFile(t, library, "version 2")
	for range 3 {
		s = startServer(t, state, settings...)
		b = boxes{t, s.connect()}
		out := b.must("execute_code", args{"session_id": "box", "code": "print(open('kept.txt').read())"})
		if out["stdout"] != "file\n" || out["state_lost"] != true {
			t.Errorf("execute_code: got %v, want the files", out)
		}
		s.cmd.Process.Kill()
		s.wait(time.Minute)
	}
}

// TestToolchain_FilesOfBoxAreReadWithoutWaking reads the files of a box whose toolchain is
// gone: the box does not change, and wakes with its memory once the toolchain is back.
func TestToolchain_FilesOfBoxAreReadWithoutWaking(t *testing.T) {
	state := t.TempDir()
	python, _ := venv(t)
	dir := filepath.Dir(filepath.Dir(python))
	s := startServer(t, state, append([]string{"--python", python}, plain...)...)
	b := boxes{t, s.connect()}
	b.execute("box", "import os; x = 41; os.makedirs('d/e'); open('d/kept.txt', 'w').write('0123456789')")
	s.stop()
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}

	s = startServer(t, state, plain...)
	b = boxes{t, s.connect()}
	list := b.must("list_files", args{"session_id": "box", "depth": 3})
	var paths []string
	for _, e := range list["entries"].([]any) {
		paths = append(paths, e.(args)["path"].(string)+" "+e.(args)["type"].(string))
	}
	if got, want := strings.Join(paths, ", "), "/home/user/d directory, /home/user/d/e directory, /home/user/d/kept.txt file"; got != want {
		t.Errorf("list_files: got %q, want %q", got, want)
	}
	note := fmt.Sprint(list["notes"])
	if !strings.Contains(note, "made with Python 3") || !strings.Contains(note, python) || !strings.Contains(note, "not there any more") {
		t.Errorf("list_files: the note is %q, want it to name the toolchain", note)
	}
	got := b.must("download_file", args{"session_id": "box", "path": "d/kept.txt", "offset": 2, "max_bytes": 3})
	if got["content"] != "234" || got["size"] != 10.0 || got["truncated"] != true {
		t.Errorf("download_file: got %v", got)
	}
	b.refused("download_file", args{"session_id": "box", "path": "/etc/passwd"}, "PATH_NOT_ALLOWED", "/home/user")
	b.refused("download_file", args{"session_id": "box", "path": "d/none"}, "FILE_NOT_FOUND", "d/none")
	for _, i := range b.must("get_sessions", nil)["sessions"].([]any) {
		if i.(args)["status"] != "hibernated" {
			t.Errorf("get_sessions: got %v, want the box to sleep on", i)
		}
	}
	s.stop()

	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	s = startServer(t, state, plain...)
	b = boxes{t, s.connect()}
	b.want(b.execute, "box", "print(x + 1)", "42")
	s.stop()
}

// TestToolchain_LibraryChangesUnderFork changes a file that a living box has mapped: a fork starts
// with the files only, and the original continues.
func TestToolchain_LibraryChangesUnderFork(t *testing.T) {
	python, library := venv(t)
	state := t.TempDir()
	s := startServer(t, state, append([]string{"--python", python}, plain...)...)
	b := boxes{t, s.connect()}
	b.execute("box", mapLibrary)
	replaceFile(t, library, "version 2")
	_, _, text, err := b.call(t.Context(), "fork_session", args{"session_id": "box", "new_session_id": "copy"})
	if err != nil || !strings.Contains(text, "Variables") {
		t.Errorf("fork_session: %v, %q; want it to say that variables are gone", err, text)
	}
	b.want(b.execute, "copy", "print('x' in globals(), open('kept.txt').read())", "False file")
	b.want(b.execute, "box", "print(x, m[:9])", "41 b'version 1'")
	// It is hibernated, too, and loses no file.
	s.stop()
	s = startServer(t, state, append([]string{"--python", python}, plain...)...)
	b = boxes{t, s.connect()}
	b.want(b.execute, "box", "print(open('kept.txt').read())", "file")
	s.stop()
}

// TestAgent_OfAnotherVersion upgrades the program under a hibernated box: it wakes
// with the agent that it runs and, once that is gone, with its files.
func TestAgent_OfAnotherVersion(t *testing.T) {
	agent, err := filepath.Abs("../guest/embed/bin/guest-linux-" + runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(agent)
	if err != nil {
		t.Skipf("no embedded agent: %v", err)
	}
	dir := t.TempDir()
	other := filepath.Join(dir, "agent")
	if err := os.WriteFile(other, append(b, "\nanother version"...), 0o755); err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, fmt.Appendf(nil, `{"Replace": {%q: %q}}`, agent, other), 0o644); err != nil {
		t.Fatal(err)
	}
	// Both are built: a test's executable does not know its version of gVisor.
	earlier, now := filepath.Join(dir, "earlier"), filepath.Join(dir, "now")
	for exe, options := range map[string][]string{earlier: {"-overlay", overlay}, now: nil} {
		build := append([]string{"build"}, append(options, "-o", exe, "../../cmd/glovebox")...)
		if out, err := exec.Command("go", build...).CombinedOutput(); err != nil {
			t.Fatalf("go %q: %v\n%s", build, err, out)
		}
	}
	state := t.TempDir()
	settings := append([]string{"glovebox", "serve", "--port", "0", "--state-dir", state, "--toolset", "all"}, plain...)
	start := func(exe string) *serverProcess {
		return launch(t, endpoint, func(cmd *exec.Cmd) { cmd.Path = exe }, settings...)
	}
	s := start(earlier)
	c := boxes{t, s.connect()}
	c.execute("box", "x = 41; open('kept.txt', 'w').write('file')")
	s.stop()
	agents, err := filepath.Glob(filepath.Join(state, "agent", "guest-*"))
	if err != nil || len(agents) != 1 {
		t.Fatalf("agents of the earlier version: %q, %v", agents, err)
	}

	s = start(now)
	c = boxes{t, s.connect()}
	c.want(c.execute, "box", "print(x + 1, open('kept.txt').read())", "42 file")
	s.stop()

	if err := os.Remove(agents[0]); err != nil {
		t.Fatal(err)
	}
	s = start(now)
	c = boxes{t, s.connect()}
	out := c.must("execute_code", args{"session_id": "box", "code": "print('x' in globals(), open('kept.txt').read())"})
	if why, _ := out["lost_reason"].(string); out["stdout"] != "False file\n" || !strings.Contains(why, "another version") {
		t.Errorf("without the earlier agent: got %v, want the files", out)
	}
	s.stop()
}
