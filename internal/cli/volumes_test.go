//go:build linux

package cli

import (
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/volume"
)

// command runs a command of the program, which must succeed, and returns its output.
func command(t *testing.T, arg ...string) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := &exec.Cmd{Path: exe, Args: append([]string{"glovebox"}, arg...), Dir: t.TempDir()}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("glovebox %v: %v\n%s", arg, err, out)
	}
	return string(out)
}

// volumeParent returns a directory for volumes with {owner}.
func volumeParent(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Each owner's boxes see the directory of the owner, wherever the box comes from; machines
// without an owner cannot write anywhere.
func TestVolumes_PerOwner(t *testing.T) {
	parent, state, tokens := volumeParent(t), t.TempDir(), newTokens(t)
	flags := []string{"--volume", parent + "/{owner}:/shared", "--preload", "none"}
	above := "/shared/.."
	if os.Getuid() != 0 { // see docs/volumes.md
		above = "/shared/."
	}
	command(t, append([]string{"template", "build", "named", "--owner", "*", "--state-dir", state,
		"--run", "ls -l /shared " + above + " >/dev/null || exit 8; if touch /shared/planted; then exit 9; fi; touch made"}, flags...)...)
	serve := func() (s *serverProcess, each map[string]boxes) {
		s = startServer(t, state, append([]string{"--tokens-file", tokens.file}, flags...)...)
		return s, map[string]boxes{"alice": s.as(t, tokens.alice), "bob": s.as(t, tokens.bob)}
	}
	// use writes to the volume in a session, and checks that it has what the owner wrote.
	wrote := map[string][]string{}
	use := func(owner string, b boxes, session string) {
		t.Helper()
		wrote[owner] = append(wrote[owner], owner+"-"+session)
		slices.Sort(wrote[owner])
		b.want(b.execute, session, "import os; os.chmod('/shared', 0o755); open('/shared/"+owner+"-"+session+"', 'w').close(); os.listdir('"+above+"'); print(*sorted(os.listdir('/shared')))",
			strings.Join(wrote[owner], " "))
	}
	s, each := serve()
	snaps := map[string]any{}
	for owner, b := range each {
		use(owner, b, "fresh")
		b.must("execute_code", args{"session_id": "named", "template": "named", "code": "import os; os.stat('made')"})
		use(owner, b, "named")
		b.must("fork_session", args{"session_id": "named", "new_session_id": "fork"})
		use(owner, b, "fork")
		snaps[owner] = b.must("snapshot_session", args{"session_id": "fresh"})["snapshot_id"]
		b.must("restore_session", args{"snapshot_id": snaps[owner], "session_id": "restored"})
		use(owner, b, "restored")
	}
	for owner, b := range each {
		b.must("restore_session", args{"snapshot_id": snaps[owner], "session_id": "fork"})
		use(owner, b, "fork-rolled-back")
	}
	s.cmd.Process.Signal(syscall.SIGTERM)
	if code, log := s.wait(time.Minute); code != 0 {
		t.Fatalf("got exit code %d\n%s", code, log)
	}
	_, each = serve()
	for owner, b := range each {
		for _, session := range []string{"fresh", "named"} { // woken
			use(owner, b, session+"-woken")
		}
	}
	for owner := range each {
		dir := filepath.Join(parent, volume.DirName("token "+owner))
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("the directory of %s: %v, %v", owner, info, err)
		}
		list, err := os.ReadDir(filepath.Join(dir, "data"))
		var names []string
		for _, e := range list {
			names = append(names, e.Name())
		}
		if err != nil || !slices.Equal(names, wrote[owner]) {
			t.Errorf("%s wrote %q, the directory has %q, %v", owner, wrote[owner], names, err)
		}
	}
	if list, err := os.ReadDir(parent); err != nil || len(list) != 2 {
		t.Errorf("the parent has %v, %v; want the directories of two owners", list, err)
	}
	if list, err := os.ReadDir(filepath.Join(state, "volumes", "empty")); err != nil || len(list) != 0 {
		t.Errorf("machines without an owner wrote %v, %v", list, err)
	}
}

// keptAside is how a result names the snapshot of a box whose memory had a file of the volume open.
var keptAside = regexp.MustCompile(`kept as snapshot (\S+): once the volume /shared is within its quota again, restore_session \(toolset snapshots\) brings`)

