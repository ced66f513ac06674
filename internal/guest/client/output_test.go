//go:build linux

package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// TestCapture_HeadAndTail checks which part of a long output is sent, and that the file
// has all of it.
func TestCapture_HeadAndTail(t *testing.T) {
	l, _ := newConn(t)
	capture := protocol.Capture{Head: 1000, Tail: 500}
	for _, n := range []int{0, 1, 999, 1000, 1001, 1500, 1501, 70_000, 66_536 + 1000, 3_000_000} {
		want := bytes.Repeat([]byte("0123456789\n"), n/11+1)[:n]
		var r record
		res, err := l.Exec(t.Context(), protocol.Exec{Argv: []string{"cat"}, Capture: capture}, bytes.NewReader(want), &r)
		if err != nil {
			t.Fatal(err)
		}
		out := res.Stdout
		if out.Bytes != int64(n) || out.Omitted != int64(max(0, n-1500)) || (out.Path != "") != (n > 1500) {
			t.Errorf("%d bytes: got %+v", n, out)
		}
		if n <= 1500 {
			if !bytes.Equal(r.out, want) {
				t.Errorf("%d bytes: got %d", n, len(r.out))
			}
			continue
		}
		if !bytes.Equal(r.out[:1000], want[:1000]) || !bytes.Equal(r.out[1000:], want[n-500:]) {
			t.Errorf("%d bytes: head or tail is wrong: %d bytes", n, len(r.out))
		}
		var whole bytes.Buffer
		if _, err := l.Read(t.Context(), protocol.Read{Path: out.Path}, &whole); err != nil || !bytes.Equal(whole.Bytes(), want) {
			t.Errorf("%d bytes: got %d in the file, %v", n, whole.Len(), err)
		}
	}
}

