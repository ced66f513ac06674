package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// TestRun_LostKernel loses kernels in every way and checks what Run reports.
func TestRun_LostKernel(t *testing.T) {
	py, node := pythons(t)[0], nodes(t)[0]
	for _, c := range []struct {
		name, language, code string
		timeout              time.Duration
		lost, detail, out    string
	}{
		{"exit", Python, "print('bye')\nimport os; os._exit(3)", 0, "exited", "exit code 3", "bye\n"},
		{"exit raw", Python, "import os; os.write(1, b'x'); os._exit(0)", 0, "exited", "exit code 0", "x"},
		{"segmentation fault", Python, "print('bye')\nimport ctypes; ctypes.string_at(0)", 0, "crashed", "signal 11 (segmentation fault)", "bye\n"},
		{"abort", Python, "import os; os.abort()", 0, "crashed", "signal 6 (aborted)", ""},
		{"kill itself", Python, "import os; os.kill(os.getpid(), 9)", 0, "crashed", "signal 9 (killed)", ""},
		{"kill its group", Python, "import os; os.killpg(0, 15)", 0, "crashed", "signal 15 (terminated)", ""},
		{"deaf", Python, "import time\nprint('x')\nwhile True:\n    try: time.sleep(100)\n    except KeyboardInterrupt: pass", 100 * time.Millisecond, "killed", "did not stop within 200ms of the interrupt", "x\n"},
		{"ignores", Python, "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(100)", time.Second, "killed", "did not stop within 200ms of the interrupt", ""},
		{"garbage in events", Python, "import os\nprint('a')\nos.write(902, b'\\xff' * 100)", 0, "crashed", "kernel sent a malformed message", "a\n"},
		{"garbage in control", Python, "import os\nos.write(901, b'\\xff' * 100)", 0, "crashed", "kernel sent a malformed message", ""},
		{"ready again", Python, "import os\nos.write(901, b'\\0\\0\\0\\3I{}')", 0, "crashed", "kernel sent a malformed message", ""},
		{"wrong run", Python, "import os\nos.write(901, b'\\0\\0\\0\\x14D{\"run\":9,\"ok\":true}')", 0, "crashed", "kernel sent a malformed message", ""},
		{"half a message", Python, "import os\nos.write(902, b'\\0\\0\\0\\x14oabc')\nos.write(901, b'\\0\\0\\0\\x14D{\"run\":1,\"ok\":true}')", 0, "crashed", "kernel sent a malformed message", "~abc"},
		{"display that is none", Python, "import os\nos.write(902, b'\\0\\0\\0\\4d[1]')", 0, "crashed", "kernel sent a malformed message", ""},
		{"endless message", Python, "import os\nos.write(902, b'\\0\\x80\\0\\1o')\nwhile True: os.write(902, b'x' * 60000)", 0, "crashed", "kernel sent a malformed message", "~xxx"},
		{"closes everything", Python, "import os\nos.closerange(0, 4096)\nprint(1)", 0, "~", "~", "~"},
		{"exit", JavaScript, "console.log('bye'); process.exit(3)", 0, "exited", "exit code 3", "bye\n"},
		{"abort", JavaScript, "process.abort()", 0, "crashed", "signal 6 (aborted)", ""},
		{"kill itself", JavaScript, "process.kill(process.pid, 'SIGKILL')", 0, "crashed", "signal 9 (killed)", ""},
		{"loop after await", JavaScript, "await 1; await new Promise(r => setTimeout(r, 5)); while (true);", 100 * time.Millisecond, "killed", "did not stop within 200ms of the interrupt", ""},
		{"garbage in events", JavaScript, "require('fs').writeSync(5, Buffer.alloc(100, 255))", 0, "crashed", "kernel sent a malformed message", ""},
	} {
		t.Run(c.language+"/"+c.name, func(t *testing.T) {
			t.Parallel()
			interpreter := py
			if c.language == JavaScript {
				interpreter = node
			}
			k := start(t, c.language, interpreter)
			if c.timeout == 0 {
				c.timeout = 20 * time.Second
			}
			begin := time.Now()
			res, rec := runWith(t, k, Request{Code: []byte(c.code), Timeout: c.timeout, Grace: 200 * time.Millisecond})
			if c.lost == "exited" && rec.err.Len() > 0 {
				t.Errorf("got stderr %q", rec.err.String())
			}
			if res.OK || !matches(res.Lost, c.lost) || !matches(res.LostDetail, c.detail) || !matches(rec.out.String(), c.out) {
				t.Errorf("got %+v, out %.100q; want %q, %q, out %q", res, rec.out.String(), c.lost, c.detail, c.out)
			}
			if d := time.Since(begin); d > 10*time.Second {
				t.Errorf("took %v", d)
			}
			select {
			case <-k.Done():
			case <-time.After(5 * time.Second):
				t.Error("a lost kernel lives on")
			}
			if _, err := k.Run(t.Context(), Request{Code: []byte("1")}, &recorder{}); !errors.Is(err, ErrEnded) {
				t.Errorf("a run on a lost kernel: got error %v, want ErrEnded", err)
			}
		})
	}
}