// Over the quota, boxes may only read the volume, also those that are in memory and in the
// middle of a call, and the result tells the model. Once it is within its quota, they write again.
func TestVolumes_Quota(t *testing.T) {
	parent := volumeParent(t)
	s := startServer(t, t.TempDir(), append([]string{"--volume", parent + "/{owner}:/shared:quota=1M"}, plain...)...)
	b := boxes{t, s.connect()}
	b.execute("s", "x = 1; import os; os.chmod('/shared', 0o777)")
	// Not written by the box: a scan could find it over the quota with the file open, and
	// its memory could not be restored.
	content := make([]byte, 4<<20)
	rand.Read(content)
	if err := os.WriteFile(filepath.Join(parent, "_local", "data", "large"), content, 0o644); err != nil {
		t.Fatal(err)
	}
	write := "open('/shared/more', 'w').close(); print(x)"
	var text string
	refused := func() bool {
		_, out, got, err := b.call(t.Context(), "execute_code", args{"session_id": "s", "code": write})
		if err != nil {
			t.Fatal(err)
		}
		text = got
		return out["success"] == false && strings.Contains(got, "Read-only file system")
	}
	eventually(t, "the volume is read-only", time.Minute, refused)
	if !strings.Contains(text, "The volume /shared is over its quota") {
		t.Errorf("the result does not say why: %s", text)
	}
	// The box goes on with its variables, and reads.
	b.want(b.execute, "s", "import os; print(x, os.path.getsize('/shared/large'))", "1 4194304")
	// Each refused write says why, and other results do not.
	for range 2 {
		if !refused() || !strings.Contains(text, "The volume /shared is still over its quota and read-only.") {
			t.Errorf("a further result does not say why: %s", text)
		}
	}
	if _, _, text, err := b.call(t.Context(), "execute_code", args{"session_id": "s", "code": "x"}); err != nil || strings.Contains(text, "quota") {
		t.Errorf("a result of another kind: %s, %v", text, err)
	}
	if err := os.Remove(filepath.Join(parent, "_local", "data", "large")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the volume is writable again", time.Minute, func() bool { return !refused() })
	b.want(b.execute, "s", write, "1")

	// A call that is under way is cut off, and what it had written is known.
	cut := "import os, time\nwith open('/shared/cut', 'wb') as f:\n    while True: f.write(os.urandom(1 << 16)); f.flush(); time.sleep(0.05)"
	_, _, text, err := b.call(t.Context(), "execute_code", args{"session_id": "s", "code": cut, "timeout": 60})
	if err != nil || !strings.Contains(text, "over its quota") {
		t.Errorf("a call that goes over the quota: got %s, %v", text, err)
	}
	// Its memory had the file open: the next call goes on without it, and its result says why, and how the
	// variables come back.
	_, _, text, err = b.call(t.Context(), "execute_code", args{"session_id": "s", "code": "1"})
	if err != nil || !strings.Contains(text, "gone: the volume /shared is over its quota") || strings.Contains(text, "CompleteRestore") {
		t.Errorf("the call after that: got %s, %v", text, err)
	}
	kept := keptAside.FindStringSubmatch(text)
	if kept == nil {
		t.Fatalf("the result does not say how the variables come back: %s", text)
	}
	info, err := os.Stat(filepath.Join(parent, "_local", "data", "cut"))
	if err != nil || info.Size() > 40<<20 {
		t.Errorf("the call wrote %v, %v", info, err)
	}
	status, _, body := s.get("/metrics", "text/plain")
	if status != 200 || !strings.Contains(body, "glovebox_volumes_over_quota 1") || !strings.Contains(body, `glovebox_volume_scans_total{result="over"}`) {
		t.Errorf("the metrics do not have the volume: %d", status)
	}
	if err := os.Truncate(filepath.Join(parent, "_local", "data", "cut"), 0); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the volume is writable once more", time.Minute, func() bool { return !refused() })
	b.must("restore_session", args{"snapshot_id": kept[1], "session_id": "back"})
	b.want(b.execute, "back", "print(x)", "1")
}

// A template that was built with other volumes than the server has is an error that says so
// and what to do.
func TestVolumes_OfTemplate(t *testing.T) {
	parent, state := volumeParent(t), t.TempDir()
	command(t, "template", "build", "named", "--state-dir", state, "--run", "touch made", "--preload", "none")
	s := startServer(t, state, append([]string{"--volume", parent + "/{owner}:/shared"}, plain...)...)
	b := boxes{t, s.connect()}
	b.refused("execute_command", args{"template": "named", "command": "ls"}, "SANDBOX_CREATION_ERROR", "glovebox template build named", "volumes", "/shared")
	command(t, "template", "build", "named", "--state-dir", state, "--run", "touch made", "--preload", "none", "--volume", parent+"/{owner}:/shared")
	b.must("execute_command", args{"template": "named", "command": "ls made /shared"})
}

// A box from the pool has the directory of a volume that is there now, not one that was replaced
// since the box was made.
func TestVolumes_ReplacedDirectory(t *testing.T) {
	parent := volumeParent(t)
	dir := filepath.Join(parent, "data")
	makeDir := func() {
		t.Helper()
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	makeDir()
	s := startServer(t, t.TempDir(), "--volume", dir+":/shared:rw", "--preload", "none", "--pool-size", "2")
	b := boxes{t, s.connect()}
	source := func(id string) any {
		t.Helper()
		res, _, _, err := b.call(t.Context(), "execute_command", args{"session_id": id, "command": "echo > /shared/" + id})
		if err != nil || res.IsError {
			t.Fatalf("%s: %v, %+v", id, err, res)
		}
		return res.Meta["glovebox/source"]
	}
	n := 0
	eventually(t, "the pool has boxes", time.Minute, func() bool { n++; return source("a"+strconv.Itoa(n)) == "warm" })
	if err := os.Rename(dir, filepath.Join(parent, "old")); err != nil {
		t.Fatal(err)
	}
	makeDir()
	for i := range 4 {
		name := "b" + strconv.Itoa(i)
		from := source(name)
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Errorf("the file of a new box from %v is not in the new directory: %v", from, err)
		}
	}
	eventually(t, "the pool has boxes with the new directory", time.Minute, func() bool { n++; return source("c"+strconv.Itoa(n)) == "warm" })
	if _, err := os.Stat(filepath.Join(dir, "c"+strconv.Itoa(n))); err != nil {
		t.Error(err)
	}
}
