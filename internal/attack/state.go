//go:build linux

package attack

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// stateClass damages and exchanges files of a state directory while no server runs. Only
// the server's user can write there; damage must be noticed all the same, and must not
// lead out of the state directory.
func stateClass() class {
	changed := func(name, claim string, change func(*installation) error) Attack {
		return Attack{Name: name, Claim: claim, run: changedState(change)}
	}
	return class{
		name: "state", about: "Files of the state directory are damaged and exchanged while no server runs.",
		attacks: []Attack{
			{Name: "replaced-agent", Claim: "an agent of other content is replaced and never runs, whatever its size, mode and times", run: replacedAgent},
			changed("interpreters", "remembered interpreters show no directory of the host that is not theirs", editInterpreters),
			changed("image-root", "the description of an image cannot make the host's root the root of boxes", editImage(`"Dir":\s*"[^"]*"`, `"Dir": "/"`)),
			changed("image-directory", "the description of an image cannot show private directories of the host", editImage(`"Binds":\s*\[`, `"Binds": [{"Host": "/etc", "Guest": "/mnt", "ReadOnly": false},`)),
			changed("records", "records with paths and absurd sizes under right checksums lead nowhere and harm no other box", editRecords),
			changed("files-archive", "an archive of files with paths and links under a right checksum leads nowhere", editArchive),
			changed("linked-archive", "a link in place of an archive of files is not followed", exchangeArchive(func(c *installation, path string) error {
				return os.Symlink(c.bait.file(), path)
			})),
			changed("piped-archive", "a pipe in place of an archive of files does not block a wake", exchangeArchive(func(_ *installation, path string) error {
				return unix.Mkfifo(path, 0o600)
			})),
			{Name: "reused-id", Claim: "a box gets nothing of an earlier box with the same id, of any owner", run: reusedID},
		},
	}
}

// installation is a state directory with two boxes on disk.
type installation struct {
	*trial
	dir string // HOME of the server; the state directory is in it
}

func (c *installation) state(name ...string) string {
	return filepath.Join(append([]string{c.dir, "state"}, name...)...)
}

// shell runs a command in a box and returns what it printed.
func (s *server) shell(ctx context.Context, owner, box, command string) (string, error) {
	res, err := s.send(ctx, request{token: s.tokens[owner], body: tool("execute_command", map[string]any{"session_id": box, "command": command})})
	if err == nil && res.status != http.StatusOK {
		err = fmt.Errorf("run a command: %d: %s", res.status, printable(res.body))
	}
	return res.body, err
}

// changedState has a server write two boxes to disk, changes the state directory, and
// wakes both with another server.
func changedState(change func(*installation) error) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		if t.cfg.Program == "" {
			return skip("the run has no program to start a server with")
		}
		if !t.cfg.Maker.Snapshots() {
			return skip("the engine has no snapshots")
		}
		dir, err := t.tempDir("state")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		c := &installation{t, dir}
		first := &server{}
		if err := t.rig.server.launch(ctx, first, dir, "--hibernate-max-age", "1h"); err != nil {
			return err
		}
		for _, box := range []string{"victim", "neighbour"} {
			_, err := first.shell(ctx, "", box, "echo kept-"+t.nonce+" > file")
			if err != nil {
				return errors.Join(err, first.stop())
			}
		}
		if err := first.stop(); err != nil {
			return fmt.Errorf("stop the server: %w", err)
		}
		if err := change(c); err != nil {
			return fmt.Errorf("change the state directory: %w", err)
		}
		// Without Node.js on PATH, boxes wake with the image of their record.
		second := &server{env: []string{"PATH=" + dir}}
		if err := t.rig.server.launch(ctx, second, dir, "--python", "/usr/bin/python3"); err != nil {
			t.broke("no server starts on the changed directory: %v", err)
			return nil
		}
		defer second.stop()
		looks := "cat file " + t.bait.file() + " /etc/shadow; ls -A /mnt /home/* /root; ls -A / /tmp"
		for _, box := range []string{"victim", "neighbour"} {
			start := time.Now()
			said, err := second.shell(ctx, "", box, looks)
			t.check(err == nil, "the box is lost: %v", err)
			t.check(time.Since(start) < restoreTime, "the box wakes after %v", time.Since(start))
			t.bait.checkText(t, "the "+box+"'s view", said)
			t.check(!strings.Contains(said, "root:*:") && !strings.Contains(said, "root:!") && !strings.Contains(said, "root:$"), "the host's /etc/shadow is visible: %s", printable(said))
			t.check(!strings.Contains(said, "ssh_config") && !strings.Contains(said, "machine-id"), "the host's /etc is visible: %s", printable(said))
			if box == "neighbour" {
				t.check(strings.Contains(said, "kept-"+t.nonce), "the neighbour's file is lost: %s", printable(said))
			}
		}
		return nil
	}
}

