package kernel

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// cell is a cell and its expected results. Strings that begin with ~ must be contained,
// others must be equal.
type cell struct {
	code  string
	out   string
	err   string
	value string // of the last expression
	error string // name of the error
	value2,
	trace string // of the error
	not   string // must not be in the traceback
	stop  bool   // runs with a short timeout, which must end it
	shows int    // displays besides the value
}

func matches(got, want string) bool {
	if part, ok := strings.CutPrefix(want, "~"); ok {
		return strings.Contains(got, part)
	}
	return got == want
}

func runCells(t *testing.T, k *Kernel, cells []cell) {
	t.Helper()
	for _, c := range cells {
		req := Request{Code: []byte(c.code), Timeout: 60 * time.Second}
		if c.stop {
			req.Timeout = 150 * time.Millisecond
		}
		res, rec := runWith(t, k, req)
		var e protocol.RunError
		if res.Error != nil {
			e = *res.Error
		}
		shows := len(rec.displays)
		if rec.value() != "" {
			shows--
		}
		stopped := ""
		if c.stop {
			stopped = "timeout"
		}
		if res.Lost != "" || res.OK != (c.error == "") || res.Stopped != stopped || e.Name != c.error ||
			!matches(rec.out.String(), c.out) || !matches(rec.err.String(), c.err) || !matches(rec.value(), c.value) ||
			!matches(e.Value, c.value2) && c.value2 != "" || !matches(e.Traceback, c.trace) && c.trace != "" ||
			c.not != "" && strings.Contains(e.Traceback, c.not) || shows != c.shows || strings.Contains(e.Traceback, "glovebox") {
			t.Errorf("cell %.300q:\n got %+v\n error %+v\n out %.2000q\n err %.2000q\n displays %.2000v\nwant %+v", c.code, res, e, rec.out.String(), rec.err.String(), rec.displays, c)
		}
		if res.Lost != "" {
			t.FailNow()
		}
	}
}

func TestPythonCells(t *testing.T) {
	for _, py := range pythons(t) {
		version := pythonVersion(t, py)
		for _, story := range pythonStories(version) {
			t.Run(version+"/"+story.name, func(t *testing.T) {
				t.Parallel()
				runCells(t, start(t, Python, py), story.cells)
			})
		}
	}
}

