//go:build linux

package client_test

import (
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

func TestRunCode(t *testing.T) {
	l, _ := newConn(t)
	run := func(code string) (protocol.RunResult, *record) {
		t.Helper()
		var r record
		res, err := l.Run(t.Context(), protocol.Run{Kernel: "main", Language: "python", TimeoutMS: 20_000}, []byte(code), &r)
		if err != nil {
			t.Fatalf("run %q: %v", code, err)
		}
		return res, &r
	}
	res, r := run("x = 6\nprint(x * 7)")
	if !res.OK || !res.Fresh || string(r.out) != "42\n" {
		t.Errorf("got %+v, stdout %q", res, r.out)
	}
	res, r = run("x")
	if !res.OK || res.Fresh || len(r.displays) != 1 || r.displays[0].Data["text/plain"] != "6" || !r.displays[0].Result {
		t.Errorf("got %+v, displays %+v", res, r.displays)
	}
	res, _ = run("1/0")
	if res.OK || res.Error == nil || res.Error.Name != "ZeroDivisionError" {
		t.Errorf("got %+v", res)
	}
	res, _ = run("import os; os._exit(3)")
	if res.OK || res.Lost != "exited" || res.LostDetail != "exit code 3" {
		t.Errorf("got %+v", res)
	}
	res, r = run("print('again')")
	if !res.OK || !res.Fresh || string(r.out) != "again\n" {
		t.Errorf("got %+v, stdout %q", res, r.out)
	}
}

func BenchmarkRun(b *testing.B) {
	l, _ := newConn(b)
	x := protocol.Run{Kernel: "main", Language: "python"}
	var r record
	for b.Loop() {
		r.out = r.out[:0]
		res, err := l.Run(b.Context(), x, []byte("print(1)"), &r)
		if err != nil || !res.OK || string(r.out) != "1\n" {
			b.Fatalf("got %+v, %v, %q", res, err, r.out)
		}
	}
}

func BenchmarkPing(b *testing.B) {
	l, _ := newConn(b)
	for b.Loop() {
		if _, err := l.Ping(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkExecTrue(b *testing.B) {
	l, _ := newConn(b)
	for b.Loop() {
		if _, err := l.Exec(b.Context(), protocol.Exec{Argv: []string{"true"}}, nil, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// TestRun_LongTraceback checks that an error of any size arrives.
func TestRun_LongTraceback(t *testing.T) {
	l, _ := newConn(t)
	for _, c := range []string{
		`raise ValueError("<" * 10_000_000)`,
		`raise ValueError("\x01\udcff\n" * 1_000_000)`,
		"def f(n):\n    # \x02" + strings.Repeat("<\x02&", 300) + "\n    f(n + 1)" + strings.Repeat("\x03", 300) + "\nf(0)",
	} {
		res, err := l.Run(t.Context(), protocol.Run{Kernel: "main", Language: "python", TimeoutMS: 20_000}, []byte(c), nil)
		if err != nil || res.OK || res.Error == nil || res.Error.Traceback == "" {
			t.Errorf("%.30q: got %+v, %v", c, res, err)
		}
	}
}