// each runs a test on one kernel of each language.
func each(t *testing.T, f func(t *testing.T, language string, k *Kernel)) {
	t.Helper()
	for _, language := range []string{Python, JavaScript} {
		t.Run(language, func(t *testing.T) {
			interpreter := ""
			if language == Python {
				interpreter = pythons(t)[0]
			} else {
				interpreter = nodes(t)[0]
			}
			f(t, language, start(t, language, interpreter))
		})
	}
}

func TestRun_Cancel(t *testing.T) {
	each(t, func(t *testing.T, language string, k *Kernel) {
		code := map[string]string{Python: "x = 5\nwhile True: pass", JavaScript: "x = 5; while (true);"}[language]
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		res, err := k.Run(ctx, Request{Code: []byte(code)}, &recorder{})
		if err != nil || res.OK || res.Stopped != "cancelled" || res.Lost != "" || res.Error == nil {
			t.Fatalf("got %+v, error %v", res, err)
		}
		res, err = k.Run(ctx, Request{Code: []byte(code)}, &recorder{})
		if err != nil || res.OK || res.Stopped != "cancelled" || res.Lost != "" {
			t.Fatalf("run that is cancelled from the start: got %+v, error %v", res, err)
		}
		if _, rec := run(t, k, "x"); rec.value() != "5" {
			t.Errorf("state after the interrupt: got %q", rec.value())
		}
	})
}