func pythonVersion(t *testing.T, py string) string {
	b, err := exec.Command(py, "-c", "import sys; print('%d.%02d' % sys.version_info[:2])").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

type story struct {
	name  string
	cells []cell
}

func pythonStories(version string) []story {
	stories := []story{
		{"state", []cell{
			{code: "x = 41\ny = [x]"},
			{code: "x + 1", value: "42"},
			{code: "__name__", value: "'__main__'"},
			{code: "print(x); y", out: "41\n", value: "[41]"},
			{code: "def f(a):\n    return a * x"},
			{code: "f(2)", value: "82"},
			{code: "import sys; sys.argv", value: "['']"},
			{code: "sorted(n for n in globals() if not n.startswith('__'))", value: "['f', 'sys', 'x', 'y']"},
			{code: "", value: ""},
			{code: "# nothing"},
			{code: "\n\n"},
		}},
		{"values", []cell{
			{code: "1 + 1", value: "2"},
			{code: "_ + 1", value: "3"},
			{code: "__", value: "2"},
			{code: "None"},
			{code: "1;"},
			{code: "(1\n) ; # quiet"},
			{code: "'a;b'", value: "'a;b'"},
			{code: "x = 5"},
			{code: "for i in range(3): i"},
			{code: "1\n2", value: "2"},
			{code: "class R:\n    def __repr__(self): raise ValueError('in repr')\nR()", error: "ValueError", trace: "~line 2, in __repr__"},
			{code: "'x' * 1000000", value: "~characters left out"},
			{code: "display(1, 'a')", shows: 2},
			{code: "import builtins; builtins.len([1])", value: "1"},
			{code: "del builtins.display; 7", value: "7"},
		}},
		{"errors", []cell{
			{code: "def f():\n    1/0\n"},
			{code: "f()", error: "ZeroDivisionError", value2: "division by zero", trace: "~  File \"<cell 1>\", line 2, in f\n    1/0\n"},
			{code: "x = = 1", error: "SyntaxError", trace: "~  File \"<cell 3>\", line 1\n    x = = 1\n        ^\nSyntaxError: invalid syntax"},
			{code: "if True:\nprint(1)", error: "IndentationError", trace: "~line 2"},
			{code: "try:\n    1/0\nexcept Exception as e:\n    raise KeyError('k') from e", error: "KeyError", value2: "'k'", trace: "~direct cause"},
			{code: "raise type('N' * 3000000, (Exception,), {})", error: strings.Repeat("N", 192) + "\n... 2999744 characters left out ...\n" + strings.Repeat("N", 64)},
			{code: "try:\n    1/0\nexcept Exception as e:\n    raise KeyError('k')", error: "KeyError", trace: "~During handling"},
			{code: "def r(n): return r(n + 1)\nr(0)", error: "RecursionError", trace: "~more times]"},
			{code: "def a(n): return b(n)\ndef b(n): return a(n)\nimport sys; sys.setrecursionlimit(3000); a(0)", error: "RecursionError", trace: "~characters left out"},
			{code: "raise Exception('x' * 1000000)", error: "Exception", trace: "~characters left out"},
			{code: "class E(Exception):\n    def __str__(self): raise SystemExit\nraise E", error: "E"},
			{code: "raise BaseException('b')", error: "BaseException", value2: "b"},
			{code: "import json; json.loads('{')", error: "JSONDecodeError", trace: "~json.loads('{')"},
			{code: "import sys; sys.last_value", value: "JSONDecodeError('Expecting property name enclosed in double quotes: line 1 column 2 (char 1)')"},
			{code: "int('x')", error: "ValueError", trace: "~Traceback (most recent call last):\n  File \"<cell 15>\", line 1, in <module>\n    int('x')\n"},
			{code: "import sys; sys.exit(3)", error: "SystemExit", value2: "3", trace: "SystemExit: 3\n"},
			{code: "exit('bye')", error: "SystemExit", value2: "bye"},
			{code: "sys.exit(0)"},
			{code: "exit()"},
			{code: "raise KeyboardInterrupt", error: "KeyboardInterrupt"},
			{code: "import warnings; warnings.warn('careful')", err: "~<cell 21>:1: UserWarning: careful\n  import warnings; warnings.warn('careful')"},
			{code: "input('name? ')", error: "EOFError", out: "name? ", value2: "~there is no terminal: write the value into the code"},
			{code: "import io, sys\nsys.stdin = io.StringIO('Ada\\n36\\n')\n(input('name? '), int(input()))", out: "name? ", value: "('Ada', 36)"},
			{code: "input()", error: "EOFError"},
			{code: "sys.stdin = sys.__stdin__"},
			{code: "sys.stdin.read()", value: "''"},
			{code: "1/0  # é \u4e2d", error: "ZeroDivisionError", trace: "~é 中"},
		}},
		{"hostile code", []cell{
			{code: "a\x00b", error: "SyntaxError", trace: "~null bytes"},
			{code: "x = 1\ny = '\xff'", error: "SyntaxError", value2: "~line 2"},
			{code: "# -*- coding: latin-1 -*-\n'é'", value: "'é'"},
			{code: "\xef\xbb\xbfx = 1\r\n!echo a\r\nx", out: "a\n", value: "1"},
			{code: "a = '\x0c\u2028'\n\x0cb = 1\n1/0", error: "ZeroDivisionError", trace: "~line 3, in <module>\n    1/0\n"},
			{code: "x = '" + strings.Repeat("y", 10<<20) + "'; len(x)", value: "10485760"},
			{code: "import builtins, sys, os, io, json\ndel builtins.print, builtins.len, builtins.isinstance\nos.write = None; os.read = None; json = None; io.TextIOWrapper = None"},
			{code: "1/0", error: "ZeroDivisionError", trace: "~1/0"},
			{code: "print(1); len([1])", out: "1\n", value: "1"},
			{code: "builtins.__import__ = None"},
			{code: "2+2", value: "4"},
			{code: "raise ValueError('v')", error: "ValueError"},
			{code: "import json"},
			{code: "import sys; sys.modules.clear()"},
			{code: "1/0", error: "ZeroDivisionError"},
			{code: "import os, sys, json\nprint(json.dumps({}))", out: "{}\n"},
			{code: "import sys\ndef t(f, e, a): print('traced'); return t\nsys.settrace(t)", out: "~"},
			{code: "def u(): pass\nu()", out: "~traced\n"},
			{code: "sys.settrace(None)", out: "~"},
			{code: "import gc; gc.disable(); gc.collect();"},
			{code: "x = bytearray(10**15)", error: "MemoryError"},
			{code: "ok = 1; ok", value: "1"},
			{code: "globals().clear()"},
			{code: "1/0", error: "ZeroDivisionError"},
			{code: "__name__ = 'other'; print('x')", out: "x\n"},
			{code: "import _thread; _thread.interrupt_main()\nimport time\ntime.sleep(1)", error: "KeyboardInterrupt"},
		}},
		{"streams", []cell{
			{code: "import sys, os\nfor i in range(3):\n    print(i); print('e%d' % i, file=sys.stderr)", out: "0\n1\n2\n", err: "e0\ne1\ne2\n"},
			{code: "sys.stdout.write('no newline')", out: "no newline", value: "10"},
			{code: "(sys.stdout.isatty(), sys.stdout.encoding, sys.stdout.fileno(), sys.stderr.fileno(), sys.stdout.name)", value: "(False, 'utf-8', 1, 2, '<stdout>')"},
			{code: "print('\\ud800 \\udcff é')", out: "\\ud800 \\udcff é\n"},
			{code: "sys.stdout.buffer.write(b'\\xff\\n');", out: "\xff\n"},
			{code: "os.write(1, b'raw\\n'); os.write(2, b'err\\n'); print('x')", out: "raw\nx\n", err: "err\n"},
			{code: "print('a'); os.system('echo b'); print('c')", out: "a\nb\nc\n"},
			{code: "import subprocess\nprint('a')\nsubprocess.run(['sh', '-c', 'echo b; echo e >&2'])\nprint('c')", out: "a\nb\nc\n", err: "e\n"},
			{code: "sys.stdout.close(); print('still')", out: "still\n"},
			{code: "print('again')", out: "again\n"},
			{code: "import io\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8')\nprint('wrapped')", out: "wrapped\n"},
			{code: "print('next')\nsys.stdout = None\nprint('lost')", out: "next\n"},
			{code: "print('back')", out: "back\n"},
			{code: "sys.stdout.detach();"},
			{code: "print('detached')", out: "detached\n"},
			{code: "import contextlib\nb = io.StringIO()\nwith contextlib.redirect_stdout(b): print('in')\nb.getvalue()", value: "'in\\n'"},
			{code: "sys.stdout = f = open('log', 'w'); print('to file')"},
			{code: "print('more'); f.close()"},
			{code: "print(open('log').read())", out: "to file\nmore\n\n"},
			{code: "import logging; logging.warning('hm')", err: "WARNING:root:hm\n"},
			{code: "print('x' * 3000000)", out: strings.Repeat("x", 3000000) + "\n"},
			{code: "for i in range(20000): print(i)", out: numbers(20000)},
			{code: "import ctypes; ctypes.CDLL(None).puts(b'libc'); ctypes.CDLL(None).fflush(None);", out: "libc\n"},
			{code: "print(b'\\x00\\x00\\x00\\x0dD{\"run\":1,\"ok\":true}', chr(0) * 3 + '\\rD{}')", out: "~D{"},
			{code: "os.close(1)"},
			{code: "print('after close')", out: "after close\n"},
			{code: "!echo from a child", out: "from a child\n"},
			{code: "os.dup2(os.open('/dev/null', os.O_WRONLY), 1);"},
			{code: "!echo from a child", out: "from a child\n"},
			{code: "os.close(0); os.close(2); print('x')", out: "x\n"},
		}},
		{"await", []cell{
			{code: "import asyncio\nawait asyncio.sleep(0.01, 'done')", value: "'done'"},
			{code: "async def f(): return 7\nx = await f()\nx", value: "7"},
			{code: "async def g():\n    for i in range(3): yield i\nasync for i in g(): print(i)", out: "0\n1\n2\n"},
			{code: "[i async for i in g()]", value: "[0, 1, 2]"},
			{code: "n = 0\nasync def count():\n    global n\n    while True:\n        n += 1\n        await asyncio.sleep(0.001)\nt = asyncio.create_task(count()); await asyncio.sleep(0.02)"},
			{code: "m = n; m > 0", value: "True"},
			{code: "import time; time.sleep(0.01); await asyncio.sleep(0.02); n > m", value: "True"},
			{code: "t.cancel();"},
			{code: "asyncio.run(f())", value: "7"},
			{code: "await f()", value: "7"},
			{code: "asyncio.get_event_loop().run_until_complete(f())", value: "7"},
			{code: "async def bad():\n    raise ValueError('b')\nawait bad()", error: "ValueError", trace: "~File \"<cell 12>\", line 2, in bad", not: "base_events"},
			{code: "await asyncio.sleep(100)", error: "KeyboardInterrupt", stop: true, trace: "~await asyncio.sleep(100)", not: "base_events"},
			{code: "async def spin():\n    while True: pass\nawait spin()", error: "KeyboardInterrupt", stop: true, trace: "~in spin"},
			{code: "await f()", value: "7"},
			{code: "import concurrent.futures\nl = asyncio.get_running_loop()\nx = await l.run_in_executor(None, lambda: 5)\nx", value: "5"},
			{code: "await asyncio.gather(f(), f())", value: "[7, 7]"},
		}},
		{"interrupt", []cell{
			{code: "while True: pass", error: "KeyboardInterrupt", stop: true, trace: "~while True: pass"},
			{code: "import time; time.sleep(100)", error: "KeyboardInterrupt", stop: true},
			{code: "import subprocess; subprocess.run(['sleep', '100'])", error: "KeyboardInterrupt", stop: true},
			{code: "!sleep 100", error: "KeyboardInterrupt", stop: true},
			{code: "x = !sleep 100", error: "KeyboardInterrupt", stop: true},
			{code: "%%bash\nsleep 100", error: "KeyboardInterrupt", stop: true},
			{code: "import threading; threading.Event().wait(100)", error: "KeyboardInterrupt", stop: true},
			{code: "while True: print('x' * 10000)", error: "KeyboardInterrupt", stop: true, out: "~xxx"},
			{code: "try:\n    time.sleep(100)\nfinally:\n    print('cleaned')", error: "KeyboardInterrupt", stop: true, out: "cleaned\n"},
			{code: "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN);"},
			{code: "time.sleep(100)", error: "KeyboardInterrupt", stop: true},
			{code: "try:\n    time.sleep(100)\nexcept KeyboardInterrupt:\n    print('caught')", stop: true, out: "caught\n"},
			{code: "class T(Exception): pass\ndef h(*a): raise T\nsignal.signal(signal.SIGALRM, h); signal.setitimer(signal.ITIMER_REAL, 0.05)\nwhile True: print('y' * 5000)", error: "T", out: "~yyy"},
			{code: "go = False\ndef h(*a):\n    if go:\n        signal.setitimer(signal.ITIMER_REAL, 0)\n        raise T\nsignal.signal(signal.SIGALRM, h); signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02);"},
			{code: "go = True\ntime.sleep(100)", error: "T"},
			{code: "1", value: "1"},
		}},
		{"shell", []cell{
			{code: "!echo hello", out: "hello\n"},
			{code: "x = 'val'\n!echo {x} $x {x.upper()} ${HOME:+home} {nosuch} '{print $1}'", out: "val val VAL home {nosuch} {print $1}\n"},
			{code: "y = !printf 'a\\nb\\n'\nprint(y, y.s)", out: "['a', 'b'] a b\n"},
			{code: "!exit 3"},
			{code: "_exit_code", value: "3"},
			{code: "for i in range(2):\n    !echo {i}\n    if i:\n        !echo last", out: "0\n1\nlast\n"},
			{code: "def f(n):\n    !echo n={n}\nf(4)", out: "n=4\n"},
			{code: "s = '''\n!not a command\n%nor a magic\n'''\nprint(s)\n!echo yes", out: "\n!not a command\n%nor a magic\n\nyes\n"},
			{code: "v = (7\n% 4)\nprint(v)", out: "3\n"},
			{code: "a = [1,\n  2]\nw = (5\n%3)\n!echo {w}", out: "2\n"},
			{code: "!echo one \\\n  two\nprint(1/0)", error: "ZeroDivisionError", out: "one two\n", trace: "~line 3"},
			{code: "!echo \"it's\" '#' \"unbalanced ( [\"\nz = 1\n!echo $z", out: "it's # unbalanced ( [\n1\n"},
			{code: "!!echo listed", value: "['listed']"},
			{code: "%%bash\nfor i in 1 2; do echo $i; done", out: "1\n2\n"},
			{code: "%%sh\nexit 2", error: "CalledProcessError"},
			{code: "%%writefile a/../file.txt\nx\ny", error: "FileNotFoundError", out: "~a/../file.txt"},
			{code: "%%writefile file.txt\nx\ny", out: "Writing file.txt\n"},
			{code: "%cat file.txt", out: "x\ny\n"},
			// Not every machine has pip; what is in the directory goes first.
			{code: "%%writefile pip.py\nimport sys; print('pip', *sys.argv[1:])", out: "Writing pip.py\n"},
			{code: "%pip --version", out: "~pip --version\n"},
			{code: "%%writefile ran.py\nimport sys; ran = sys.argv, __name__, globals().get('x')", out: "Writing ran.py\n"},
			{code: "x = 8\n%run -i ran one -i\nprint(ran)\n%run ran.py\nran", out: "(['ran.py', 'one', '-i'], '__main__', 8)\n", value: "(['ran.py'], '__main__', None)"},
			{code: "%run -m ran\nran[1]", value: "'__main__'"},
			{code: "%%bash --out o --err e\necho captured; echo failed >&2"},
			{code: "o, e", value: "('captured\\n', 'failed\\n')"},
			{code: "%%bash --no-raise-error a\necho $1; exit 3", out: "a\n"},
			{code: "%%capture all\nimport sys\nprint('o'); print('e', file=sys.stderr); display(1)\n5"},
			{code: "all.stdout, all.stderr, all.outputs", value: "('o\\n', 'e\\n', [1, 5])"},
			{code: "all()", out: "o\n", err: "e\n", shows: 2},
			{code: "%%capture --no-stderr\nprint('o'); print('e', file=sys.stderr)", err: "e\n"},
			{code: "h = display('one', display_id=True)\nh.update('two')", shows: 2},
			{code: "%cd /", out: "/\n"},
			{code: "%cd -q /usr\n%cd -", out: "/\n"},
			{code: "%pwd", value: "'/'"},
			{code: "%env GB_X=5", out: "env: GB_X=5\n"},
			{code: "!echo $GB_X", out: "5\n"},
			{code: "%matplotlib inline\n%load_ext autoreload\n%config InlineBackend.figure_format = 'retina'"},
			{code: "%time sum(range(10))", out: "~Wall time", value: "45"},
			{code: "%%time\nq = 1\nq + 1", out: "~Wall time", value: "2"},
			{code: "%%time\n\n1/0", error: "ZeroDivisionError", out: "~Wall time", trace: "~line 3, in <module>\n    1/0"},
			{code: "%timeit -n 2 -r 2 pass", out: "~per loop"},
			{code: "t = %timeit -o -q -n 2 -r 3 pass\n0 < t.best <= t.average <= t.worst, t.loops, len(t.all_runs)", value: "(True, 2, 3)"},
			{code: "%%timeit -n 2 -r 2\nx = 1\ny = 2", out: "~per loop"},
			{code: "%nosuchmagic x", error: "SyntaxError", value2: "~%nosuchmagic is not a magic"},
			{code: "%%nosuchmagic x\ny", error: "SyntaxError", value2: "~%%nosuchmagic is not a magic"},
			{code: "%%capture c\nprint('hidden')\n1"},
			{code: "c.stdout", value: "'hidden\\n'"},
			{code: "x = ! \n", error: "SyntaxError"},
			{code: "x = 5\nx %2\n!echo", value: "", out: "\n"},
			{code: "print?", out: "~Docstring"},
			{code: "%%html\n<b>x</b>", shows: 1},
		}},
		{"beyond Python", []cell{
			{code: "please compute the sum of all numbers up to ten", error: "SyntaxError", trace: "~please compute"},
			{code: "from collections.abc import MutableMapping as Mapping\nMapping(", error: "SyntaxError", value2: "~never closed"},
			{code: "%matplotlib inline\nfrom collections.abc import MutableMapping as AVeryLongNameForAMapping\nimport multiprocessing.managers as m"},
			{code: "!echo a\nfrom nosuch_sklearn.ensemble import RandomForestClassifier", out: "a\n", error: "ModuleNotFoundError"},
			{code: "!echo a\nx = = 1", error: "SyntaxError", trace: "~line 2"},
			{code: "class Some: pass\nsome, l, d = Some(), [0], {}\nsome.attr = !echo a\nl[0] = !echo b\nd['x = !'] = !echo c\na, b = !printf 'd\\ne'\nf: list = !echo f\nsome.attr, l, d, a, b, f", value: "(['a'], [['b']], {'x = !': ['c']}, 'd', 'e', ['f'])"},
			{code: "a, b = %sx printf 'd\\ne'\na, b", value: "('d', 'e')"},
			{code: "def f(**options): return options\nx = f(y = 1, z = '= !') ; w = !echo w\nx, w", value: "({'y': 1, 'z': '= !'}, ['w'])"},
			{code: "x = 7 \\\n  %4\nx != 3 # = !echo no\n!echo $x", out: "3\n"},
			{code: "    x = 1\n    if x:\n        !echo indented", out: "indented\n"},
			{code: ">>> for i in range(2):\n...     print(i)\n...", out: "0\n1\n"},
			{code: "In [1]: x = 5\n   ...: x + 1", value: "6"},
			{code: "print(1)\n%%time\nx", out: "1\n", error: "SyntaxError", value2: "%%time must be the first line of its cell"},
			{code: "%time?", out: "~%time"},
			{code: "get_ipython().run_line_magic('matplotlib', 'inline')\nget_ipython().system('echo {1 + 1}')\nget_ipython().run_cell_magic('bash', '', 'echo b')\nget_ipython().getoutput('echo c'), get_ipython().user_ns is globals()", out: "2\nb\n", value: "(['c'], True)"},
			{code: "get_ipython().magic('%env GB_Y=1')\nget_ipython().run_line_magic('nosuch', '')", out: "env: GB_Y=1\n", error: "SyntaxError"},
			{code: "len?\n?len\nlen??;", out: "~Signature: len(obj, /)\nDocstring:\nReturn the number of items"},
			{code: "what is this?", error: "SyntaxError"},
			{code: "!echo ${HOME:+${HOME:+home}} {len([1, 2])} {{x}} $$x ${", out: "", err: "~"},
		}},
		{"source", []cell{
			{code: "import inspect, pickle, dataclasses\ndef f(a):\n    # comment\n    return a + 1\n"},
			{code: "print(inspect.getsource(f))", out: "def f(a):\n    # comment\n    return a + 1\n\n"},
			{code: "@dataclasses.dataclass\nclass P:\n    x: int\n    y: int = 2\npickle.loads(pickle.dumps(P(1)))", value: "P(x=1, y=2)"},
			{code: "import linecache; linecache.clearcache()"},
			{code: "def g(): f('a')\ng()", error: "TypeError", trace: "~    return a + 1"},
			{code: "from __future__ import annotations"},
			{code: "def h(a: Undefined): pass\nh.__annotations__", value: "{'a': 'Undefined'}"},
			{code: "import multiprocessing as mp\ndef sq(x): return x * x\nwith mp.get_context('fork').Pool(2) as p: print(p.map(sq, [1, 2, 3]))", out: "[1, 4, 9]\n"},
			{code: "def say(): print('child')\np = mp.get_context('fork').Process(target=say); p.start(); p.join(); p.exitcode", out: "child\n", value: "0"},
			{code: "import math\nwith mp.get_context('spawn').Pool(1) as p: print(p.map(math.factorial, [5]))", out: "[120]\n"},
			{code: "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(2) as e: print(list(e.map(sq, [2, 3])))", out: "[4, 9]\n"},
		}},
		{"fork", []cell{
			{code: "import os, sys\nprint('before', end=' ')\npid = os.fork()\nif pid == 0:\n    print('in child'); sys.stdout.flush(); os._exit(5)\nos.waitpid(pid, 0)[1] >> 8", out: "before in child\n", value: "5", err: warning(version)},
			{code: "pid = os.fork()\nif pid:\n    st = os.waitpid(pid, 0)[1] >> 8\n    print('parent', st)\nelse:\n    raise ValueError('in child')", out: "parent 1\n", err: "~ValueError: in child"},
			{code: "pid = os.fork()\nif pid: print(os.waitpid(pid, 0)[1] >> 8)\nelse: sys.exit(4)", out: "4\n", err: warning(version)},
			{code: "pid = os.fork()\nif pid: print(os.waitpid(pid, 0)[1] >> 8)\n", out: "0\n", err: warning(version)},
			{code: "1", value: "1"},
			{code: "sorted(int(f) for f in os.listdir('/proc/self/fd'))[:3]", value: "[0, 1, 2]"},
			{code: "import fcntl; [fcntl.fcntl(f, fcntl.F_GETFD) & 1 for f in range(900, 905)]", value: "[1, 1, 1, 1, 1]"},
			{code: "[f for f in range(3, 9) if os.path.exists('/proc/%d/fd/%d' % (os.getpid(), f))]", value: "[]"},
		}},
		{"threads", []cell{
			{code: "import threading, time, sys\ndef w():\n    for i in range(5): time.sleep(0.02); print('late', i)\nt = threading.Thread(target=w); t.start(); print('started')", out: "~started"},
			{code: "t.join(); print('joined')", out: "~joined\n"},
			{code: "def bad(): raise ValueError('in thread')\nt = threading.Thread(target=bad); t.start(); t.join()", err: "~ValueError: in thread"},
			{code: "stop = False\ndef flood():\n    while not stop: print('z' * 1000)\nt = threading.Thread(target=flood); t.start()", out: "~"},
			{code: "time.sleep(0.1); stop = True; t.join()", out: "~zzz"},
			{code: "def many():\n    for i in range(200): print('line', i)\nts = [threading.Thread(target=many) for _ in range(4)]\n[t.start() for t in ts]; [t.join() for t in ts];", out: "~line 199\n"},
		}},
		{"rich", []cell{
			{code: "class H:\n    def _repr_html_(self): return '<b>'\n    def _repr_png_(self): raise ValueError\nH()", value: "~<__main__.H object"},
			{code: "class B:\n    def _repr_mimebundle_(self, include=None, exclude=None): return {'text/plain': 'bundle', 'application/json': {'a': 1}, 'image/png': b'123'}, {}\nB()", value: "bundle"},
			{code: "display(H(), B())", shows: 2},
			{code: "from IPython.display import HTML, Markdown, display as d, clear_output\nclear_output(); d(HTML('<i>')); Markdown('# t')", value: "~Markdown object", shows: 1},
			{code: "class Any:\n    def __getattr__(self, n): return lambda *a, **k: 1/0\n    def __repr__(self): return 'any'\nAny()", value: "any"},
			{code: "H", value: "<class '__main__.H'>"},
		}},
	}
	if version >= "3.11" {
		stories = append(stories, story{"groups", []cell{
			{code: "raise ExceptionGroup('g', [ValueError('a'), TypeError('b')])", error: "ExceptionGroup", trace: "~    | TypeError: b"},
			{code: "def f(): raise ValueError('n')\ntry:\n    f()\nexcept* ValueError as e: print(e.exceptions)", out: "(ValueError('n'),)\n"},
		}})
	}
	return stories
}

// warning is what Python 3.12 says of forks when threads run; there are none.
func warning(string) string { return "" }

func numbers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintln(&b, i)
	}
	return b.String()
}

