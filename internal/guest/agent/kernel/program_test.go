package kernel

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestProgram checks that a whole program ends when everything it started has ended.
func TestProgram(t *testing.T) {
	for _, c := range []struct {
		name, language, code string // FILE stands for a path
		out, err, file       string
		error                string
		exit                 string // exit of a process without a reply
		stop                 bool
	}{
		{name: "threads", language: Python, code: "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()\nprint('early')", out: "early\nlate\n"},
		{name: "executor", language: Python, code: "from concurrent.futures import ThreadPoolExecutor\nimport time\ne = ThreadPoolExecutor(1)\nf = e.submit(lambda: (time.sleep(0.2), print('late')))", out: "late\n"},
		{name: "daemon", language: Python, code: "import threading\nt = threading.Thread(target=threading.Event().wait, daemon=True); t.start()"},
		{name: "endless thread", language: Python, code: "import threading\nthreading.Thread(target=threading.Event().wait).start()", error: "KeyboardInterrupt", stop: true},
		{name: "atexit", language: Python, code: "import atexit\natexit.register(print, 'bye')\nprint('hi')", out: "hi\nbye\n"},
		{name: "atexit fails", language: Python, code: "import atexit\natexit.register(lambda: 1/0)", err: "~ZeroDivisionError"},
		{name: "open file", language: Python, code: "f = open('FILE', 'w'); f.write('x'); None", file: "x"},
		{name: "last value", language: Python, code: "def f():\n    g = open('FILE', 'w')\n    g.write('x')\n    return g\nf()", file: "x"},
		{name: "compressed", language: Python, code: "import zipfile\nz = zipfile.ZipFile('FILE', 'w')\nz.writestr('a', 'b')", file: "~PK\x05\x06"},
		{name: "error", language: Python, code: "def f():\n    g = open('FILE', 'w')\n    g.write('x')\n    1/0\nf()", error: "ZeroDivisionError", file: "x"},
		{name: "chain", language: Python, code: "def f():\n    g = open('FILE', 'w')\n    g.write('x')\n    1/0\ntry: f()\nexcept ZeroDivisionError: raise KeyError", error: "KeyError", file: "x"},
		{name: "exit", language: Python, code: "import sys, atexit\natexit.register(print, 'bye')\nsys.exit(4)", error: "SystemExit", out: "bye\n"},
		{name: "exit with words", language: Python, code: "import sys, atexit\natexit.register(print, 'bye', file=sys.stderr)\nsys.exit('5')", error: "SystemExit", err: "5\nbye\n"},
		{name: "exit without words", language: Python, code: "class Quit(SystemExit): pass\nraise Quit('')", error: "SystemExit", err: "\n"},
		{name: "of itself", language: Python, code: "import sys, os\nprint(os.path.isfile(__file__), sys.argv == [__file__])\ndef f(): 1/0\ntry: f()\nexcept ZeroDivisionError:\n    import traceback; traceback.print_exc()", out: "True True\n", err: "~PROGRAM\", line 3, in f\n    def f(): 1/0"},
		{name: "spawn", language: Python, code: "import multiprocessing as mp\ndef square(x): return x * x\nif __name__ == '__main__':\n    with mp.get_context('spawn').Pool(1) as p: print(p.map(square, [3]))", out: "[9]\n"},
		{name: "empty", language: Python},

		{name: "timer", language: JavaScript, code: "setTimeout(() => console.log('late'), 200); console.log('early')", out: "early\nlate\n"},
		{name: "main", language: JavaScript, code: "async function main() { await new Promise((r) => setTimeout(r, 200)); console.log('done') }\nmain()", out: "done\n"},
		{name: "callback", language: JavaScript, code: "require('fs').writeFile('FILE', 'x', () => console.log('written'))", out: "written\n", file: "x"},
		{name: "child", language: JavaScript, code: "require('child_process').exec('sleep 0.2; echo child', (e, out) => process.stdout.write(out)); undefined", out: "child\n"},
		{name: "top-level await", language: JavaScript, code: "await new Promise((r) => setTimeout(r, 50)); setTimeout(() => console.log('late'), 50); await 1; undefined", out: "late\n"},
		{name: "unsettled", language: JavaScript, code: "console.log('early'); await new Promise(() => {}); console.log('never')", out: "early\n", err: "~unsettled top-level await", exit: "exit code 13"},
		{name: "settled in time", language: JavaScript, code: "await new Promise((r) => require('fs').readFile('/dev/null', () => setImmediate(r))); console.log('done')", out: "done\n"},
		{name: "endless wait", language: JavaScript, code: "setInterval(() => {}, 10); await new Promise(() => {})", error: "Interrupted", stop: true},
		{name: "beforeExit", language: JavaScript, code: "process.on('beforeExit', () => console.log('before')); process.on('exit', (c) => console.log('exit', c)); undefined", out: "before\nexit 0\n"},
		{name: "beforeExit goes on", language: JavaScript, code: "let n = 0; process.on('beforeExit', () => { if (n++ < 2) setTimeout(() => console.log('more', n), 20) }); undefined", out: "more 1\nmore 2\n"},
		{name: "exit says the code", language: JavaScript, code: "process.on('exit', () => { console.log('last'); process.exitCode = 3 }); undefined", out: "last\n", exit: "exit code 3"},
		{name: "exit says the code later", language: JavaScript, code: "setTimeout(() => process.on('exit', () => { process.exitCode = 3 }), 20); undefined", exit: "exit code 3"},
		{name: "exit fails", language: JavaScript, code: "process.on('exit', () => { throw new TypeError('t') }); undefined", err: "~TypeError: t", exit: "exit code 1"},
		{name: "tests", language: JavaScript, code: "const test = require('node:test'); test('t', () => {}); undefined", out: "~pass 1\n"},
		{name: "exit code", language: JavaScript, code: "setTimeout(() => { process.exitCode = 5 }, 50); process.on('exit', (c) => console.log('exit', c)); undefined", out: "exit 5\n", exit: "exit code 5"},
		{name: "rejected", language: JavaScript, code: "(async () => { await null; throw new TypeError('t') })()", err: "~TypeError: t", exit: "exit code 1"},
		{name: "thrown later", language: JavaScript, code: "setTimeout(() => { throw new RangeError('r') }, 50); undefined", err: "~RangeError: r", exit: "exit code 1"},
		{name: "endless timer", language: JavaScript, code: "setInterval(() => {}, 10); undefined", error: "Interrupted", stop: true},
		{name: "error", language: JavaScript, code: "setInterval(() => {}, 10); null.x", error: "TypeError"},
		{name: "of itself", language: JavaScript, code: "const path = require('path'); console.log(path.join(__dirname, path.basename(__filename)) === __filename, require.main.filename === __filename)", out: "true true\n"},
		{name: "caught", language: JavaScript, code: "process.on('uncaughtException', (e, o) => console.log(e.message, o)); setTimeout(() => { throw new Error('late') }, 10); setTimeout(() => console.log('done'), 50); throw new Error('now')", out: "now uncaughtException\nlate uncaughtException\ndone\n"},
		{name: "caught rejection", language: JavaScript, code: "process.on('unhandledRejection', (e, p) => console.log(e.message, p instanceof Promise)); Promise.reject(new Error('r')); setTimeout(() => console.log('done'), 50); undefined", out: "r true\ndone\n"},
		{name: "caught like an exception", language: JavaScript, code: "process.on('uncaughtException', (e) => { console.log(e.message); process.exit(9) }); Promise.reject(new Error('r')); undefined", out: "r\n", exit: "exit code 9"},
		{name: "catcher fails", language: JavaScript, code: "process.on('uncaughtException', () => { throw new TypeError('t') }); null.x", err: "~TypeError: t", exit: "exit code 7"},
		{name: "error, then exit", language: JavaScript, code: "process.on('exit', (c) => console.log('exit', c)); null.x", out: "exit 1\n", err: "~TypeError: ", exit: "exit code 1"},
		{name: "pipeline", language: JavaScript, code: "const { pipeline } = require('stream/promises'); for (const s of ['a', 'b']) await pipeline([s, '\\n'], process.stdout); process.stdout.end('c\\n', () => console.error('end')); undefined", out: "a\nb\nc\n", err: "end\n"},
		{name: "is main", language: JavaScript, code: "console.log([new URL(import.meta.url).pathname, import.meta.filename, __filename, require.main.filename].every((f) => f === process.argv[1]), import.meta.dirname === __dirname, process.argv.length)", out: "true true 2\n"},
		{name: "empty", language: JavaScript},
	} {
		t.Run(c.language+"/"+c.name, func(t *testing.T) {
			t.Parallel()
			interpreter := pythons(t)[0]
			if c.language == JavaScript {
				interpreter = nodes(t)[0]
			}
			k, path := start(t, c.language, interpreter), filepath.Join(t.TempDir(), "file")
			program := filepath.Join(t.TempDir(), "PROGRAM")
			req := Request{Code: []byte(strings.ReplaceAll(c.code, "FILE", path)), Timeout: 20 * time.Second, Program: true, File: program}
			if err := os.WriteFile(program, req.Code, 0o600); err != nil {
				t.Fatal(err)
			}
			stopped := ""
			if c.stop {
				req.Timeout, stopped = 300*time.Millisecond, "timeout"
			}
			res, rec := runWith(t, k, req)
			name := ""
			if res.Error != nil {
				name = res.Error.Name
			}
			if res.OK != (c.error == "" && c.exit == "") || name != c.error || res.LostDetail != c.exit || res.Stopped != stopped ||
				!matches(rec.out.String(), c.out) || !matches(rec.err.String(), c.err) {
				t.Errorf("got %+v, error %+v, out %q, err %q", res, res.Error, rec.out.String(), rec.err.String())
			}
			if got, err := os.ReadFile(path); c.file != "" && (err != nil || !matches(string(got), c.file)) {
				t.Errorf("the file: got %q, %v, want %q", got, err, c.file)
			}
		})
	}
}

