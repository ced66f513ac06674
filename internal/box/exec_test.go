package box

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

func TestExec(t *testing.T) {
	f := newFixture(t, nil)
	b := f.session(t, "", "x")
	for _, tt := range []struct {
		name           string
		req            ExecRequest
		code           int
		stdout, stderr string
	}{
		{"argv", ExecRequest{Argv: []string{"echo", "a b", "$HOME"}}, 0, "a b $HOME\n", ""},
		{"shell", ExecRequest{Shell: "echo a | tr a b; exit 3"}, 3, "b\n", ""},
		{"stdin", ExecRequest{Argv: []string{"cat"}, Stdin: strings.NewReader("in")}, 0, "in", ""},
		{"env and dir", ExecRequest{Shell: "echo $A; pwd", Env: []string{"A=b"}, Dir: "/tmp"}, 0, "b\n/tmp\n", ""},
		{"stderr cleaned", ExecRequest{Shell: `printf '\033[31mx\000y' >&2`}, 0, "", "xy"},
	} {
		res, err := b.Exec(t.Context(), tt.req)
		if err != nil || res.ExitCode != tt.code || res.Stdout != tt.stdout || res.Stderr != tt.stderr || len(res.Notes) != 0 {
			t.Errorf("%s: got %+v, %v", tt.name, res, err)
		}
	}
	res, err := b.Exec(t.Context(), ExecRequest{Argv: []string{"no-such-program"}})
	if err != nil || res.ExitCode != 127 || len(res.Notes) != 1 {
		t.Errorf("unknown program: got %+v, %v", res, err)
	}
	res, err = b.Exec(t.Context(), ExecRequest{Shell: "exit 3"})
	if err != nil || len(res.Notes) != 0 || res.ExitCode != 3 {
		t.Errorf("failure without words: got %+v, %v", res, err)
	}
	res = b.execResult("", &protocol.ExecResult{Code: 137, Signal: "KILL", Stopped: "oom"}, newCollector(b.env.cfg(), nil), 0)
	if len(res.Notes) != 1 || !strings.Contains(res.Notes[0], "more memory than the 1024 MB of flavor 'small'") {
		t.Errorf("out of memory: got %+v", res)
	}
	_, err = b.Exec(t.Context(), ExecRequest{Argv: strings.Fields(strings.Repeat("x ", 5000))})
	wantCode(t, err, CodeInvalid, "5000 arguments")
	_, err = b.Exec(t.Context(), ExecRequest{})
	wantCode(t, err, CodeInvalid, "Missing command")
	_, err = b.Exec(t.Context(), ExecRequest{Argv: []string{"x"}, Shell: "y"})
	wantCode(t, err, CodeInvalid)
}

func TestBackground(t *testing.T) {
	f := newFixture(t, nil)
	b := f.session(t, "", "x")
	p, err := b.Exec(t.Context(), ExecRequest{Shell: "echo one; sleep 0.3; echo two; exec sleep 60", Background: true})
	if err != nil || !p.Running || p.ID == "" || p.PID == 0 {
		t.Fatalf("start: got %+v, %v", p, err)
	}
	ps, err := b.Processes(t.Context())
	if err != nil || len(ps) != 1 || ps[0].ID != p.ID || !ps[0].Running {
		t.Errorf("processes: got %+v, %v", ps, err)
	}
	res, err := b.Attach(t.Context(), AttachRequest{ID: p.ID, Follow: true, Timeout: 800 * time.Millisecond})
	if err != nil || !res.Running || res.Stdout != "one\ntwo\n" || res.StdoutBytes != 8 {
		t.Errorf("follow: got %+v, %v", res, err)
	}
	res, err = b.Attach(t.Context(), AttachRequest{ID: p.ID, Stdout: 4})
	if err != nil || !res.Running || res.Stdout != "two\n" {
		t.Errorf("from an offset: got %+v, %v", res, err)
	}
	if err := b.Signal(t.Context(), p.ID, "KILL"); err != nil {
		t.Error(err)
	}
	res, err = b.Attach(t.Context(), AttachRequest{ID: p.ID, Follow: true})
	if err != nil || res.Running || res.ExitCode != 137 {
		t.Errorf("after the kill: got %+v, %v", res, err)
	}
	_, err = b.Attach(t.Context(), AttachRequest{ID: "nope"})
	wantCode(t, err, CodeNotFound)
	_, err = b.Attach(t.Context(), AttachRequest{ID: p.ID, Stdout: -1})
	wantCode(t, err, CodeInvalid)
	wantCode(t, b.Signal(t.Context(), "nope", "TERM"), CodeNotFound)
	wantCode(t, b.Signal(t.Context(), p.ID, "NOPE"), CodeInvalid)
}