func TestPythonRichData(t *testing.T) {
	k := start(t, Python, pythons(t)[0])
	run(t, k, "class B:\n    def _repr_mimebundle_(self, include=None, exclude=None): return {'text/plain': 'bundle', 'application/json': {'a': 1}, 'image/png': b'123'}, {}\n    def _repr_html_(self): return '<b>'")
	_, rec := run(t, k, "B()")
	want := map[string]string{"text/plain": "bundle", "application/json": `{"a": 1}`, "image/png": "MTIz", "text/html": "<b>"}
	if len(rec.displays) != 1 || !rec.displays[0].Result || fmt.Sprint(rec.displays[0].Data) != fmt.Sprint(want) {
		t.Errorf("got %+v, want %v", rec.displays, want)
	}
	res, rec := run(t, k, "for i in range(50): display(i)\n99")
	if len(rec.displays) != protocol.MaxDisplays || res.Dropped != 11 {
		t.Errorf("got %d displays and %d dropped, want 40 and 11", len(rec.displays), res.Dropped)
	}
	_, rec = run(t, k, "class Big:\n    def _repr_html_(self): return 'h' * 9000000\n    def _repr_latex_(self): return 'small'\nBig()")
	if len(rec.displays) != 1 || len(rec.displays[0].Data) != 2 || rec.displays[0].Data["text/latex"] != "small" {
		t.Errorf("got %.300v, want plain text and latex", rec.displays)
	}
	_, rec = run(t, k, "display({f'type/{i}': '' for i in range(1000)}, raw=True)")
	if len(rec.displays) != 1 || len(rec.displays[0].Data) != protocol.MaxRepresentations {
		t.Errorf("1000 representations: got %.300v, want %d of them", rec.displays, protocol.MaxRepresentations)
	}
	_, rec = run(t, k, "print('one'); display(1); print('two'); display(2)\n3")
	if got := rec.all.String(); got != "one\n<display>two\n<display><display>" {
		t.Errorf("got order %q", got)
	}
	_, rec = run(t, k, "import sys\nfor i in range(3): print(i); print(i, file=sys.stderr)")
	if got := rec.all.String(); got != "0\n0\n1\n1\n2\n2\n" {
		t.Errorf("got order %q", got)
	}
}

