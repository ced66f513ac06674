//go:build linux

package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// hostFunc is a Host.
type hostFunc func(ctx context.Context, method string, args []byte) ([]byte, error)

func (f hostFunc) Call(ctx context.Context, method string, args []byte) ([]byte, error) {
	return f(ctx, method, args)
}

// echo returns the arguments of each call as its value.
var echo = hostFunc(func(_ context.Context, method string, args []byte) ([]byte, error) {
	if method != "tool" {
		return nil, fmt.Errorf("unexpected method %q", method)
	}
	var in struct{ Arguments json.RawMessage }
	if err := json.Unmarshal(args, &in); err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{"value": in.Arguments})
})

// runWith runs code with a host and returns what it printed.
func runWith(t *testing.T, l *client.Conn, language, code string, h client.Host) (protocol.RunResult, string) {
	t.Helper()
	var r record
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	res, err := l.RunWithCalls(ctx, protocol.Run{Kernel: language, Language: language, TimeoutMS: 50_000}, []byte(code), &r, h)
	if err != nil {
		t.Fatalf("run %q: %v", code, err)
	}
	if res.Error != nil {
		return res, string(r.out) + res.Error.Traceback
	}
	return res, string(r.out)
}

func TestCalls(t *testing.T) {
	checkGoroutines(t)
	l, _ := newConn(t)
	for _, tc := range []struct{ name, language, code, want string }{
		{"sync", "python", "print(tools.s.t(a=1, b='é')['b'])", "é\n"},
		{"in a function", "python", "def f():\n    return tools.s.t(a=1)\nprint(f())", "{'a': 1}\n"},
		{"awaited", "python", "print(await tools.s.t(a=2))", "{'a': 2}\n"},
		{"call_tool", "python", "print(await call_tool('s.t', {'a': 3}))", "{'a': 3}\n"},
		{"call_tool in a function", "python", "def f(): return call_tool('s.t', {'a': 3})\nprint(f())", "{'a': 3}\n"},
		{"gather", "python", "import asyncio\nprint(sum(r['n'] for r in await asyncio.gather(*[tools.s.t(n=i) for i in range(100)])))", "4950\n"},
		{"task", "python", "import asyncio\nprint(await asyncio.create_task(tools.s.t(a=1)))", "{'a': 1}\n"},
		{"not awaited", "python", "import asyncio\nasync def f():\n    return tools.s.t(a=1)['a']\ntry:\n    await f()\nexcept TypeError as e:\n    print('await tools.s.t(...)' in str(e))", "True\n"},
		{"threads", "python", "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(40) as p:\n    print(sum(r['n'] for r in p.map(lambda i: tools.s.t(n=i), range(100))))", "4950\n"},
		{"large", "python", "x = 'x' * 1_000_000\nprint(tools.s.t(x=x)['x'] == x)", "True\n"},
		{"too large", "python", "try:\n    tools.s.t(x='x' * 2_000_000)\nexcept ToolError as e:\n    print(e.code, 'at most' in e.message)", "invalid_arguments True\n"},
		{"not JSON", "python", "try:\n    tools.s.t(x=object())\nexcept TypeError as e:\n    print(e)", "a value of type object cannot be passed to a tool: convert it to numbers, text, lists and dicts\n"},
		{"NumPy and dates", "python", "import datetime, pathlib\nprint(tools.s.t(d=datetime.date(2026, 1, 2), p=pathlib.Path('/x'), s={1}))", "{'d': '2026-01-02', 'p': '/x', 's': [1]}\n"},
		{"child", "python", "import multiprocessing as m\np = m.get_context('fork').Pool(1)\nprint(p.map(lambda i: tools.s.t(n=i)['n'] if False else i, []) == [])\np.terminate()", "True\n"},
		{"fork", "python", "import os, sys\npid = os.fork()\nif pid == 0:\n    ok = tools.s.t(n=5)['n'] == 5\n    os._exit(7 if ok else 1)\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))", "7\n"},
		{"shell", "python", "!glovebox-tool s.t <<< '{\"a\": [1]}'", "{\"a\":[1]}\n"},
		{"JavaScript", "javascript", "const r = await tools.s.t({a: 'é'}); console.log(r.a)", "é\n"},
		{"JavaScript, parallel", "javascript", "console.log((await Promise.all([...Array(100).keys()].map((n) => tools.s.t({n})))).reduce((s, r) => s + r.n, 0))", "4950\n"},
		{"JavaScript, by name", "javascript", "console.log((await callTool('s.t', {a: 3})).a, await tools['s']['t']({b: 1}))", "3 { b: 1 }\n"},
		{"JavaScript, large", "javascript", "const x = 'x'.repeat(1000000); console.log((await tools.s.t({x})).x === x)", "true\n"},
		{"JavaScript, child", "javascript", "console.log(require('child_process').execFileSync('glovebox-tool', ['s.t'], {input: '{\"a\":1}'}).toString().trim())", "{\"a\":1}\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, got := runWith(t, l, tc.language, tc.code, echo); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
	t.Run("command", func(t *testing.T) {
		var r record
		res, err := l.ExecWithCalls(t.Context(), protocol.Exec{Shell: "echo '{\"a\":1}' | glovebox-tool s.t"}, nil, &r, echo)
		if err != nil || res.Code != 0 || string(r.out) != "{\"a\":1}\n" {
			t.Errorf("got %+v, %v, stdout %q, stderr %q", res, err, r.out, r.err)
		}
	})
}

// TestCalls_failure checks that a failed call raises an exception with all its parts.
func TestCalls_failure(t *testing.T) {
	l, _ := newConn(t)
	fail := hostFunc(func(context.Context, string, []byte) ([]byte, error) {
		return []byte(`{"error":{"server":"s","tool":"t","code":"tool_error","message":"no such file","signature":"tools.s.t(*, path: str)"}}`), nil
	})
	_, got := runWith(t, l, "python", "try:\n    tools.s.t()\nexcept ToolError as e:\n    print([e.server, e.tool, e.code, e.message, e.signature])\n    import pickle\n    print(pickle.loads(pickle.dumps(e)).code)", fail)
	if want := "['s', 't', 'tool_error', 'no such file', 'tools.s.t(*, path: str)']\ntool_error\n"; got != want {
		t.Errorf("Python: got %q, want %q", got, want)
	}
	_, got = runWith(t, l, "python", "try:\n    await tools.s.t()\nexcept ToolError as e:\n    print(e)", fail)
	if want := "s.t: no such file [tool_error]\n  tools.s.t(*, path: str)\n"; got != want {
		t.Errorf("Python, async: got %q, want %q", got, want)
	}
	_, got = runWith(t, l, "javascript", "try { await tools.s.t() } catch (e) { console.log(e instanceof ToolError, e.server, e.tool, e.code, e.signature) }", fail)
	if want := "true s t tool_error tools.s.t(*, path: str)\n"; got != want {
		t.Errorf("JavaScript: got %q, want %q", got, want)
	}
	var r record
	res, err := l.ExecWithCalls(t.Context(), protocol.Exec{Shell: "glovebox-tool s.t x=1"}, nil, &r, fail)
	if err != nil || res.Code != 1 || !strings.Contains(string(r.err), "no such file [tool_error]") {
		t.Errorf("shell: got %+v, %v, stderr %q", res, err, r.err)
	}
}

// TestCalls_onlyOfTheRun checks that only the run in progress and what it started call
// the host.
func TestCalls_onlyOfTheRun(t *testing.T) {
	l, g := newConn(t)
	var calls atomic.Int32
	count := hostFunc(func(context.Context, string, []byte) ([]byte, error) {
		calls.Add(1)
		return []byte(`{"value":1}`), nil
	})
	const code = "print(getattr(__import__('builtins'), 'tools', None) is None)"
	if _, got := runWith(t, l, "python", code, nil); got != "True\n" {
		t.Errorf("a run without calls has tools: %q", got)
	}
	// A process of an earlier run waits for the token of the next, which is left where it
	// can read it, and for the run after, which leaves its own.
	steal := "while [ ! -s token ]; do sleep 0.02; done; GLOVEBOX_TOOLS_TOKEN=$(cat token) glovebox-tool s.t >stolen 2>&1; echo >>stolen"
	runWith(t, l, "python", "import subprocess, os, time\np = subprocess.Popen(['/bin/sh', '-c', "+fmt.Sprintf("%q", steal)+"])\nq = subprocess.Popen(['setsid', '-f', '/bin/sh', '-c', "+fmt.Sprintf("%q", strings.ReplaceAll(steal, "stolen", "stolen2"))+"])", count)
	_, got := runWith(t, l, "python", "tools.s.t()\nopen('token.tmp', 'w').write(os.environ['GLOVEBOX_TOOLS_TOKEN'])\nos.rename('token.tmp', 'token')\n"+
		"end = time.time() + 20\nwhile time.time() < end and not (os.path.exists('stolen') and open('stolen').read().endswith('\\n') and os.path.exists('stolen2') and open('stolen2').read().endswith('\\n')): time.sleep(0.02)\n"+
		"print(open('stolen').read(), open('stolen2').read())", count)
	if calls.Load() != 1 || strings.Count(got, "may not call tools") != 2 {
		t.Errorf("%d calls, the thieves got %q", calls.Load(), got)
	}
	// Another interpreter of the box, with the token of the run in progress.
	os.Remove(filepath.Join(g.home, "token"))
	other := make(chan string, 1)
	go func() {
		var r record
		polltest.Soon(20*time.Second, func() bool { _, err := os.Stat(filepath.Join(g.home, "token")); return err == nil })
		_, err := l.Exec(context.Background(), protocol.Exec{Shell: ". ./token; PATH=$PATH:$BIN glovebox-tool s.t; echo done >seen"}, nil, &r)
		other <- fmt.Sprint(err, string(r.err))
	}()
	runWith(t, l, "python", "e = os.environ\nopen('token.tmp', 'w').write('export BIN=%s GLOVEBOX_TOOLS=%s GLOVEBOX_TOOLS_TOKEN=%s' % (os.path.dirname(e['GLOVEBOX_TOOLS']), e['GLOVEBOX_TOOLS'], e['GLOVEBOX_TOOLS_TOKEN']))\nos.rename('token.tmp', 'token')\n"+
		"end = time.time() + 20\nwhile time.time() < end and not os.path.exists('seen'): time.sleep(0.02)", count)
	if got := <-other; calls.Load() != 1 || !strings.Contains(got, "did not start it") {
		t.Errorf("%d calls, another command got %q", calls.Load(), got)
	}
	// The token of a run that has ended.
	_, got = runWith(t, l, "python", "!. ./token; glovebox-tool s.t 2>&1", count)
	if calls.Load() != 1 || !strings.Contains(got, "has ended") {
		t.Errorf("%d calls, an old token got %q", calls.Load(), got)
	}
}

// TestCalls_switchedOff checks that runs without calls, in interpreters that could call before, say
// that code mode is off, and that later runs can call again.
func TestCalls_switchedOff(t *testing.T) {
	l, _ := newConn(t)
	for _, tc := range []struct{ language, call, search, child string }{
		{"python", "tools.s.t(a=1)", "tools.search('x')", "!glovebox-tool s.t a=1 2>&1"},
		{"javascript", "await tools.s.t({a: 1})", "await tools.search('x')", "console.log(require('child_process').spawnSync('glovebox-tool', ['s.t', 'a=1']).stderr.toString())"},
	} {
		runWith(t, l, tc.language, tc.call, echo)
		for code, want := range map[string]string{
			tc.call:   "s.t: code mode is off for this connection: code cannot call tools, and nothing was called. Call s.t directly instead, without code. To switch code mode on, connect without ?codemode=false to a Glovebox that was started with --tools [denied]",
			tc.search: "Call the tools of your servers directly instead",
			tc.child:  "code mode is off for this connection",
		} {
			if _, got := runWith(t, l, tc.language, code, nil); !strings.Contains(got, want) {
				t.Errorf("%s: %s: got %q, want %q", tc.language, code, got, want)
			}
		}
		if _, got := runWith(t, l, tc.language, tc.call, echo); strings.Contains(got, "Error") {
			t.Errorf("%s: the next run with calls got %q", tc.language, got)
		}
	}
}

// TestCalls_endWithRun checks that a call ends with its run: by time-out, when the
// program gives up, and when the caller does.
func TestCalls_endWithRun(t *testing.T) {
	checkGoroutines(t)
	l, _ := newConn(t)
	const note = "Note: 1 tool call was still in progress and was cancelled; the tool may have run, unless a note says otherwise: tools.s.t\n"
	for name, tc := range map[string]struct {
		code  string
		limit int64
		note  string // to the program's error output
	}{
		"the program ends": {"import threading\nthreading.Thread(target=lambda: tools.s.t(), daemon=True).start()\nimport time\nwhile not os.path.exists('called'): time.sleep(0.01)", 50_000, ""},
		"time-out":         {"tools.s.t()", 500, note},
		"time-out, async":  {"await tools.s.t()", 500, note},
		"gives up":         {"import asyncio\ntry:\n    await asyncio.wait_for(tools.s.t(), 0.3)\nexcept TimeoutError:\n    print('gave up')\nexcept asyncio.TimeoutError:\n    print('gave up')", 50_000, note},
	} {
		t.Run(name, func(t *testing.T) {
			l.Remove(t.Context(), protocol.Remove{Path: "called"})
			ended := make(chan error, 1)
			block := hostFunc(func(ctx context.Context, _ string, _ []byte) ([]byte, error) {
				l.Write(context.WithoutCancel(ctx), protocol.Write{Path: "called"}, strings.NewReader("x"))
				<-ctx.Done()
				ended <- context.Cause(ctx)
				return nil, context.Cause(ctx)
			})
			var r record
			start := time.Now()
			res, err := l.RunWithCalls(t.Context(), protocol.Run{Kernel: "python", Language: "python", TimeoutMS: tc.limit}, []byte("import os\n"+tc.code), &r, block)
			if err != nil || res.Lost != "" {
				t.Fatalf("got %+v, %v", res, err)
			}
			select {
			case err := <-ended:
				if err == nil {
					t.Error("the call has no cause of its end")
				}
			default:
				t.Error("the run ended before its call")
			}
			if d := time.Since(start); d > 10*time.Second {
				t.Errorf("took %v", d)
			}
			if got := string(r.err); !strings.Contains(got, tc.note) || tc.note == "" && got != "" {
				t.Errorf("got the error output %q, want %q", got, tc.note)
			}
			// A note is of one run.
			r = record{}
			if _, err := l.RunWithCalls(t.Context(), protocol.Run{Kernel: "python", Language: "python", TimeoutMS: 50_000}, []byte("1"), &r, block); err != nil || strings.Contains(string(r.err), "Note:") {
				t.Errorf("the next run: error output %q, %v", r.err, err)
			}
		})
	}
}

// TestCalls_notAwaited checks that a cell reports its JavaScript calls that are in
// progress when it ends, and that later cells do not report them again.
func TestCalls_notAwaited(t *testing.T) {
	checkGoroutines(t)
	l, g := newConn(t)
	host := hostFunc(func(ctx context.Context, method string, args []byte) ([]byte, error) {
		if strings.Contains(string(args), "slow") {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		time.Sleep(20 * time.Millisecond) // in progress when the code ends
		return echo(ctx, method, args)
	})
	const wait = "await new Promise((r) => setTimeout(r, 200)); "
	const advice = ". Await each call; Promise.all waits only until one fails, Promise.allSettled for all\n"
	for _, tc := range []struct {
		name, code, out, err string
		limit                int64
		fails                string           // name of the error
		after                func(*testing.T) // called after the run, if set
	}{
		{name: "async main", code: "async function main() { const r = await tools.s.t({a: 1}); console.log(r.a, await tools.s.t({a: 2})) }\nmain().catch(console.error)", out: "1 { a: 2 }\n"},
		{name: "function called at once", code: "(async () => { console.log(await tools.s.t({a: 3})) })();", out: "{ a: 3 }\n"},
		{name: "value", code: "tools.s.t({a: 4})", out: "Promise { { a: 4 } }\n"},
		{name: "statement", code: "tools.files.slow({}); console.log('done')", out: "done\n", err: "Note: 1 tool call was still in progress and was cancelled when the run ended; the tool may have run, unless a note says otherwise: tools.files.slow" + advice},
		{name: "next cell", code: wait + "1", out: "1\n"},
		{name: "kept", code: "const kept = tools.files.slow({}); console.log(kept.entities)", out: "undefined\n", err: "Note: 1 tool call was still in progress and was cancelled when the run ended; the tool may have run, unless a note says otherwise: tools.files.slow" + advice},
		{name: "kept, later", code: "try { await kept } catch (e) { console.log(e.code, e.message.includes('tools.files.slow')) }", out: "interrupted true\n"},
		{name: "caught", code: "tools.s.slow().catch((e) => console.log(e.code)); undefined", out: "interrupted\n", err: "Note: 1 tool call was still in progress and was cancelled when the run ended; the tool may have run, unless a note says otherwise: tools.s.slow" + advice},
		{name: "more than the limit", code: "for (let i = 0; i < 70; i++) callTool('s.slow'); undefined", err: "Note: 70 tool calls were still in progress and were cancelled when the run ended; the tools may have run, unless a note says otherwise: tools.s.slow, ..." + advice},
		{name: "Promise.all", code: "await Promise.all([tools.s.slow(), Promise.reject(new RangeError('no'))])", fails: "RangeError", err: "Note: 1 tool call was still in progress and was cancelled when the run ended; the tool may have run, unless a note says otherwise: tools.s.slow" + advice},
		{name: "next cell of many", code: wait + "(await tools.s.t({a: 5})).a", out: "5\n"},
		{name: "call after the run", code: "const fs = require('fs'); const poll = setInterval(() => { if (!fs.existsSync('ended')) return; clearInterval(poll); tools.files.late({}); fs.writeFileSync('called', '') }, 1); undefined", after: func(t *testing.T) {
			if err := os.WriteFile(filepath.Join(g.home, "ended"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			if !polltest.Soon(20*time.Second, func() bool { _, err := os.Stat(filepath.Join(g.home, "called")); return err == nil }) {
				t.Fatal("the code does not run after its run has ended")
			}
		}},
		{name: "reported later", code: wait + "2", out: "2\n", err: "~\n\nToolError: tools.files.late was called after its run had ended and did not run; use top-level await [interrupted]\n    at"},
		{name: "time-out", code: "await tools.s.slow()", limit: 300, fails: "Interrupted", err: "Note: 1 tool call was still in progress and was cancelled when the run ended; the tool may have run, unless a note says otherwise: tools.s.slow\n"},
		{name: "time-out of a promise", code: "(async () => { await tools.s.slow() })()", limit: 300, fails: "Interrupted", err: "Note: 1 tool call was still in progress and was cancelled when the run ended; the tool may have run, unless a note says otherwise: tools.s.slow\n"},
		{name: "next cell of a time-out", code: wait + "4", out: "4\n"},
		{name: "endless retries", code: "(async () => { for (;;) try { await tools.s.slow() } catch {} })(); undefined", err: "Note: 1 tool call was still in progress and was cancelled when the run ended; the tool may have run, unless a note says otherwise: tools.s.slow" + advice},
		{name: "next cell of retries", code: wait + "3", out: "3\n", err: "~Note: 1 tool call was"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var r record
			if tc.limit == 0 {
				tc.limit = 50_000
			}
			res, err := l.RunWithCalls(t.Context(), protocol.Run{Kernel: "javascript", Language: "javascript", TimeoutMS: tc.limit}, []byte(tc.code), &r, host)
			if err != nil {
				t.Fatal(err)
			}
			out, fails := string(r.out), ""
			for _, d := range r.displays {
				out += d.Data["text/plain"] + "\n"
			}
			if res.Error != nil {
				fails = res.Error.Name
			}
			part, isPart := strings.CutPrefix(tc.err, "~")
			if out != tc.out || fails != tc.fails || string(r.err) != tc.err && !(isPart && strings.Contains(string(r.err), part)) {
				t.Errorf("got %q, %q, error %q; want %q, %q, error %q", out, r.err, fails, tc.out, tc.err, tc.fails)
			}
			if tc.after != nil {
				tc.after(t)
			}
		})
	}
}

// TestCalls_resumed checks that a call in progress fails when the connection is resumed,
// as after hibernation, and says so.
func TestCalls_resumed(t *testing.T) {
	g := newGuest(t)
	l, err := client.Open(t.Context(), g, g.options())
	if err != nil {
		t.Fatal(err)
	}
	called := make(chan struct{}, 1)
	block := hostFunc(func(ctx context.Context, _ string, _ []byte) ([]byte, error) {
		called <- struct{}{}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	done := make(chan error, 1)
	go func() {
		_, err := l.RunWithCalls(context.Background(), protocol.Run{Kernel: "python", Language: "python"},
			[]byte("import threading\ngot = None\ndef f():\n    global got\n    try:\n        tools.s.t()\n    except ToolError as e:\n        got = e\nth = threading.Thread(target=f)\nth.start()\nth.join()"), nil, block)
		done <- err
	}()
	<-called
	l.Close()
	if err := <-done; !errors.Is(err, client.ErrLost) {
		t.Errorf("got error %v, want ErrLost", err)
	}
	l, err = client.Resume(t.Context(), g, g.options())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, got := runWith(t, l, "python", "th.join()\nprint(got.code, got.message)\nprint(tools.s.t(a=1))", echo)
	if !strings.HasPrefix(got, "interrupted the box was hibernated, or its server restarted, during the call; whether the tool ran is unknown\n") || !strings.HasSuffix(got, "{'a': 1}\n") {
		t.Errorf("got %q", got)
	}
}