// TestSpoolFiles checks that the files of long outputs are bounded in size and
// number.
func TestSpoolFiles(t *testing.T) {
	l, g := newConn(t)
	x := protocol.Exec{Shell: "head -c 40000000 /dev/zero; seq 100000 >&2", Capture: protocol.Capture{Head: 10, Tail: 10}}
	res, err := l.Exec(t.Context(), x, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(res.Stdout.Path); err != nil || fi.Size() != 32<<20 || fi.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v", fi, err)
	}
	must(t, os.WriteFile(g.home+"/.outputs/mine", nil, 0o600))
	for range 15 {
		if _, err := l.Exec(t.Context(), protocol.Exec{Shell: "seq 100000; seq 100000 >&2", Capture: x.Capture}, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	names, _ := filepath.Glob(g.home + "/.outputs/*")
	if len(names) != 21 {
		t.Errorf("%d files are kept: %q", len(names), names)
	}
	// Files that the user puts in their place do no harm.
	must(t, os.RemoveAll(g.home+"/.outputs"))
	must(t, os.Symlink("/tmp", g.home+"/.outputs"))
	res, err = l.Exec(t.Context(), protocol.Exec{Shell: "seq 100000", Capture: x.Capture}, nil, nil)
	if err != nil || res.Stdout.Path != "" || res.Stdout.Omitted == 0 {
		t.Errorf("got %+v, %v", res, err)
	}
}

// TestOutput_Large moves 100 MB without a capture and with one.
func TestOutput_Large(t *testing.T) {
	l, _ := newConn(t)
	const n = 100_000_000
	for _, c := range []protocol.Capture{{}, {Head: 20_000, Tail: 10_000}} {
		count := &counter{}
		start := time.Now()
		res, err := l.Exec(t.Context(), protocol.Exec{Argv: []string{"head", "-c", fmt.Sprint(n), "/dev/zero"}, Capture: c}, nil, count)
		if err != nil || res.Stdout.Bytes != n {
			t.Fatalf("got %+v, %v", res, err)
		}
		want := n
		if c.Head > 0 {
			want = c.Head + c.Tail
		}
		if count.n != want {
			t.Errorf("got %d bytes, want %d", count.n, want)
		}
		t.Logf("%+v: %v", c, time.Since(start))
	}
}

type counter struct{ n int }

func (c *counter) Output(_ protocol.Channel, p []byte) { c.n += len(p) }
func (c *counter) Display(protocol.Display)            {}

// TestInput_Large streams 50 MB through a process.
func TestInput_Large(t *testing.T) {
	l, _ := newConn(t)
	const n = 50_000_000
	count := &counter{}
	res, err := l.Exec(t.Context(), protocol.Exec{Argv: []string{"cat"}}, io.LimitReader(zeros{}, n), count)
	if err != nil || res.Code != 0 || count.n != n {
		t.Errorf("got %+v, %v, %d bytes", res, err, count.n)
	}
	// A process that does not read all of its input is not blocked by it.
	for _, sh := range []string{"exit 4", "head -c 10; exit 4", "sleep 0.2; exit 4"} {
		res, err = l.Exec(t.Context(), protocol.Exec{Shell: sh}, zeros{}, nil)
		if err != nil || res.Code != 4 {
			t.Errorf("%s: got %+v, %v", sh, res, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	res, err = l.Exec(ctx, protocol.Exec{Shell: "sleep 100"}, zeros{}, nil)
	if err != nil || res.Stopped != "cancelled" {
		t.Errorf("got %+v, %v", res, err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestOperations_Cancel(t *testing.T) {
	l, _ := newConn(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var r record
	res, err := l.Exec(ctx, protocol.Exec{Shell: "trap 'echo bye; exit 9' TERM; echo on; while :; do sleep 0.05; done"}, nil, onOutput{&r, cancel})
	if err != nil || res.Stopped != "cancelled" || res.Code != 9 || string(r.out) != "on\nbye\n" {
		t.Errorf("got %+v, %v, %q", res, err, r.out)
	}
	// The interpreter may take time to start; only the run must end.
	if run, err := l.Run(t.Context(), protocol.Run{Kernel: "main", Language: "python"}, []byte("0"), nil); err != nil || !run.OK {
		t.Fatalf("got %+v, %v", run, err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	run, err := l.Run(ctx, protocol.Run{Kernel: "main", Language: "python"}, []byte("import time\nx = 1\nprint(x)\nwhile True: time.sleep(0.01)"), onOutput{&record{}, cancel})
	if err != nil || run.Stopped != "cancelled" || run.Lost != "" {
		t.Errorf("got %+v, %v", run, err)
	}
	run, err = l.Run(t.Context(), protocol.Run{Kernel: "main", Language: "python"}, []byte("x"), nil)
	if err != nil || !run.OK || run.Fresh {
		t.Errorf("after the interrupt: got %+v, %v", run, err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if _, err := l.Ping(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestBackgroundProcess(t *testing.T) {
	l, _ := newConn(t)
	start := func(sh string) string {
		t.Helper()
		res, err := l.Exec(t.Context(), protocol.Exec{Shell: sh, Background: true}, nil, nil)
		if err != nil || !res.Running || res.ID == "" {
			t.Fatalf("got %+v, %v", res, err)
		}
		return res.ID
	}
	id := start("for i in 1 2 3; do echo $i; echo e$i >&2; sleep 0.1; done; exit 5")
	var r record
	res, err := l.Attach(t.Context(), protocol.Attach{ID: id, Follow: true}, &r)
	if err != nil || res.Running || res.Code != 5 || string(r.out) != "1\n2\n3\n" || string(r.err) != "e1\ne2\ne3\n" {
		t.Errorf("got %+v, %v, %q, %q", res, err, r.out, r.err)
	}
	r = record{}
	res, err = l.Attach(t.Context(), protocol.Attach{ID: id, Stdout: 2, Stderr: 1000}, &r)
	if err != nil || string(r.out) != "2\n3\n" || len(r.err) != 0 || res.Stdout.Bytes != 6 || res.Stdout.Omitted != 0 {
		t.Errorf("replay: got %+v, %v, %q, %q", res, err, r.out, r.err)
	}

	id = start("head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end")
	r = record{}
	within(t, 20*time.Second, func() bool { // the process may end before its output has been read
		res, err := l.Attach(t.Context(), protocol.Attach{ID: id, Stdout: 3_000_005}, &record{})
		return ended(t, l, id) && err == nil && res.Stdout.Bytes == 3_000_005
	})
	res, err = l.Attach(t.Context(), protocol.Attach{ID: id, Follow: true}, &r)
	if err != nil || res.Stdout.Bytes != 3_000_005 || res.Stdout.Omitted+int64(len(r.out)) != 3_000_005 || !strings.HasSuffix(string(r.out), "x\nend\n") || len(r.out) > 1<<20 {
		t.Errorf("got %+v, %v, %d bytes", res, err, len(r.out))
	}

	id = start("trap '' TERM; echo up; sleep 100 & wait; sleep 100")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	res, err = l.Attach(ctx, protocol.Attach{ID: id, Follow: true}, onOutput{&record{}, cancel})
	if err != nil || !res.Running || res.Stopped != "" {
		t.Errorf("cancelled attach: got %+v, %v", res, err)
	}
	ps, err := l.PS(t.Context())
	if err != nil || len(ps.Processes) != 3 || ps.Processes[0].ID != id || !ps.Processes[0].Running || ps.Processes[2].Code != 5 {
		t.Errorf("got %+v, %v", ps, err)
	}
	must(t, l.Signal(t.Context(), protocol.Signal{ID: id, Signal: "KILL"}))
	res, err = l.Attach(t.Context(), protocol.Attach{ID: id, Follow: true}, nil)
	if err != nil || res.Running || res.Signal != "KILL" || res.Code != 137 {
		t.Errorf("got %+v, %v", res, err)
	}
	if err := l.Signal(t.Context(), protocol.Signal{ID: id, Signal: "TERM"}); code(t, err) != protocol.CodeNotFound {
		t.Errorf("got %v", err)
	}
	if err := l.Signal(t.Context(), protocol.Signal{ID: "p99", Signal: "TERM"}); code(t, err) != protocol.CodeNotFound {
		t.Errorf("got %v", err)
	}
	if err := l.Signal(t.Context(), protocol.Signal{ID: id, Signal: "9"}); code(t, err) != protocol.CodeInvalid {
		t.Errorf("got %v", err)
	}
	if _, err := l.Exec(t.Context(), protocol.Exec{Argv: []string{"no-such"}, Background: true}, nil, nil); code(t, err) != protocol.CodeStart {
		t.Errorf("got %v", err)
	}
	// A daemon does not delay the end of its starter, and survives although it prints.
	id = start("(for i in $(seq 20); do sleep 0.05; echo tick; done; touch survived) & echo started")
	res, err = l.Attach(t.Context(), protocol.Attach{ID: id, Follow: true}, nil)
	if err != nil || res.Running {
		t.Errorf("got %+v, %v", res, err)
	}
	within(t, 20*time.Second, func() bool { _, err := l.Stat(t.Context(), "survived"); return err == nil })
}

// An onOutput calls a function for each piece of output that it has recorded.
type onOutput struct {
	*record
	call func()
}

func (o onOutput) Output(ch protocol.Channel, p []byte) {
	o.record.Output(ch, p)
	o.call()
}

func within(t *testing.T, d time.Duration, ok func() bool) {
	t.Helper()
	polltest.Until(t, d, "the condition", ok)
}

// ended reports whether a background process has ended.
func ended(t *testing.T, l *client.Conn, id string) bool {
	t.Helper()
	ps, err := l.PS(t.Context())
	must(t, err)
	return !slices.ContainsFunc(ps.Processes, func(p protocol.Process) bool { return p.ID == id && p.Running })
}

// TestBackgroundProcessLimit checks the bound of recorded processes.
func TestBackgroundProcessLimit(t *testing.T) {
	l, _ := newConn(t)
	for range 100 {
		res, err := l.Exec(t.Context(), protocol.Exec{Argv: []string{"true"}, Background: true}, nil, nil)
		must(t, err)
		within(t, 20*time.Second, func() bool { return ended(t, l, res.ID) })
	}
	ps, err := l.PS(t.Context())
	if err != nil || len(ps.Processes) != 64 || ps.Processes[0].ID != "p100" {
		t.Errorf("got %d processes, %v", len(ps.Processes), err)
	}
	for i := 0; ; i++ {
		_, err := l.Exec(t.Context(), protocol.Exec{Argv: []string{"sleep", "100"}, Background: true}, nil, nil)
		if err != nil {
			if i != 64 || code(t, err) != protocol.CodeBusy {
				t.Errorf("after %d: got %v", i, err)
			}
			break
		}
	}
}

// TestOperations_Concurrent runs many operations of all kinds at once.
func TestOperations_Concurrent(t *testing.T) {
	l, _ := newConn(t)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			body := bytes.Repeat([]byte{byte(i)}, 300_000+i)
			var r record
			res, err := l.Exec(t.Context(), protocol.Exec{Argv: []string{"cat"}}, bytes.NewReader(body), &r)
			if err != nil || res.Code != 0 || !bytes.Equal(r.out, body) {
				t.Errorf("cat %d: got %+v, %v, %d bytes", i, res, err, len(r.out))
			}
			path := fmt.Sprintf("f%d", i)
			if _, err := l.Write(t.Context(), protocol.Write{Path: path}, bytes.NewReader(body)); err != nil {
				t.Error(err)
			}
			var b bytes.Buffer
			if _, err := l.Read(t.Context(), protocol.Read{Path: path}, &b); err != nil || !bytes.Equal(b.Bytes(), body) {
				t.Errorf("read %d: got %d bytes, %v", i, b.Len(), err)
			}
		})
	}
	wg.Wait()
	if _, err := l.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestOperations_Limit checks that operations beyond the limit are refused, not queued.
func TestOperations_Limit(t *testing.T) {
	l, _ := newConn(t)
	ctx, cancel := context.WithCancel(t.Context())
	res, err := l.Exec(t.Context(), protocol.Exec{Shell: "sleep 100", Background: true}, nil, nil)
	must(t, err)
	var wg sync.WaitGroup
	busy := make(chan error, protocol.MaxOps+10)
	for range protocol.MaxOps + 10 {
		wg.Go(func() {
			if _, err := l.Attach(ctx, protocol.Attach{ID: res.ID, Follow: true}, nil); err != nil {
				busy <- err
			}
		})
	}
	for range 10 {
		if err := <-busy; code(t, err) != protocol.CodeBusy {
			t.Errorf("got %v", err)
		}
	}
	cancel()
	wg.Wait()
}

// TestOrphans_AreReaped checks that the agent reaps processes whose parent has ended.
func TestOrphans_AreReaped(t *testing.T) {
	l, g := newConn(t)
	_, err := l.Exec(t.Context(), protocol.Exec{Shell: "for i in $(seq 20); do (setsid sleep 0.1 &) ; done"}, nil, nil)
	must(t, err)
	zombies := func() (n int) {
		stats, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, p := range stats {
			b, _ := os.ReadFile(p)
			i := bytes.LastIndexByte(b, ')')
			if i > 0 && strings.HasPrefix(string(b[i+1:]), fmt.Sprintf(" Z %d ", g.cmd.Process.Pid)) {
				n++
			}
		}
		return n
	}
	within(t, 5*time.Second, func() bool {
		out, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", g.cmd.Process.Pid))
		children := 0
		for _, p := range out {
			b, _ := os.ReadFile(p)
			children += len(strings.Fields(string(b)))
		}
		return zombies() == 0 && children == 0
	})
	// Commands that end meanwhile keep their exit codes.
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			res, err := l.Exec(t.Context(), protocol.Exec{Shell: fmt.Sprintf("(setsid true &); exit %d", i)}, nil, nil)
			if err != nil || res.Code != i {
				t.Errorf("got %+v, %v; want code %d", res, err, i)
			}
		})
	}
	wg.Wait()
}

// TestDescriptors_NoLeaks checks that operations leave no descriptors open in the agent.
func TestDescriptors_NoLeaks(t *testing.T) {
	l, g := newConn(t)
	open := func() int {
		names, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", g.cmd.Process.Pid))
		return len(names)
	}
	all := func() {
		for _, x := range []protocol.Exec{{Argv: []string{"true"}}, {Argv: []string{"nope"}}, {Shell: "seq 100000", Capture: protocol.Capture{Head: 1, Tail: 1}}, {Argv: []string{"true"}, Background: true}, {Shell: "sleep 0.01 &"}} {
			l.Exec(t.Context(), x, nil, nil)
		}
		l.Exec(t.Context(), protocol.Exec{Argv: []string{"cat"}}, strings.NewReader("x"), nil)
		l.Write(t.Context(), protocol.Write{Path: "d/f", Parents: true}, strings.NewReader("x"))
		l.Read(t.Context(), protocol.Read{Path: "d/f"}, io.Discard)
		l.Read(t.Context(), protocol.Read{Path: "d"}, io.Discard)
		l.List(t.Context(), protocol.List{Path: ".", Depth: 3})
		l.Archive(t.Context(), ".", io.Discard)
		l.Extract(t.Context(), "e", tarOf(t, tarEntry{name: "a/b", body: "x"}))
		l.Remove(t.Context(), protocol.Remove{Path: "d", Recursive: true})
		l.Run(t.Context(), protocol.Run{Kernel: "k", Language: "python"}, []byte("1"), nil)
		l.Kernel(t.Context(), protocol.Kernel{Kernel: "k", Action: "stop"})
	}
	all()
	time.Sleep(300 * time.Millisecond)
	before := open()
	for range 10 {
		all()
	}
	within(t, 20*time.Second, func() bool { return open() <= before+2 })
}

// TestConn_ResumesInsideFrames replaces a connection with operations in progress, at every
// point of a frame.
func TestConn_ResumesInsideFrames(t *testing.T) {
	g := newGuest(t)
	l, err := client.Open(t.Context(), g, g.options())
	must(t, err)
	x := protocol.Run{Kernel: "main", Language: "python"}
	_, err = l.Run(t.Context(), x, []byte("x = 42"), nil)
	must(t, err)
	bg, err := l.Exec(t.Context(), protocol.Exec{Shell: "echo alive; sleep 100", Background: true}, nil, nil)
	must(t, err)
	for i := range 40 {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { l.Exec(ctx, protocol.Exec{Argv: []string{"cat"}}, zeros{}, nil) })
			wg.Go(func() { l.Exec(ctx, protocol.Exec{Shell: "cat /dev/zero"}, nil, nil) })
		}
		time.Sleep(time.Duration(i) * time.Millisecond)
		if i%2 == 0 {
			must(t, l.Close())
		}
		next, err := client.Resume(t.Context(), g, g.options())
		if err != nil {
			t.Fatalf("resume %d: %v", i, err)
		}
		if _, err := l.Ping(t.Context()); !errors.Is(err, client.ErrLost) {
			t.Errorf("ping on the old link: got %v", err)
		}
		l.Close()
		cancel()
		wg.Wait()
		l = next
		var r record
		res, err := l.Run(t.Context(), x, []byte("print(x)"), &r)
		if err != nil || !res.OK || res.Fresh || string(r.out) != "42\n" {
			t.Fatalf("resume %d: got %+v, %v, %q", i, res, err, r.out)
		}
	}
	defer l.Close()
	var r record
	res, err := l.Attach(t.Context(), protocol.Attach{ID: bg.ID}, &r)
	if err != nil || !res.Running || string(r.out) != "alive\n" {
		t.Errorf("got %+v, %v, %q", res, err, r.out)
	}
}

func TestKernelActions(t *testing.T) {
	l, _ := newConn(t)
	k, err := l.Kernel(t.Context(), protocol.Kernel{Kernel: "a", Language: "python", Action: "start", Preload: []string{"json", "no_such_module"}})
	if err != nil || k.PID <= 0 || !strings.HasPrefix(k.Version, "3.") || !slices.Equal(k.Missing, []string{"no_such_module"}) {
		t.Errorf("got %+v, %v", k, err)
	}
	again, err := l.Kernel(t.Context(), protocol.Kernel{Kernel: "a", Language: "python", Action: "start"})
	if err != nil || again.PID != k.PID || !slices.Equal(again.Missing, k.Missing) {
		t.Errorf("start again: got %+v, %v", again, err)
	}
	busy := make(chan protocol.RunResult, 1)
	var r record
	go func() {
		res, err := l.Run(t.Context(), protocol.Run{Kernel: "a", Language: "python"}, []byte("import time; print('running', flush=True); time.sleep(100)"), &r)
		if err != nil {
			t.Error(err)
		}
		busy <- res
	}()
	within(t, 10*time.Second, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.out) > 0
	})
	for _, tc := range []struct {
		x    protocol.Run
		want protocol.Code
	}{
		{protocol.Run{Kernel: "a", Language: "python"}, protocol.CodeBusy},
		{protocol.Run{Kernel: "A", Language: "python"}, protocol.CodeInvalid},
		{protocol.Run{Kernel: "", Language: "python"}, protocol.CodeInvalid},
		{protocol.Run{Kernel: "b", Language: "cobol"}, protocol.CodeNoLanguage},
	} {
		if _, err := l.Run(t.Context(), tc.x, []byte("1"), nil); code(t, err) != tc.want {
			t.Errorf("run %+v: got %v, want %q", tc.x, err, tc.want)
		}
	}
	start := time.Now()
	restarted, err := l.Kernel(t.Context(), protocol.Kernel{Kernel: "a", Language: "python", Action: "restart"})
	if err != nil || restarted.PID == k.PID {
		t.Errorf("restart: got %+v, %v", restarted, err)
	}
	if res := <-busy; res.Lost == "" {
		t.Errorf("the run under way: got %+v", res)
	}
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("restart took %v", d)
	}
	if _, err := l.Kernel(t.Context(), protocol.Kernel{Kernel: "a", Action: "stop"}); err != nil {
		t.Error(err)
	}
	if _, err := l.Kernel(t.Context(), protocol.Kernel{Kernel: "a", Action: "stop"}); code(t, err) != protocol.CodeNotFound {
		t.Errorf("stop again: got %v", err)
	}
	if _, err := l.Kernel(t.Context(), protocol.Kernel{Kernel: "a", Action: "fly"}); code(t, err) != protocol.CodeInvalid {
		t.Errorf("got %v", err)
	}
}

// TestOutput_PrintedFramesAreData prints bytes that look like frames and messages.
func TestOutput_PrintedFramesAreData(t *testing.T) {
	l, _ := newConn(t)
	forged := protocol.Header{Type: protocol.End, Op: 3, Length: 2}.Append(nil)
	forged = append(forged, "{}"...)
	code := fmt.Sprintf(`
import os, sys
f = bytes(%s)
for fd in range(0, 64):
    for p in (f, b'\x00\x00\x00\x03D{}', b'GLOVEBOX-RESUME-0123456789abcdef'):
        try: os.write(fd, p)
        except OSError: pass
sys.stdout.flush()
'done'
`, strings.ReplaceAll(fmt.Sprint(forged), " ", ","))
	var r record
	res, err := l.Run(t.Context(), protocol.Run{Kernel: "main", Language: "python", TimeoutMS: 10_000}, []byte(code), &r)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(r.out, forged) && res.Lost == "" {
		t.Errorf("got %+v, stdout %q", res, r.out)
	}
	t.Logf("%+v", res)
	if _, err := l.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}