func TestPythonStreaming(t *testing.T) {
	for _, py := range pythons(t) {
		k := start(t, Python, py)
		for _, code := range []string{"import time\nprint('a'); time.sleep(0.4); print('b')", "!echo a; sleep 0.4; echo b"} {
			_, rec := run(t, k, code)
			if n := len(rec.times); n < 2 || rec.times[n-1].Sub(rec.times[0]) < 200*time.Millisecond {
				t.Errorf("%q: output came at %v", code, rec.times)
			}
		}
	}
}

// TestPythonBetweenRuns: a thread that prints between two runs does not block, and its
// output appears in the next run.
func TestPythonBetweenRuns(t *testing.T) {
	k := start(t, Python, pythons(t)[0])
	run(t, k, "import threading, time\ndef w():\n    for i in range(100000): print('x' * 100)\n    open('finished', 'w').close()\nthreading.Thread(target=w).start()\n!(sleep 0.2; yes | head -c 3000000; touch child-finished) &")
	polltest.Until(t, 20*time.Second, "both writers finish", func() bool {
		res, rec := run(t, k, "import os; (os.path.exists('finished'), os.path.exists('child-finished'))")
		if !res.OK {
			t.Fatalf("got %+v", res)
		}
		return rec.value() == "(True, True)"
	})
}

