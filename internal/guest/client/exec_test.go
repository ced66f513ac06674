//go:build linux

package client_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

func TestExecCommand(t *testing.T) {
	l, g := newConn(t)
	for _, tc := range []struct {
		name           string
		x              protocol.Exec
		stdin          string
		code           int
		stdout, stderr string
		signal         string
		stopped        string
	}{
		{name: "stdout", x: protocol.Exec{Argv: []string{"echo", "hello world"}}, stdout: "hello world\n"},
		{name: "shell", x: protocol.Exec{Shell: "echo a; echo b >&2; exit 7"}, code: 7, stdout: "a\n", stderr: "b\n"},
		{name: "home", x: protocol.Exec{Shell: "pwd"}, stdout: g.home + "\n"},
		{name: "env", x: protocol.Exec{Shell: "echo $X $HOME", Env: []string{"X=y"}}, stdout: "y " + g.home + "\n"},
		// The first 28 signals: make leaves 32 and 33, which belong to the C library,
		// ignored in all that it starts.
		{name: "signals", x: protocol.Exec{Shell: "grep -E 'Sig(Ign|Blk)' /proc/self/status | sed -E 's/\t.*(.{7})$/ \\1/'; yes | head -n 1"},
			stdout: "SigBlk: 0000000\nSigIgn: 0000000\ny\n"},
		{name: "descriptors", x: protocol.Exec{Argv: []string{"ls", "/proc/self/fd"}}, stdout: "0\n1\n2\n3\n"},
		{name: "session", x: protocol.Exec{Shell: "test $(ps -o sid= $$) = $$ && test $(ps -o pgid= $$) = $$"}},
		{name: "directory", x: protocol.Exec{Shell: "pwd", Dir: "/usr"}, stdout: "/usr\n"},
		{name: "core", x: protocol.Exec{Shell: "ulimit -c"}, stdout: "0\n"},
		{name: "stdin", x: protocol.Exec{Argv: []string{"cat"}}, stdin: "some input", stdout: "some input"},
		{name: "no stdin", x: protocol.Exec{Argv: []string{"cat"}}},
		{name: "not found", x: protocol.Exec{Argv: []string{"no-such-program"}}, code: 127, stderr: "no-such-program: command not found\n"},
		{name: "not found by path", x: protocol.Exec{Argv: []string{"./nope"}}, code: 127, stderr: "./nope: no such file or directory\n"},
		{name: "not executable", x: protocol.Exec{Argv: []string{"/etc/passwd"}}, code: 126, stderr: "/etc/passwd: permission denied\n"},
		{name: "directory", x: protocol.Exec{Argv: []string{"/etc"}}, code: 126, stderr: "/etc: is a directory\n"},
		{name: "signal", x: protocol.Exec{Shell: "kill -SEGV $$"}, code: 139, signal: "SEGV"},
		{name: "timeout", x: protocol.Exec{Shell: "echo x; sleep 100", TimeoutMS: 200}, code: 143, signal: "TERM", stdout: "x\n", stopped: "timeout"},
		{name: "ignores TERM", x: protocol.Exec{Shell: "trap '' TERM INT HUP; echo x; while :; do sleep 0.1; done", TimeoutMS: 200, GraceMS: 200}, code: 137, signal: "KILL", stdout: "x\n", stopped: "timeout"},
		{name: "stops itself", x: protocol.Exec{Shell: "kill -STOP $$; sleep 100", TimeoutMS: 200, GraceMS: 200}, code: 143, signal: "TERM", stopped: "timeout"},
		{name: "grandchild holds the pipes", x: protocol.Exec{Shell: "echo x; setsid sleep 60 & exit 3"}, code: 3, stdout: "x\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var r record
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			start := time.Now()
			var in *strings.Reader
			if tc.stdin != "" {
				in = strings.NewReader(tc.stdin)
			}
			var res protocol.ExecResult
			var err error
			if in != nil {
				res, err = l.Exec(ctx, tc.x, in, &r)
			} else {
				res, err = l.Exec(ctx, tc.x, nil, &r)
			}
			if err != nil {
				t.Fatal(err)
			}
			if res.Code != tc.code || res.Signal != tc.signal || res.Stopped != tc.stopped {
				t.Errorf("got code %d, signal %q, stopped %q; want %d, %q, %q", res.Code, res.Signal, res.Stopped, tc.code, tc.signal, tc.stopped)
			}
			if string(r.out) != tc.stdout || string(r.err) != tc.stderr {
				t.Errorf("got stdout %q, stderr %q; want %q, %q", r.out, r.err, tc.stdout, tc.stderr)
			}
			if d := time.Since(start); d > 5*time.Second {
				t.Errorf("took %v", d)
			}
		})
	}
}

func TestExecErrors(t *testing.T) {
	l, _ := newConn(t)
	for _, tc := range []struct {
		x    protocol.Exec
		want protocol.Code
	}{
		{protocol.Exec{}, protocol.CodeInvalid},
		{protocol.Exec{Argv: []string{"x"}, Shell: "x"}, protocol.CodeInvalid},
		{protocol.Exec{Argv: []string{""}}, protocol.CodeInvalid},
		{protocol.Exec{Argv: []string{"echo", "a\x00b"}}, protocol.CodeInvalid},
		{protocol.Exec{Argv: []string{"true"}, Dir: "nowhere"}, protocol.CodeNotFound},
		{protocol.Exec{Argv: []string{"true"}, Dir: "/etc/passwd"}, protocol.CodeInvalid},
		{protocol.Exec{Argv: make([]string, 5000)}, protocol.CodeInvalid},
		{protocol.Exec{Shell: strings.Repeat("x", 300<<10)}, protocol.CodeTooLarge},
		{protocol.Exec{Argv: []string{"true"}, Stdin: true, Background: true}, protocol.CodeInvalid},
	} {
		var err error
		if tc.x.Stdin {
			_, err = l.Exec(t.Context(), tc.x, strings.NewReader("x"), nil)
		} else {
			_, err = l.Exec(t.Context(), tc.x, nil, nil)
		}
		if got := code(t, err); got != tc.want {
			t.Errorf("%.80s: got %v, want %q", fmt.Sprintf("%+v", tc.x), err, tc.want)
		}
	}
}