// TestRun_EmptyCell runs the empty cell that checks a kernel: it leaves no trace, and no
// output printed meanwhile is lost.
func TestRun_EmptyCell(t *testing.T) {
	// Both wait until the first cell has ended, and say when they have printed.
	const child = "(until [ -e %[1]s/ended ]; do sleep 0.02; done; echo child; touch %[1]s/child)"
	setUp := map[string]string{
		Python:     "import threading, os, time\nos.system('" + child + " &')\ndef late():\n    while not os.path.exists('%[1]s/ended'): time.sleep(0.02)\n    print('thread')\n    open('%[1]s/thread', 'w').close()\nx = threading.Thread(target=late); x.start()\n41",
		JavaScript: "let fs = require('fs'), x = setInterval(() => { if (fs.existsSync('%[1]s/ended')) { clearInterval(x); console.log('thread'); fs.writeFileSync('%[1]s/thread', '') } }, 20); require('child_process').spawn('sh', ['-c', '" + child + "'], {stdio: ['ignore', 'inherit', 'inherit'], detached: true}); 41",
	}
	failing := map[string]string{Python: "print(_)\n1/0", JavaScript: "console.log(_); undefined_"}
	each(t, func(t *testing.T, language string, k *Kernel) {
		dir := t.TempDir()
		if res, rec := run(t, k, fmt.Sprintf(setUp[language], dir)); !res.OK || rec.value() != "41" {
			t.Fatalf("got %+v, %q", res, rec.all.String())
		}
		if err := os.WriteFile(filepath.Join(dir, "ended"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		printed := func() bool { return exists(filepath.Join(dir, "thread"))() && exists(filepath.Join(dir, "child"))() }
		begun := time.Now()
		for i := 0; !printed() || i < 10; i++ {
			if time.Since(begun) > 10*time.Second {
				t.Fatal("thread and child have not printed after 10 seconds")
			}
			req := Request{Timeout: 20 * time.Second}
			if i == 3 {
				req.Seed = []byte("seed")
			}
			if res, rec := runWith(t, k, req); !res.OK || rec.all.Len() > 0 || res.Lost != "" || res.Error != nil {
				t.Fatalf("got %+v, %q", res, rec.all.String())
			}
			time.Sleep(5 * time.Millisecond)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if res, err := k.Run(ctx, Request{}, &recorder{}); err != nil || res.Lost != "" {
			t.Errorf("cancelled: got %+v, %v", res, err)
		}
		res, rec := run(t, k, failing[language])
		if res.OK || !strings.Contains(res.Error.Traceback, "<cell 2>") {
			t.Errorf("the next cell is not the second: %+v", res)
		}
		for _, want := range []string{"41\n", "child\n", "thread\n"} {
			if !strings.Contains(rec.out.String(), want) {
				t.Errorf("the next cell printed %q, want %q in it", rec.out.String(), want)
			}
		}
	})
}

func TestRun_WhileBusy(t *testing.T) {
	each(t, func(t *testing.T, language string, k *Kernel) {
		dir := t.TempDir()
		code := fmt.Sprintf(map[string]string{
			Python:     "import os, time\nopen(%[1]q, 'w').close()\nwhile not os.path.exists(%[2]q): time.sleep(0.01)",
			JavaScript: "const fs = require('fs'); fs.writeFileSync(%[1]q, '')\nwhile (!fs.existsSync(%[2]q)) await new Promise(r => setTimeout(r, 10))",
		}[language], filepath.Join(dir, "on"), filepath.Join(dir, "go"))
		var wg sync.WaitGroup
		wg.Add(1)
		go func() {
			defer wg.Done()
			if res, _ := run(t, k, code); !res.OK {
				t.Errorf("got %+v", res)
			}
		}()
		polltest.Until(t, 10*time.Second, "the code runs", exists(filepath.Join(dir, "on")))
		if _, err := k.Run(t.Context(), Request{Code: []byte("1")}, &recorder{}); !errors.Is(err, ErrBusy) {
			t.Errorf("got error %v, want ErrBusy", err)
		}
		if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if _, err := k.Run(t.Context(), Request{Code: make([]byte, protocol.MaxCode+1)}, &recorder{}); err == nil {
			t.Error("code beyond the limit was taken")
		}
	})
}

// exists reports whether a file exists.
func exists(path string) func() bool {
	return func() bool { _, err := os.Stat(path); return err == nil }
}

// TestRun_ChildOutlivesIt: a child that holds the descriptors delays neither its run nor
// the next one, and Close kills it.
func TestRun_ChildOutlivesIt(t *testing.T) {
	each(t, func(t *testing.T, language string, k *Kernel) {
		code := map[string]string{
			Python:     "import subprocess; p = subprocess.Popen(['sh', '-c', 'echo $$; exec sleep 1000'])\nimport time; time.sleep(0.1)",
			JavaScript: "const p = require('child_process').spawn('sh', ['-c', 'echo $$; exec sleep 1000'], {stdio: 'inherit'}); await new Promise(r => setTimeout(r, 100))",
		}[language]
		begin := time.Now()
		res, rec := run(t, k, code)
		if !res.OK || time.Since(begin) > 20*time.Second {
			t.Fatalf("got %+v after %v", res, time.Since(begin))
		}
		pid, err := strconv.Atoi(strings.TrimSpace(rec.out.String()))
		if err != nil {
			t.Fatal(err)
		}
		if _, rec := run(t, k, "1+1"); rec.value() != "2" {
			t.Errorf("got %q", rec.value())
		}
		if err := k.Close(); err != nil {
			t.Error(err)
		}
		polltest.Until(t, 5*time.Second, fmt.Sprintf("leak: child %d ends with the kernel", pid), func() bool {
			if syscall.Kill(pid, 0) != nil {
				return true
			}
			b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
			return strings.Contains(string(b), ") Z") // nobody reaps orphans here
		})
	})
}

func TestClose_DuringRun(t *testing.T) {
	each(t, func(t *testing.T, language string, k *Kernel) {
		code := map[string]string{Python: "import time; time.sleep(100)", JavaScript: "await new Promise(() => {})"}[language]
		time.AfterFunc(100*time.Millisecond, func() { k.Close() })
		res, _ := run(t, k, code)
		if res.OK || res.Lost != "killed" {
			t.Errorf("got %+v, want killed", res)
		}
	})
}

// slowSink blocks until it is released.
type slowSink struct {
	recorder
	release chan struct{}
}

func (s *slowSink) Output(ch protocol.Channel, p []byte) {
	<-s.release
	s.recorder.Output(ch, p)
}

// TestRun_BackPressure: while the sink blocks, the kernel blocks too, and the timeout still
// applies.
func TestRun_BackPressure(t *testing.T) {
	each(t, func(t *testing.T, language string, k *Kernel) {
		code := map[string]string{
			Python:     "n = 0\nwhile True:\n    print('x' * 1000); n += 1",
			JavaScript: "n = 0; while (true) { console.log('x'.repeat(1000)); n++ }",
		}[language]
		sink := &slowSink{release: make(chan struct{})}
		time.AfterFunc(600*time.Millisecond, func() { close(sink.release) })
		res, err := k.Run(t.Context(), Request{Code: []byte(code), Timeout: 200 * time.Millisecond, Grace: 5 * time.Second}, sink)
		if err != nil || res.Stopped != "timeout" || res.Lost != "" || sink.out.Len() == 0 || sink.out.Len() > 4<<20 {
			t.Errorf("got %+v, error %v, %d bytes", res, err, sink.out.Len())
		}
	})
}

func TestStart_Errors(t *testing.T) {
	dir := t.TempDir()
	script := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, c := range []struct{ name, language, interpreter, want string }{
		{"language", "cobol", "/bin/true", `unknown language "cobol"`},
		{"missing", Python, dir + "/nothing", "no such file"},
		{"exits", Python, script("exits", "echo it is broken >&2; exit 7"), "exit code 7; its stderr: \"it is broken\""},
		{"garbage", Python, script("garbage", "printf 'aaaaaaaaaaaaaaaa' >&4; exec sleep 100"), "malformed"},
		{"no version", Python, script("version", "printf '\\0\\0\\0\\3I{}' >&4; exec sleep 100"), "no valid version"},
		{"other message", Python, script("other", "printf '\\0\\0\\0\\3D{}' >&4; exec sleep 100"), "first message is 'D'"},
		{"silent", JavaScript, script("silent", "exec sleep 100"), "context deadline exceeded"},
		{"hangs up", JavaScript, script("hangs", "exec 4>&-; exec sleep 100"), "EOF"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			k, err := Start(ctx, Config{Language: c.language, Interpreter: c.interpreter, Home: dir})
			if err == nil {
				k.Close()
				t.Fatal("it started")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %q, want %q in it", err, c.want)
			}
		})
	}
}

func TestConfig_Command(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to run the kernel as another user")
	}
	k, err := Start(t.Context(), Config{
		Language: Python, Interpreter: "/usr/bin/python3", Home: "/tmp", Env: []string{"A=b", "PATH=/usr/bin:/bin"},
		Command: func(argv []string) *exec.Cmd {
			c := exec.Command(argv[0], argv[1:]...)
			c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			return c
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	_, rec := run(t, k, "import os\nos.system('echo raw'); print('own')\n(os.getuid(), os.environ['A'], os.getcwd(), os.getsid(0) == os.getpid(), 'HOME' in os.environ)")
	if rec.value() != "(65534, 'b', '/tmp', True, False)" || rec.out.String() != "raw\nown\n" {
		t.Errorf("got %s, out %q", rec.value(), rec.out.String())
	}
}

// TestKernel_NoLeaks starts and ends kernels in all ways and counts the remaining resources.
func TestKernel_NoLeaks(t *testing.T) {
	count := func() (goroutines, files int) {
		d, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return runtime.NumGoroutine(), len(d)
	}
	py, node := pythons(t)[0], nodes(t)[0]
	once := func(language, interpreter, code string) {
		home := t.TempDir()
		k, err := Start(t.Context(), Config{Language: language, Interpreter: interpreter, Home: home, Env: os.Environ()})
		if err != nil {
			t.Fatal(err)
		}
		run(t, k, code)
		if err := k.Close(); err != nil {
			t.Error(err)
		}
		k.Close()
		if err := syscall.Kill(k.PID(), 0); err == nil {
			t.Errorf("process %d is still there", k.PID())
		}
	}
	once(Python, py, "1") // resources that are opened once and kept
	g0, f0 := count()
	for range 3 {
		once(Python, py, "print(1)")
		once(Python, py, "import os; os._exit(1)")
		once(Python, py, "import os; os.write(902, b'\\xff' * 20)")
		once(JavaScript, node, "console.log(1)")
		Start(t.Context(), Config{Language: Python, Interpreter: "/bin/false"})
		Start(t.Context(), Config{Language: Python, Interpreter: "/nothing"})
	}
	var g1, f1 int
	if !polltest.Soon(5*time.Second, func() bool { g1, f1 = count(); return g1 <= g0 && f1 <= f0 }) {
		t.Errorf("leak: goroutines %d → %d, files %d → %d", g0, g1, f0, f1)
	}
}

// TestKernel_IdleUsesNoCPU checks that a kernel that waits uses no processor time.
func TestKernel_IdleUsesNoCPU(t *testing.T) {
	each(t, func(t *testing.T, language string, k *Kernel) {
		run(t, k, "1")
		time.Sleep(300 * time.Millisecond) // what a young interpreter still does
		before := switches(t, k.PID())
		time.Sleep(time.Second)
		if n := switches(t, k.PID()) - before; n > 2 {
			t.Errorf("%d wake-ups in an idle second", n)
		}
	})
}

// switches counts the context switches of all threads.
func switches(t *testing.T, pid int) int {
	n := 0
	files, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/status")
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.HasSuffix(name, "voluntary_ctxt_switches") {
				v, _ := strconv.Atoi(strings.TrimSpace(value))
				n += v
			}
		}
	}
	return n
}

func BenchmarkStart(b *testing.B) {
	bench := func(language, interpreter string) {
		b.Run(language+" "+interpreter, func(b *testing.B) {
			home := b.TempDir()
			for b.Loop() {
				k, err := Start(b.Context(), Config{Language: language, Interpreter: interpreter, Home: home, Env: os.Environ()})
				if err != nil {
					b.Fatal(err)
				}
				if m := pss(k.PID()); m > 0 {
					b.ReportMetric(float64(m), "kB-pss")
				}
				k.Close()
			}
		})
	}
	for _, p := range pythons(b) {
		bench(Python, p)
	}
	for _, p := range nodes(b) {
		bench(JavaScript, p)
	}
}

func pss(pid int) int {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/smaps_rollup")
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "Pss:"); ok {
			n, _ := strconv.Atoi(strings.Fields(v)[0])
			return n
		}
	}
	return 0
}