// TestPythonBackgroundTask: a task continues between two cells.
func TestPythonBackgroundTask(t *testing.T) {
	k := start(t, Python, pythons(t)[0])
	mark := filepath.Join(t.TempDir(), "counted")
	run(t, k, fmt.Sprintf("import asyncio\nasync def count():\n    for n in range(20): await asyncio.sleep(0.005)\n    open(%q, 'w').close()\nt = asyncio.create_task(count())", mark))
	polltest.Until(t, 10*time.Second, "the task has counted", exists(mark))
	if _, rec := run(t, k, "t.done()"); rec.value() != "True" {
		t.Errorf("the task is done: got %s", rec.value())
	}
}

func TestPythonFigures(t *testing.T) {
	for _, py := range pythons(t) {
		if exec.Command(py, "-c", "import matplotlib").Run() != nil {
			continue
		}
		t.Run(py, func(t *testing.T) {
			k := start(t, Python, py)
			for _, c := range []struct {
				code   string
				images int
				value  string // "image" if it is one
			}{
				{"import sys; 'matplotlib' in sys.modules", 0, "False"},
				{"import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()", 1, ""},
				{"plt.plot([1, 2]);", 1, ""},
				{"%%capture\nplt.plot([1, 2])", 0, ""},
				{"plt.figure(); plt.plot([1]); plt.figure(); plt.plot([2]);", 2, ""},
				{"1", 0, "1"},
				{"fig, ax = plt.subplots()\nax.plot([1])\nfig", 1, "image"},
				{"fig, ax = plt.subplots()\nax.plot([1])\nax", 1, "~Axes"},
				{"from matplotlib.figure import Figure\nf = Figure(); f.subplots().plot([1]); f", 1, "image"},
				{"fig = plt.figure(figsize=(200, 200)); plt.plot([1]);", 1, ""},
				{"plt.plot([1]); plt.text(1000, 1000, 'far away');", 1, ""},
				{"import matplotlib; matplotlib.use('Agg'); plt.plot([3]); plt.show()", 1, ""},
				{"plt.plot([1]); display(plt.gcf())", 1, ""},
				{"plt.figure();", 0, ""},
				{"plt.plot([1]); plt.savefig('a.png'); plt.close()", 0, ""},
				{"import pandas as pd; pd.DataFrame({'a': [1, 2]}).plot();", 1, ""},
				{"!MPLCONFIGDIR=/tmp " + py + " -c 'import matplotlib.pyplot as p; p.plot([1]); p.show(); print(p.get_backend())' | tr A-Z a-z", 0, ""},
			} {
				res, rec := run(t, k, c.code)
				if !res.OK {
					t.Errorf("%q: %+v", c.code, res.Error)
				}
				images, value := 0, ""
				for _, d := range rec.displays {
					data, ok := d.Data["image/png"]
					if ok {
						images++
						b, err := base64.StdEncoding.DecodeString(data)
						if err != nil {
							t.Fatal(err)
						}
						cfg, err := png.DecodeConfig(bytes.NewReader(b))
						if err != nil || cfg.Width*cfg.Height > 4_400_000 {
							t.Errorf("%q: got image %+v, error %v", c.code, cfg, err)
						}
					}
					if d.Result {
						value = d.Data["text/plain"]
						if ok {
							value = "image"
						}
					}
				}
				if images != c.images || !matches(value, c.value) {
					t.Errorf("%q: got %d images and value %q, want %d and %q", c.code, images, value, c.images, c.value)
				}
			}
			res, rec := run(t, k, "plt.plot([1]); 1/0")
			if res.OK || len(rec.displays) != 1 {
				t.Errorf("figure of a failed cell: got %+v, %d displays", res, len(rec.displays))
			}
			if res, _ := run(t, k, "plt.plot([1]); plt.title('$\\\\foo$');"); res.OK {
				t.Error("a figure that cannot be drawn is no error")
			}
			if res, rec := run(t, k, "import pandas as pd; pd.DataFrame({'a': [1]})"); !res.OK || !strings.Contains(rec.displays[0].Data["text/html"], "<table") {
				t.Errorf("data frame: got %+v %v", res.Error, rec.displays)
			}
		})
	}
}

