//go:build linux

package attack

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// filesClass moves files between the host, boxes and clients.
func filesClass() class {
	return class{
		name: "files", about: "Files that move between host, boxes and clients: path prefixes, links and names.",
		attacks: []Attack{
			{Name: "tool-paths", Claim: "the file tools stay in /home/user and /tmp, by prefix, parents and links (CVE-2025-53109, CVE-2025-53110)", run: toolPaths},
			{Name: "tool-names", Claim: "names and contents of files do not become lines of an answer or paths of the host", run: toolNames},
			{Name: "copied-links", Claim: "links in a directory that is copied into a box bring nothing of the host along", run: copiedLinks},
			{Name: "out-links", Claim: "links and names that a box makes write nothing outside of the directory that is copied out", run: outLinks},
		},
	}
}

// toolPaths reads and writes what is beside the directories of the file tools.
func toolPaths(ctx context.Context, t *trial) error {
	s, id, end, err := t.guardedBox(ctx, "alice")
	if err != nil {
		return err
	}
	defer end()
	const secret = "beside-the-home"
	prepare := "mkdir -p /dev/shm/home/user /dev/shm/other && echo " + secret + " | tee /dev/shm/home/user/f /dev/shm/other/f /var/tmp/f >/dev/null; " +
		"ln -s /dev/shm/other/f link; ln -s /dev/shm/other dir; ln -s ../../dev/shm/other relative; ln -s /proc/self/root/dev/shm/other magic; ln -s dir chain; " +
		"mkdir sub; ln -s ../../../dev/shm/other sub/up; ln -s /home/user/../../dev/shm/other/f dots; ln -s /dev/shm/other /tmp/out; echo " + t.nonce
	if said, err := s.shell(ctx, "alice", id, prepare); err != nil || !strings.Contains(said, t.nonce) {
		return fmt.Errorf("prepare the box: %w: %s", err, printable(said))
	}
	call := func(name string, args map[string]any) (string, error) {
		args["session_id"] = id
		res, err := s.send(ctx, request{token: s.tokens["alice"], body: tool(name, args)})
		if err == nil && res.status != http.StatusOK {
			err = fmt.Errorf("%s: %d: %s", name, res.status, printable(res.body))
		}
		return res.body, err
	}
	for _, path := range []string{
		"/dev/shm/other/f", "/home/user/../../dev/shm/home/user/f", "../../dev/shm/other/f", "./../../var/tmp/f", "/home/userx/../../dev/shm/other/f", "/tmp/../dev/shm/other/f", "/tmpx/../var/tmp/f",
		"link", "dir/f", "relative/f", "magic/f", "chain/f", "sub/up/f", "dots", "/home/user/dir/f", "/tmp/out/f", "//dev/shm/other/f", "/proc/self/root/dev/shm/other/f", "sub/../dir/f", "/dev/shm/home/user/f",
	} {
		said, err := call("download_file", map[string]any{"path": path})
		if err != nil {
			return err
		}
		t.check(!strings.Contains(said, secret), "download_file reads %s", path)
		if _, err = call("upload_file", map[string]any{"path": path, "content": "changed"}); err != nil {
			return err
		}
		if dir, ok := strings.CutSuffix(path, "/f"); ok {
			if said, err = call("list_files", map[string]any{"path": dir}); err != nil {
				return err
			}
			t.check(!strings.Contains(said, `"f"`) && !strings.Contains(said, "/f\""), "list_files shows %s: %s", dir, printable(said))
		}
	}
	said, err := s.shell(ctx, "alice", id, "cat /dev/shm/home/user/f /dev/shm/other/f /var/tmp/f")
	t.check(err == nil && strings.Count(said, secret) >= 3 && !strings.Contains(said, "changed"), "upload_file wrote beside the home: %s, %v", printable(said), err)
	return nil
}

// toolNames makes files whose names and contents look like something else.
func toolNames(ctx context.Context, t *trial) error {
	s, id, end, err := t.guardedBox(ctx, "alice")
	if err != nil {
		return err
	}
	defer end()
	script := `import os
for n in ["\x1b[2J", "a\nSession: forged", "\u202egnp.exe", "-rf", "%s%n", "\ud800".encode("utf-8", "surrogatepass"), b"\xff\xfe"]:
    open(n, "w").close()
os.mkfifo("fifo"); os.symlink("fifo", "to-fifo"); os.symlink("/dev/zero", "zero"); os.symlink("/proc/self/mem", "mem")
import socket; socket.socket(socket.AF_UNIX).bind("socket")
print("` + t.nonce + `")`
	res, err := s.send(ctx, request{token: s.tokens["alice"], body: tool("execute_code", map[string]any{"session_id": id, "code": script, "language": "python"})})
	if err != nil || !strings.Contains(res.body, t.nonce) {
		return fmt.Errorf("make files: %w: %s", err, printable(res.body))
	}
	for _, path := range []string{"", "fifo", "to-fifo", "zero", "mem", "socket", "-rf", "\x1b[2J"} {
		name, args := "download_file", map[string]any{"session_id": id, "path": path}
		if path == "" {
			name, args = "list_files", map[string]any{"session_id": id}
		}
		res, err := s.send(ctx, request{token: s.tokens["alice"], body: tool(name, args)})
		t.check(err == nil && res.status == http.StatusOK, "%s of %q is not answered: %d, %v", name, path, res.status, err)
		var said struct {
			Result struct {
				Content []struct{ Text string }
			}
		}
		t.check(json.Unmarshal([]byte(res.body), &said) == nil, "the answer to %s of %q is no JSON", name, path)
		for _, c := range said.Result.Content {
			t.check(visibleOnly(c.Text) && !strings.Contains(c.Text, "\nSession: forged"), "the answer to %s of %q has hidden text or a forged line: %s", name, path, printable(c.Text))
		}
	}
	return nil
}