// TestProgram_ExitCodeAfterMagic runs a shell line, whose exit code the kernel keeps,
// before the program exits with another one.
func TestProgram_ExitCodeAfterMagic(t *testing.T) {
	k := start(t, Python, pythons(t)[0])
	res, _ := runWith(t, k, Request{Code: []byte("!true\nimport sys; sys.exit(3)"), Program: true, Timeout: 20 * time.Second})
	if res.Error == nil || res.Error.Name != "SystemExit" || res.Error.Value != "3" {
		t.Errorf("got %+v, error %+v, want SystemExit with value 3", res, res.Error)
	}
}

// TestProgram_FiguresOnlyShown draws a figure in a program, which displays it only if it
// shows it, as under Python; a program without a file is like a cell.
func TestProgram_FiguresOnlyShown(t *testing.T) {
	python := pythons(t)[0]
	if exec.Command(python, "-c", "import matplotlib").Run() != nil {
		t.Skip("no matplotlib")
	}
	const draw = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.savefig('f.png')\n"
	file := filepath.Join(t.TempDir(), "PROGRAM")
	for _, c := range []struct {
		code, file string
		want       int
	}{{draw, file, 0}, {draw + "plt.show()", file, 1}, {draw, "", 1}} {
		k := start(t, Python, python)
		res, rec := runWith(t, k, Request{Code: []byte(c.code), Program: true, File: c.file, Timeout: 60 * time.Second})
		if !res.OK || len(rec.displays) != c.want {
			t.Errorf("%q in file %q: got %+v, error %+v, %d displays, want %d", c.code, c.file, res, res.Error, len(rec.displays), c.want)
		}
	}
}