func TestPythonPreload(t *testing.T) {
	home := t.TempDir()
	if err := os.WriteFile(home+"/mine.py", []byte("import os\nprint('hello')\nos.system('echo raw')\nx = 1"), 0o644); err != nil {
		t.Fatal(err)
	}
	k, err := Start(t.Context(), Config{Language: Python, Interpreter: pythons(t)[0], Home: home, Env: os.Environ(), Preload: []string{"json", "nosuchmodule", "mine"}})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	if got := strings.Join(k.Missing(), " "); got != "nosuchmodule" {
		t.Errorf("missing: got %q", got)
	}
	if _, rec := run(t, k, "import sys; ('json' in sys.modules, 'json' in globals(), sys.modules['mine'].x)"); rec.value() != "(True, False, 1)" || rec.all.String() != "<display>" {
		t.Errorf("got %s, %q", rec.value(), rec.all.String())
	}
	if k.Version() == "" || k.PID() <= 1 {
		t.Errorf("got version %q, pid %d", k.Version(), k.PID())
	}
}

// TestPythonTools_Replaced: a value that hides the library of tools fails as the note of
// package box expects, and del gives the library back.
func TestPythonTools_Replaced(t *testing.T) {
	for _, py := range pythons(t) {
		k := start(t, Python, py)
		with := func(code string) (Result, *recorder) {
			return runWith(t, k, Request{Code: []byte(code), Timeout: time.Minute, Tools: setup})
		}
		const want = "AttributeError: 'dict' object has no attribute 'search'"
		if res, _ := with("tools = {'x': 1}\ntools.search('x')"); res.Error == nil || !strings.Contains(res.Error.Traceback, "\n"+want) {
			t.Errorf("got %+v, want %s", res.Error, want)
		}
		if _, rec := with("del tools\ncallable(tools.search)"); rec.value() != "True" {
			t.Errorf("after del tools: got %q", rec.value())
		}
	}
}