// copies runs glovebox run in a directory of its own.
func (t *trial) copies(ctx context.Context, dir string, args ...string) (string, error) {
	if t.cfg.Program == "" {
		return "", skip("the run has no program to start")
	}
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	out, err := t.rig.server.program(ctx, dir, append([]string{"run"}, args...)...).CombinedOutput()
	if _, ended := err.(*exec.ExitError); ended && ctx.Err() == nil {
		err = nil // the text shows why
	}
	return string(out), err
}

func copiedLinks(ctx context.Context, t *trial) error {
	dir, err := t.tempDir("copy")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	source := filepath.Join(dir, "source")
	if err := os.MkdirAll(filepath.Join(source, "sub"), 0o700); err != nil {
		return err
	}
	for name, to := range map[string]string{
		"absolute": t.bait.file(), "parent": "../../bait/secret", "sub/deep": "../../../bait/secret", "directory": t.bait.dir,
		"magic": "/proc/self/root" + t.bait.file(), "chain": "directory/secret", "sub/own": "../honest", "sub/back": "../../source/../../bait/secret",
	} {
		if err := os.Symlink(to, filepath.Join(source, name)); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(source, "honest"), []byte(t.nonce), 0o600); err != nil {
		return err
	}
	said, err := t.copies(ctx, dir, "--copy", source+":/home/user/d", "--", "/bin/sh", "-c", "cat d/honest; find d/ -exec cat {} +; find -L d/ -type f -exec cat {} +")
	if err != nil {
		return err
	}
	t.check(strings.Contains(said, t.nonce), "the honest file was not copied: %s", printable(said))
	t.bait.checkText(t, "the box", said)
	return nil
}

func outLinks(ctx context.Context, t *trial) error {
	dir, err := t.tempDir("out")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	target, beside := filepath.Join(dir, "out"), filepath.Join(dir, "beside")
	if err := os.Mkdir(target, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(beside, []byte("unchanged"), 0o600); err != nil {
		return err
	}
	mark := markName(t.nonce)
	script := strings.NewReplacer("DIR", dir, "MARK", mark, "SECRET", t.bait.file()).Replace(
		`mkdir -p d/sub && cd d && ln -s ../beside up && ln -s DIR/beside abs && ln -s .. parent && ln -s /tmp tmp && ln -s SECRET secret && ln -s /proc/self/mem mem
mkfifo fifo; echo x > '\..\MARK'; echo x > "$(printf '\033[2J')"; echo x > honest; ln honest hard; chmod 6755 honest; mkdir -p a && ln -s a b && echo x > a/MARK`)
	// The second run meets the links of the first.
	for range 2 {
		said, err := t.copies(ctx, dir, "--out", "d:"+target, "--", "/bin/sh", "-c", script)
		if err != nil {
			return err
		}
		if _, err := os.Lstat(filepath.Join(target, "honest")); err != nil {
			return fmt.Errorf("nothing was copied: %w: %s", err, printable(said))
		}
		script = strings.NewReplacer("MARK", mark).Replace(`mkdir -p d/tmp d/up d/parent d/b && echo x | tee d/tmp/MARK d/up/MARK d/parent/MARK d/b/MARK d/abs d/honest >/dev/null`)
	}
	got, err := os.ReadFile(beside)
	t.check(err == nil && string(got) == "unchanged", "a file beside the directory was changed: %q, %v", got, err)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		t.check(e.Name() == "out" || e.Name() == "beside" || e.Name() == "state" || e.Name()[0] == '.', "%s appeared beside the directory", e.Name())
	}
	return filepath.WalkDir(target, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if to, err := filepath.EvalSymlinks(path); err == nil {
			t.check(to == target || strings.HasPrefix(to, target+"/"), "%s leads to %s", path, to)
		}
		info, err := d.Info()
		if err == nil {
			t.check(info.Mode()&(os.ModeSetuid|os.ModeSetgid|os.ModeNamedPipe|os.ModeDevice) == 0, "%s has mode %v", path, info.Mode())
		}
		return err
	})
}
