//go:build linux

package attack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// nobody is the other user of the machine.
const nobody = 65534

func localUserClass() class {
	return class{
		name:  "local-user",
		about: "Another user of the machine attacks a server and its boxes.",
		attacks: []Attack{
			{Name: "proc-of-sentry", Claim: "memory, files and environment of a box's processes are closed to other users, who cannot trace them", run: procOfSentry},
			{Name: "signal-sentry", Claim: "other users cannot signal a box's processes", run: signalSentry},
			{Name: "state-directory", Claim: "other users cannot read or write the state directory", run: stateDirectory},
			{Name: "open-state-directory", Claim: "a server refuses a state directory that others can write", run: refusesState(func(dir string) error { return os.Chmod(dir, 0o777) })},
			{Name: "foreign-state-directory", Claim: "a server refuses a state directory of another user", run: foreignState},
			{Name: "linked-state-directory", Claim: "a server refuses a state directory below one that others can replace", run: replaceableState},
			{Name: "squatted-port", Claim: "a server whose port another program has taken refuses to start", run: squattedPort},
			{Name: "planted-links", Claim: "symbolic links planted in TMPDIR are not followed: no name there can be foreseen", run: plantedLinks},
			{Name: "path-of-another-user", Claim: "root runs no program from directories of PATH that another user can write, as sudo may leave them", run: foreignPath},
			{Name: "sockets", Claim: "no process of a server or box listens where other users reach it, but on the port over loopback", run: openSockets},
			{Name: "writable-tokens", Claim: "a server refuses a file of tokens that others can write", run: writableTokens},
		},
	}
}

// asNobody runs a shell line as another user and returns its output. Only root can.
func asNobody(ctx context.Context, line string, args ...string) (string, error) {
	if !hostRoot() {
		return "", skip("only root can act as another user")
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", line, "sh"}, args...)...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if _, exited := errors.AsType[*exec.ExitError](err); exited {
		err = nil
	}
	return string(out), err
}

func procOfSentry(ctx context.Context, t *trial) error {
	c, err := t.boot(ctx, shape{})
	if err != nil {
		return err
	}
	for _, m := range c.members() {
		for _, file := range []string{"environ", "mem", "fd", "root", "cwd", "maps", "auxv", "io"} {
			path := fmt.Sprintf("/proc/%d/%s", m.pid, file)
			// Nothing is mapped at the beginning of mem: opening it needs the right to trace.
			out, err := asNobody(ctx, `if [ -d "$1" ]; then ls "$1/" >/dev/null 2>&1 && echo opened; elif [ "${1##*/}" = mem ]; then (exec 3<"$1") 2>/dev/null && echo opened; else dd if="$1" bs=1 count=1 >/dev/null 2>&1 && echo opened; fi`, path)
			if err != nil {
				return err
			}
			t.check(!strings.Contains(out, "opened"), "another user can open %s of %s", file, m)
		}
	}
	return nil
}

func signalSentry(ctx context.Context, t *trial) error {
	c, err := t.boot(ctx, shape{})
	if err != nil {
		return err
	}
	for _, m := range c.members() {
		out, err := asNobody(ctx, `kill -CONT "$1" 2>/dev/null && echo signalled`, fmt.Sprint(m.pid))
		if err != nil {
			return err
		}
		t.check(!strings.Contains(out, "signalled"), "another user can signal %s", m)
	}
	return nil
}

// stateDirectory checks that other users can neither open private files in the state directory
// nor write to it, if they can reach it at all.
func stateDirectory(ctx context.Context, t *trial) error {
	if _, err := t.boot(ctx, shape{}); err != nil {
		return err
	}
	out, err := asNobody(ctx, `find "$1" \( -path '*/images/*' -o -path '*/agent/*' -o -path '*/roots/*' \) -prune -o \( -type f -o -type s \) \( -readable -o -writable \) -print 2>/dev/null | head -5`, t.cfg.StateDir)
	if err != nil {
		return err
	}
	t.check(strings.TrimSpace(out) == "", "another user can open %s", printable(out))
	out, err = asNobody(ctx, `find "$1" -writable -print 2>/dev/null | head -5`, t.cfg.StateDir)
	t.check(strings.TrimSpace(out) == "", "another user can write %s", printable(out))
	return err
}

// refusesState starts a server on a state directory that prepare has made unsafe.
func refusesState(prepare func(dir string) error) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		dir, err := t.tempDir("state")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if err := prepare(dir); err != nil {
			return err
		}
		return t.refusesToStart(ctx, "serve", "--port", "0", "--state-dir", dir)
	}
}

// refusesToStart checks that a command ends by itself, with an error.
func (t *trial) refusesToStart(ctx context.Context, args ...string) error {
	if t.cfg.Program == "" {
		return skip("the run has no program to start a server with")
	}
	home, err := t.tempDir("home-" + newNonce())
	if err != nil {
		return err
	}
	defer os.RemoveAll(home)
	const startTime = 20 * time.Second
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	cmd := t.rig.server.program(ctx, home, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	t.check(ctx.Err() == nil && err != nil, "the server starts: %v, %s", err, printable(tail(out.String(), 600)))
	t.check(strings.Contains(out.String(), "glovebox: error: "), "the server gives no reason: %s", printable(tail(out.String(), 600)))
	return nil
}

func foreignState(ctx context.Context, t *trial) error {
	if !hostRoot() {
		return skip("only root can give a directory to another user")
	}
	return refusesState(func(dir string) error { return os.Chown(dir, nobody, nobody) })(ctx, t)
}

// replaceableState has a parent in which others can rename.
func replaceableState(ctx context.Context, t *trial) error {
	dir, err := t.tempDir("parent")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o777); err != nil {
		return err
	}
	return t.refusesToStart(ctx, "serve", "--port", "0", "--state-dir", filepath.Join(dir, "state"))
}

func squattedPort(ctx context.Context, t *trial) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	return t.refusesToStart(ctx, "serve", "--port", fmt.Sprint(l.Addr().(*net.TCPAddr).Port))
}

func writableTokens(ctx context.Context, t *trial) error {
	dir, err := t.tempDir("tokens")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "tokens.toml")
	if t.cfg.Program == "" {
		return skip("the run has no program to start a server with")
	}
	if out, err := t.rig.server.program(ctx, dir, "token", "new", "--name", "alice", "--tokens-file", file).CombinedOutput(); err != nil {
		return fmt.Errorf("make a token: %w: %s", err, printable(string(out)))
	}
	if err := os.Chmod(file, 0o666); err != nil { // regardless of the umask
		return err
	}
	return t.refusesToStart(ctx, "serve", "--port", "0", "--tokens-file", file)
}