// edit replaces a pattern in the files that match, at least once.
func (c *installation) edit(files, pattern, text string) error {
	list, err := filepath.Glob(c.state(files))
	if err != nil {
		return err
	}
	re := regexp.MustCompile(pattern)
	edits := 0
	for _, path := range list {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if now := re.ReplaceAll(b, []byte(text)); !bytes.Equal(now, b) {
			edits++
			if err := os.WriteFile(path, now, 0o600); err != nil {
				return err
			}
		}
	}
	if edits == 0 {
		return fmt.Errorf("none of %d files %s has %s", len(list), files, pattern)
	}
	return nil
}

func editInterpreters(c *installation) error {
	return c.edit("images/interpreters.json", `"needs":\s*\[`, fmt.Sprintf(`"needs": [%q, "/etc", "/root", "/home",`, c.bait.dir))
}

func editImage(pattern, text string) func(*installation) error {
	return func(c *installation) error { return c.edit("images/*.json", pattern, text) }
}

// recordFrame matches a record. Its groups are the checksum and what that is about.
var recordFrame = regexp.MustCompile(`^\{"format":1,"sum":"(crc32c:[0-9a-f]{8})","record":(.*)\}\n$`)

// editRecord changes members of a record and repairs its checksum.
func editRecord(path string, members map[string]any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	m := recordFrame.FindSubmatch(b)
	if m == nil || sumOf(m[2]) != string(m[1]) {
		return fmt.Errorf("%s is no record: %s", path, printable(string(b)))
	}
	record := map[string]any{}
	if err := json.Unmarshal(m[2], &record); err != nil {
		return err
	}
	for k, v := range members {
		record[k] = v
	}
	body, err := json.Marshal(record)
	if err != nil {
		return err
	}
	return os.WriteFile(path, fmt.Appendf(nil, "{\"format\":1,\"sum\":%q,\"record\":%s}\n", sumOf(body), body), 0o600)
}

// victims lists the directories of the victim's data, or with name files of its record.
func (c *installation) victims(name string) ([]string, error) {
	records, err := filepath.Glob(c.state("snapshots", "records", "*"))
	if err != nil {
		return nil, err
	}
	for _, dir := range records {
		b, err := os.ReadFile(filepath.Join(dir, "saved.json"))
		if err == nil && bytes.Contains(b, []byte(`"victim"`)) {
			return filepath.Glob(filepath.Join(dir, name))
		}
	}
	return nil, fmt.Errorf("none of %d records is the victim's", len(records))
}

func editRecords(c *installation) error {
	list, err := c.victims("*.json")
	if err != nil {
		return err
	}
	mark := "../../../../../../../../../tmp/" + markName(c.nonce)
	for i, path := range list {
		if err := editRecord(path, []map[string]any{
			{"template": mark, "flavor": mark, "name": mark},
			{"bytes": int64(1) << 45, "pending": int64(1) << 45, "template": "../../x", "flavor": "\x1b[2J"},
		}[i%2]); err != nil {
			return err
		}
	}
	// Another record claims the neighbour's id.
	from, to := filepath.Dir(list[0]), c.state("snapshots", "records", "copy-of-the-victim")
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return err
	}
	return errors.Join(os.Chmod(to, 0o700), editRecord(filepath.Join(to, "saved.json"), map[string]any{"box_id": mark}))
}

// archives breaks the victim's memory, so that it wakes with its files, and returns its
// archive and the description of that.
func (c *installation) archives() (archive, description string, err error) {
	dirs, err := c.victims("data-*")
	if err != nil || len(dirs) == 0 {
		return "", "", fmt.Errorf("the victim has no data: %w", err)
	}
	path, err := largest(dirs[0])
	if err != nil {
		return "", "", err
	}
	return filepath.Join(dirs[0], "home.tar"), filepath.Join(dirs[0], "home.json"), os.Truncate(path, 0)
}

func editArchive(c *installation) error {
	archive, description, err := c.archives()
	if err != nil {
		return err
	}
	mark := markName(c.nonce)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{
		{Name: "../../../../../../tmp/" + mark, Typeflag: tar.TypeReg}, {Name: "/tmp/" + mark, Typeflag: tar.TypeReg},
		{Name: "root", Linkname: "/", Typeflag: tar.TypeSymlink}, {Name: "root/tmp/" + mark, Typeflag: tar.TypeReg},
		{Name: "secret", Linkname: c.bait.file(), Typeflag: tar.TypeLink}, {Name: "disk", Typeflag: tar.TypeBlock, Devmajor: 8},
		{Name: "sh", Mode: 0o6755, Typeflag: tar.TypeReg}, {Name: "\x1b[2J", Typeflag: tar.TypeReg},
	} {
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			return err
		}
	}
	if err := errors.Join(w.Close(), os.WriteFile(archive, b.Bytes(), 0o600)); err != nil {
		return err
	}
	return reseat(description, b.Bytes())
}

