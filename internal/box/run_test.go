package box

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestRun_Results(t *testing.T) {
	f := newFixture(t, nil)
	b := f.session(t, "", "x")
	for _, tt := range []struct{ name, code, stdout, stderr string }{
		{"nothing", "x = 1", "", ""},
		{"last expression in order", "print('a')\n'b'", "a\n'b'\n", ""},
		{"last expression after half a line", "print('a', end='')\n42", "a\n42\n", ""},
		{"stderr is no failure", "import sys; print('warn', file=sys.stderr)", "", "warn\n"},
		{"cleaned", `print('\x1b[31mred\x1b[0m \x1b]0;t\x07\x00\u202ex')`, "red x\n", ""},
		{"bad UTF-8", `import os, sys; sys.stdout.flush(); _ = os.write(1, b'a\xffb\n')`, "a\ufffdb\n", ""},
		{"progress bar", `import sys; print('10%\r20%')`, "20%\n", ""},
	} {
		res := run(t, b, tt.code)
		if res.Stdout != tt.stdout || res.Stderr != tt.stderr || !res.Success || res.Error != nil || len(res.Notes) != 0 {
			t.Errorf("%s: got %+v, want stdout %q, stderr %q", tt.name, res, tt.stdout, tt.stderr)
		}
	}

	res := run(t, b, "import sys\nprint('before'); print('err', end='', file=sys.stderr)\n1/0")
	if res.Success || res.Error == nil || res.Error.Name != "ZeroDivisionError" || res.Stdout != "before\n" ||
		!strings.HasPrefix(res.Stderr, "err\nTraceback") || !strings.Contains(res.Stderr, "division by zero") || res.Lost != "" {
		t.Errorf("error: got %+v, want the traceback at the end of stderr", res)
	}
	res = run(t, b, "def f(:")
	if res.Success || res.Error == nil || res.Error.Name != "SyntaxError" {
		t.Errorf("syntax error: got %+v", res)
	}
	wantOut(t, b, "x", "1\n")
}

func TestRun_Progress(t *testing.T) {
	f := newFixture(t, nil)
	b := f.session(t, "", "x")
	var chunks []Chunk
	written := make(chan error, 1)
	// The code ends only after its first output has arrived.
	res := runReq(t, b, RunRequest{
		Code: "import os, sys, time\nprint('one', flush=True)\nwhile not os.path.exists('seen'): time.sleep(0.01)\nprint('\\x1b[1mtwo', file=sys.stderr)\n3",
		Progress: func(c Chunk) {
			if chunks = append(chunks, c); len(chunks) == 1 {
				go func() {
					_, err := b.WriteFile(t.Context(), WriteRequest{Path: "seen"}, strings.NewReader(""))
					written <- err
				}()
			}
		},
	})
	if len(chunks) == 0 {
		t.Fatalf("no output was reported; got %+v", res)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	text := map[Stream]string{}
	for _, c := range chunks {
		text[c.Stream] += c.Text
	}
	if text[Stdout] != res.Stdout || text[Stderr] != res.Stderr || text[Stdout] != "one\n3\n" || text[Stderr] != "two\n" {
		t.Errorf("got %q, result %+v", text, res)
	}
}

func TestRun_LongOutput(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.OutputHead, c.OutputTail = 1000, 500 })
	b := f.session(t, "", "x")
	res := run(t, b, "for i in range(100_000): print(f'line {i}')\n'the value'")
	const total = 1_088_890
	if len(res.Stdout) > 2000 || !strings.HasPrefix(res.Stdout, "line 0\nline 1\n") || !strings.HasSuffix(res.Stdout, "line 99998\nline 99999\n'the value'\n") {
		t.Errorf("got %d bytes: %q", len(res.Stdout), res.Stdout)
	}
	mark := fmt.Sprintf("\n[... %d of %d bytes left out here; whole output in ", total-1500, total)
	_, rest, ok := strings.Cut(res.Stdout, mark)
	if !ok {
		t.Fatalf("no mark %q in %q", mark, res.Stdout)
	}
	path, _, _ := strings.Cut(rest, " ...]\n")
	var whole bytes.Buffer
	if _, err := b.ReadFile(t.Context(), ReadRequest{Path: path}, &whole); err != nil {
		t.Fatal(err)
	}
	if whole.Len() != total {
		t.Errorf("%s has %d bytes, want %d", path, whole.Len(), total)
	}
	if len(res.Notes) != 1 || !strings.Contains(res.Notes[0], path) {
		t.Errorf("notes: got %q", res.Notes)
	}

	x, err := b.Exec(t.Context(), ExecRequest{Shell: "seq 1 100000 >&2"})
	if err != nil || len(x.Stderr) > 2000 || !strings.HasSuffix(x.Stderr, "99999\n100000\n") || !strings.Contains(x.Stderr, "left out here") {
		t.Errorf("command: got %+v, %v", x, err)
	}
	// A head that ends amid a rune and a tail that begins amid one.
	res = run(t, b, "print('x' + '€' * 1000)")
	if strings.Contains(strings.ReplaceAll(res.Stdout, "\ufffd\n[", "\n["), "\ufffd") || !strings.Contains(res.Stdout, "left out here") {
		t.Errorf("cut runes: got %q", res.Stdout)
	}
}

const tinyPNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

func TestRun_Images(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.MaxImages, c.MaxImageSize = 2, 1000 })
	b := f.session(t, "", "x")
	run(t, b, "import base64\nclass P:\n  def __init__(self, b): self.b = b\n  def _repr_png_(self): return self.b\n  def __repr__(self): return '<P>'\npng = base64.b64decode('"+tinyPNG+"')")
	res := run(t, b, "P(png)")
	if len(res.Images) != 1 || res.Images[0].MIME != "image/png" || !bytes.HasPrefix(res.Images[0].Data, []byte("\x89PNG")) || res.Stdout != "<P>\n" {
		t.Errorf("image: got %+v", res)
	}
	res = run(t, b, "P(b'GIF89a, says the liar')")
	if len(res.Images) != 0 || len(res.Notes) != 1 || !strings.Contains(res.Notes[0], "not what its type says") {
		t.Errorf("false image: got %+v", res)
	}
	res = run(t, b, "P(png + bytes(5000))")
	if len(res.Images) != 0 || len(res.Notes) != 1 || !strings.Contains(res.Notes[0], "larger than 1000 bytes") {
		t.Errorf("large image: got %+v", res)
	}
}

func TestRun_Timeouts(t *testing.T) {
	f := newFixture(t, nil)
	b, c := f.session(t, "", "x"), f.context(t, "", "c")
	for _, d := range []time.Duration{-1, -time.Second, 301 * time.Second, 1e9 * time.Second} {
		_, err := b.Run(t.Context(), RunRequest{Code: "1", Timeout: d})
		wantCode(t, err, CodeInvalid, "between 1 and 300")
		_, err = b.Exec(t.Context(), ExecRequest{Shell: "true", Timeout: d})
		wantCode(t, err, CodeInvalid, "between 1 and 300")
	}
	if d, err := b.timeout("", 0); d != 300*time.Second || err != nil {
		t.Errorf("default of a session: got %v, %v", d, err)
	}
	if d, err := c.timeout("", 0); d != 30*time.Second || err != nil {
		t.Errorf("default of a context: got %v, %v", d, err)
	}

	run(t, b, "x = 1")
	res := runReq(t, b, RunRequest{Code: "print('before', flush=True)\nwhile True: pass", Timeout: 300 * time.Millisecond})
	if res.Success || !res.TimedOut || res.Lost != "" || res.Stdout != "before\n" || len(res.Notes) != 1 ||
		res.Notes[0] != "Code execution timed out after 0.3 seconds and was interrupted; variables are kept." {
		t.Errorf("timeout: got %+v", res)
	}
	wantOut(t, b, "x", "1\n")

	run(t, b, "import signal, time") // which may take longer than the timeout
	res = runReq(t, b, RunRequest{
		Code:    "signal.signal(signal.SIGINT, signal.SIG_IGN)\nfor i in range(1000):\n  try: time.sleep(1)\n  except BaseException: pass",
		Timeout: 300 * time.Millisecond,
	})
	if res.Success || !res.TimedOut || res.Lost == "" || len(res.Notes) != 2 || !strings.Contains(res.Notes[1], "All variables were lost") {
		t.Errorf("timeout without yielding: got %+v", res)
	}
	res = run(t, b, "'x' in dir()")
	if res.Stdout != "False\n" || !res.Fresh || len(res.Notes) != 0 {
		t.Errorf("after the loss: got %+v, want a fresh kernel and no second note", res)
	}

	x, err := b.Exec(t.Context(), ExecRequest{Shell: "echo a; sleep 60", Timeout: time.Second})
	if err != nil || !x.TimedOut || x.Stdout != "a\n" || len(x.Notes) != 1 || !strings.HasPrefix(x.Notes[0], "Command execution timed out after 1 second and") {
		t.Errorf("command: got %+v, %v", x, err)
	}
}

