//go:build linux

package attack

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// watchNames returns a function that ends the watch and lists the names that were made
// directly in a directory. The kernel keeps 16,384 of them.
func watchNames(dir string) (names func() []string, err error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_MOVED_TO); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return func() (list []string) {
		defer unix.Close(fd)
		p := make([]byte, 64<<10)
		for {
			n, err := unix.Read(fd, p)
			if err != nil {
				return list // no more
			}
			for b := p[:n]; len(b) >= unix.SizeofInotifyEvent; {
				size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
				list = append(list, string(bytes.TrimRight(b[unix.SizeofInotifyEvent:size], "\x00")))
				b = b[size:]
			}
		}
	}, nil
}

// plantedLinks runs commands twice with a TMPDIR that everybody can write, and plants links
// to a file of the user under the names that they made the first time.
func plantedLinks(ctx context.Context, t *trial) error {
	if t.cfg.Program == "" {
		return skip("the run has no program to start")
	}
	dir, err := t.tempDir("tmp")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	shared, victim, home := filepath.Join(dir, "shared"), filepath.Join(dir, "victim"), filepath.Join(dir, "home")
	for _, d := range []string{shared, home} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return err
		}
	}
	if err := os.Chmod(shared, 0o777|os.ModeSticky); err != nil {
		return err
	}
	if err := os.WriteFile(victim, []byte(t.nonce), 0o600); err != nil {
		return err
	}
	var before []string
	for range 2 {
		made, err := watchNames(shared)
		if err != nil {
			return skip("no inotify: %v", err)
		}
		for _, args := range [][]string{{"run", "--", "/bin/true"}, {"doctor", "--box"}} {
			ctx, cancel := context.WithTimeout(ctx, serverTimeout)
			cmd := t.rig.server.program(ctx, home, args...)
			cmd.Env = append(cmd.Env, "TMPDIR="+shared)
			out, err := cmd.CombinedOutput()
			cancel()
			if err != nil && ctx.Err() != nil {
				return fmt.Errorf("glovebox %s: %w: %s", args[0], err, printable(tail(string(out), 300)))
			}
		}
		names := made()
		for _, name := range names {
			t.check(!slices.Contains(before, name), "%s is made in TMPDIR each time: another user can plant a link there", name)
			path := filepath.Join(shared, name)
			if err := errors.Join(os.RemoveAll(path), os.Symlink(victim, path)); err != nil {
				return err
			}
		}
		before = append(before, names...)
	}
	got, err := os.ReadFile(victim)
	t.check(err == nil && string(got) == t.nonce, "the file that the links led to has changed: %q, %v", got, err)
	return nil
}

// foreignPath starts commands as root whose PATH begins with a directory of another user,
// in which programs of many names wait.
func foreignPath(ctx context.Context, t *trial) error {
	if t.cfg.Program == "" {
		return skip("the run has no program to start")
	}
	if !hostRoot() {
		return skip("an ordinary user runs the programs on PATH anyway")
	}
	dir, err := t.tempDir("path")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	foreign, mark, home := filepath.Join(dir, "bin"), filepath.Join(dir, "mark"), filepath.Join(dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(foreign, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"python3", "python", "node", "nodejs", "systemctl", "newuidmap", "newgidmap", "mount", "umount", "true", "sh", "git", "runsc", "xdg-open", "getent"} {
		script := "#!/bin/sh\necho \"$0 ran as $(/usr/bin/id -u)\" >> " + mark + "\nexit 1\n"
		if err := os.WriteFile(filepath.Join(foreign, name), []byte(script), 0o755); err != nil {
			return err
		}
	}
	if err := os.Chown(foreign, nobody, nobody); err != nil {
		return err
	}
	for _, args := range [][]string{{"doctor"}, {"run", "--", "/bin/true"}, {"serve", "--port", "0", "--state-dir", "/dev/null/x"}} {
		ctx, cancel := context.WithTimeout(ctx, serverTimeout)
		cmd := t.rig.server.program(ctx, home, args...)
		cmd.Env = append(cmd.Env, "PATH="+foreign+":/usr/local/bin:/usr/bin:/bin")
		out, err := cmd.CombinedOutput()
		cancel()
		ran, _ := os.ReadFile(mark) // nothing ran if it is missing
		t.check(len(ran) == 0, "glovebox %s: %s (%v)", args[0], printable(string(ran)), err)
		if args[0] == "doctor" {
			t.check(strings.Contains(string(out), foreign), "doctor does not warn of %s: %s", foreign, printable(tail(string(out), 600)))
		}
	}
	return nil
}

// openSockets looks for sockets on which a server and the processes of a box listen.
func openSockets(ctx context.Context, t *trial) error {
	s, err := t.open(ctx)
	if err != nil {
		return err
	}
	c, err := t.boot(ctx, shape{})
	if err != nil {
		return err
	}
	if s.cmd != nil {
		t.checkSockets(s.cmd.Process.Pid)
	}
	for _, m := range c.members() {
		t.checkSockets(m.pid)
	}
	return nil
}

// checkSockets records sockets on which a process listens and that another user can reach.
func (t *trial) checkSockets(pid int) {
	own := map[string]bool{}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.held(1) // not ours to look at, and so nobody else's
		return
	}
	for _, fd := range fds {
		to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name())) // "" if it was closed
		if inode, ok := strings.CutPrefix(to, "socket:["); ok {
			own[strings.TrimSuffix(inode, "]")] = true
		}
	}
	t.held(1)
	for _, f := range procTable(pid, "unix") {
		const accepts = "00010000"
		if len(f) < 8 || f[3] != accepts || !own[f[6]] {
			continue
		}
		reachable := strings.HasPrefix(f[7], "@")
		if !reachable {
			info, err := os.Stat(filepath.Dir(f[7]))
			reachable = err != nil || info.Mode().Perm()&0o011 != 0
		}
		t.check(!reachable, "process %d listens on the Unix socket %s", pid, f[7])
	}
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6"} {
		for _, f := range procTable(pid, table) {
			listens := len(f) > 9 && (f[3] == "0A" || f[3] == "07" && strings.HasPrefix(table, "udp"))
			if !listens || !own[f[9]] {
				continue
			}
			addr, ok := procAddress(f[1])
			t.check(ok && addr.IsLoopback(), "process %d listens on %s %s (%v)", pid, table, f[1], addr)
		}
	}
}

// procTable returns the fields of the lines of /proc/<pid>/net/<name>.
func procTable(pid int, name string) (lines [][]string) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, name)) // no lines if the protocol is missing
	for line := range strings.Lines(string(b)) {
		lines = append(lines, strings.Fields(line))
	}
	return lines
}

// procAddress decodes the address in /proc/net/tcp: words of 32 bits in the order of the
// processor.
func procAddress(s string) (netip.Addr, bool) {
	word, _, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(word)
	if err != nil {
		return netip.Addr{}, false
	}
	for i := 0; i+4 <= len(b); i += 4 {
		slices.Reverse(b[i : i+4])
	}
	addr, ok := netip.AddrFromSlice(b)
	return addr.Unmap(), ok
}