// exchangeArchive puts something else in place of the archive.
func exchangeArchive(put func(c *installation, path string) error) func(*installation) error {
	return func(c *installation) error {
		archive, description, err := c.archives()
		if err != nil {
			return err
		}
		secret, err := os.ReadFile(c.bait.file())
		if err != nil {
			return err
		}
		return errors.Join(os.Remove(archive), put(c, archive), reseat(description, secret))
	}
}

// reseat makes the description of an archive right for its new content.
func reseat(description string, content []byte) error {
	b, err := os.ReadFile(description)
	if err != nil {
		return err
	}
	info := map[string]any{}
	if err := json.Unmarshal(b, &info); err != nil {
		return err
	}
	info["bytes"] = len(content)
	info["sum"] = fmt.Sprintf("crc32c:%08x", crc32.Checksum(content, crc32.MakeTable(crc32.Castagnoli)))
	if b, err = json.Marshal(info); err != nil {
		return err
	}
	return os.WriteFile(description, b, 0o600)
}

// replacedAgent exchanges the installed agent for a program of the same size, mode and
// times.
func replacedAgent(ctx context.Context, t *trial) error {
	if t.cfg.Program == "" {
		return skip("the run has no program to start")
	}
	dir, err := t.tempDir("state")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	run := func() string {
		ctx, cancel := context.WithTimeout(ctx, serverTimeout)
		defer cancel()
		out, err := t.rig.server.program(ctx, dir, "run", "--", "/bin/echo", t.nonce).CombinedOutput()
		return fmt.Sprintf("%s (%v)", out, err)
	}
	if said := run(); !strings.Contains(said, t.nonce) {
		return fmt.Errorf("run a command: %s", printable(said))
	}
	agents, err := filepath.Glob(filepath.Join(dir, "state", "agent", "guest-*"))
	if err != nil || len(agents) != 1 {
		return fmt.Errorf("%d agents are installed, %w", len(agents), err)
	}
	genuine, err := os.ReadFile(agents[0])
	if err != nil {
		return err
	}
	for name, replace := range map[string]func([]byte) []byte{
		"a script": func(b []byte) []byte { copy(b, "#!/bin/sh\nexit 0\n"); return b },
		"one bit":  func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
		"its end":  func(b []byte) []byte { return b[:len(b)-1] },
		"a longer": func(b []byte) []byte { return append(b, 0) },
	} {
		info, err := os.Stat(agents[0])
		if err != nil {
			return err
		}
		if err := os.WriteFile(agents[0], replace(bytes.Clone(genuine)), 0o755); err != nil {
			return err
		}
		if err := os.Chtimes(agents[0], info.ModTime(), info.ModTime()); err != nil {
			return err
		}
		said := run()
		t.check(strings.Contains(said, t.nonce), "%s: the box does not boot: %s", name, printable(said))
		now, err := os.ReadFile(agents[0])
		t.check(err == nil && bytes.Equal(now, genuine), "%s: the replaced agent stays", name)
	}
	return nil
}

// reusedID makes boxes with the id of one that was stopped.
func reusedID(ctx context.Context, t *trial) error {
	s, id, end, err := t.guardedBox(ctx, "alice")
	if err != nil {
		return err
	}
	if _, err := s.shell(ctx, "alice", id, "echo "+t.bait.secret+" | tee secret /tmp/secret /dev/shm/secret; (sleep 1000 "+t.bait.secret+" &)"); err != nil {
		return err
	}
	end()
	for _, owner := range []string{"bob", "alice"} {
		said, err := s.shell(ctx, owner, id, "cat secret /tmp/secret /dev/shm/secret /proc/*/cmdline; ls -A /home/user /tmp; echo "+t.nonce)
		if err != nil || !strings.Contains(said, t.nonce) {
			return fmt.Errorf("make a box again: %w: %s", err, printable(said))
		}
		t.held(1)
		t.bait.checkText(t, "the new box of "+owner, said)
		// The judge notices a box that is left.
		_, _ = s.send(ctx, request{token: s.tokens[owner], body: tool("stop_session", map[string]any{"session_id": id})})
	}
	return nil
}