func TestRun_KernelEnds(t *testing.T) {
	f := newFixture(t, nil)
	b := f.session(t, "", "x")
	res := run(t, b, "x = 1\nimport os; os._exit(3)")
	if res.Success || res.Lost != "the code ended the interpreter (exit code 3)" {
		t.Errorf("exit: got %+v", res)
	}
	run(t, b, "x = 2")
	pid := strings.TrimSpace(run(t, b, "os = __import__('os'); print(os.getpid())").Stdout)
	if _, err := b.Exec(t.Context(), ExecRequest{Argv: []string{"kill", "-9", pid}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the kernel has ended", func() bool {
		x, err := b.Exec(t.Context(), ExecRequest{Argv: []string{"kill", "-0", pid}})
		return err == nil && x.ExitCode != 0
	})
	res = run(t, b, "'x' in dir()")
	if res.Stdout != "False\n" || !res.Fresh || res.Lost == "" || len(res.Notes) != 1 || !strings.Contains(res.Notes[0], "earlier variables were lost") {
		t.Errorf("killed between calls: got %+v, want the loss reported", res)
	}
}

func TestRun_Cancelled(t *testing.T) {
	f := newFixture(t, nil)
	b := f.session(t, "", "x")
	run(t, b, "x = 1")
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(200*time.Millisecond, cancel)
	_, err := b.Run(ctx, RunRequest{Code: "while True: pass"})
	wantCode(t, err, CodeCancelled)
	_, err = b.Run(ctx, RunRequest{Code: "1"})
	wantCode(t, err, CodeCancelled)
	wantOut(t, b, "x", "1\n")
}

func TestRun_Queue(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.QueueLen = 3 })
	b := f.session(t, "", "x")
	run(t, b, "order = []")
	end := occupy(t, b)
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			if _, err := b.Run(context.Background(), RunRequest{Code: fmt.Sprintf("order.append(%d)", i)}); err != nil && i != 1 {
				t.Error(err)
			}
		})
		eventually(t, "it is queued", func() bool { return b.kernel(Python).runs.Waiting() == i+1 })
	}
	_, err := b.Run(t.Context(), RunRequest{Code: "1"})
	wantCode(t, err, CodeBusy, "3 calls wait already")
	if st := f.Stats(); st.Queued != 3 || st.Running != 1 || st.States[StateRunning] != 1 {
		t.Errorf("stats: got %+v", st)
	}
	// Commands and files do not wait for the kernel.
	if x, err := b.Exec(t.Context(), ExecRequest{Shell: "echo hi"}); err != nil || x.Stdout != "hi\n" {
		t.Errorf("command meanwhile: got %+v, %v", x, err)
	}
	end()
	wg.Wait()
	wantOut(t, b, "order", "[0, 1, 2]\n")

	// A caller whose context ends leaves the queue.
	end = occupy(t, b)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = b.Run(ctx, RunRequest{Code: "order.append('never')"})
	wantCode(t, err, CodeCancelled)
	end()
	wantOut(t, b, "order", "[0, 1, 2]\n")
}

func TestExec_Parallel(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.ParallelCalls, c.QueueLen = 2, 1 })
	b := f.session(t, "", "x")
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if _, err := b.Exec(t.Context(), ExecRequest{Shell: "sleep 0.3"}); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "one waits", func() bool { return b.commands.Waiting() == 1 })
	_, err := b.Stat(t.Context(), ".")
	wantCode(t, err, CodeBusy)
	wg.Wait()
}

func TestRun_JavaScript(t *testing.T) {
	if interpreters()[JavaScript] == "" {
		t.Skip("no node on this machine")
	}
	f := newFixture(t, nil)
	b := f.sessionOf(t, "", SessionOptions{Interpreter: InterpreterNode})
	wantOut(t, b, "const x = 20; console.log('hi'); x + 22", "hi\n42\n")
	if res := run(t, b, "throw new TypeError('no')"); res.Success || res.Error == nil || res.Error.Name != "TypeError" {
		t.Errorf("error: got %+v", res)
	}
	// The other language of the same box has a kernel of its own.
	if res := runReq(t, b, RunRequest{Code: "1+1", Language: Python}); res.Stdout != "2\n" {
		t.Errorf("python: got %+v", res)
	}
	wantOut(t, b, "x", "20\n")
}