func TestFiles(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.MaxFileSize = 1000 })
	b := f.session(t, "", "x")
	ctx := t.Context()
	info, err := b.WriteFile(ctx, WriteRequest{Path: "dir/a.txt", Parents: true}, strings.NewReader("hello"))
	if err != nil || info.Size != 5 || len(info.SHA256) != 64 || info.Path != f.parts.Machines.Home+"/dir/a.txt" {
		t.Fatalf("write: got %+v, %v", info, err)
	}
	wantOut(t, b, "print(open('dir/a.txt').read())", "hello\n")
	var got bytes.Buffer
	if _, err := b.ReadFile(ctx, ReadRequest{Path: "dir/a.txt", Offset: 1, Limit: 3}, &got); err != nil || got.String() != "ell" {
		t.Errorf("read: got %q, %v", &got, err)
	}
	if info, err := b.Stat(ctx, "dir"); err != nil || info.Type != "directory" {
		t.Errorf("stat: got %+v, %v", info, err)
	}
	if _, err := b.Mkdir(ctx, MkdirRequest{Path: "dir/sub"}); err != nil {
		t.Error(err)
	}
	list, err := b.List(ctx, ListRequest{Path: "dir", Depth: 1})
	if err != nil || len(list.Entries) != 2 || list.Entries[0].Name != "a.txt" {
		t.Errorf("list: got %+v, %v", list, err)
	}
	var tar bytes.Buffer
	if err := b.Archive(ctx, "dir", &tar); err != nil {
		t.Error(err)
	}
	if _, err := b.Mkdir(ctx, MkdirRequest{Path: "copy"}); err != nil {
		t.Error(err)
	}
	if err := b.Extract(ctx, "copy", &tar); err != nil {
		t.Error(err)
	}
	if list, err := b.List(ctx, ListRequest{Path: "copy", Depth: 3}); err != nil || !strings.Contains(fmt.Sprint(list.Entries), "a.txt") {
		t.Errorf("extracted: got %+v, %v", list, err)
	}

	_, err = b.ReadFile(ctx, ReadRequest{Path: "nope"}, io.Discard)
	wantCode(t, err, CodeFileNotFound, "nope")
	_, err = b.List(ctx, ListRequest{Path: "nope"})
	wantCode(t, err, CodeFileNotFound)
	_, err = b.WriteFile(ctx, WriteRequest{Path: "/etc/x"}, strings.NewReader(""))
	wantCode(t, err, CodePathNotAllowed)
	_, err = b.ReadFile(ctx, ReadRequest{Path: strings.Repeat("../", 20) + "etc/passwd"}, io.Discard)
	wantCode(t, err, CodePathNotAllowed)
	_, err = b.WriteFile(ctx, WriteRequest{Path: "dir/a.txt", Exclusive: true}, strings.NewReader(""))
	wantCode(t, err, CodeFileExists)
	_, err = b.WriteFile(ctx, WriteRequest{Path: "big", MaxBytes: 1 << 40}, strings.NewReader(strings.Repeat("x", 1001)))
	wantCode(t, err, CodeFileTooLarge)
	if err := b.Remove(ctx, RemoveRequest{Path: "dir", Recursive: true}); err != nil {
		t.Error(err)
	}
	wantCode(t, b.Remove(ctx, RemoveRequest{Path: "dir"}), CodeFileNotFound)
}
