package kernel

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/polltest"
)

func TestNodeCells(t *testing.T) {
	for _, node := range nodes(t) {
		b, err := exec.Command(node, "--version").Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, story := range nodeStories() {
			t.Run(strings.TrimSpace(string(b))+"/"+story.name, func(t *testing.T) {
				t.Parallel()
				runCells(t, start(t, JavaScript, node), story.cells)
			})
		}
	}
}

func nodeStories() []story {
	return []story{
		{"state", []cell{
			{code: "let x = 41; const y = [x]; var z = 1; class A { v = 2 }; function f(a) { return a * x }"},
			{code: "x + 1", value: "42"},
			{code: "let x = 'again'; const y = 5; class A { w = 3 }; [x, y, z, new A()]", value: "[ 'again', 5, 1, A { w: 3 } ]"},
			{code: "x = 2; f(2)", value: "4"},
			{code: "const fs = require('fs'); const path = require('path'); typeof fs.readFileSync", value: "'function'"},
			{code: "const fs = require('node:fs'), os = require('os'); typeof os.cpus", value: "'function'"},
			{code: "[process.argv.length, process.execArgv.length, typeof module, typeof exports, require.main === module]", value: "[ 1, 0, 'object', 'object', true ]"},
			{code: "Object.keys(globalThis).filter((k) => /gb|glovebox|imp0rt|display|holder/.test(k))", value: "[]"},
			{code: "this === globalThis", value: "true"},
			{code: ""},
			{code: "// nothing"},
			{code: "\n\n"},
			{code: "undeclared = 3", value: "3"},
			{code: "undeclared", value: "3"},
		}},
		{"values", []cell{
			{code: "1 + 1", value: "2"},
			{code: "_ + 1", value: "3"},
			{code: "undefined"},
			{code: "null", value: "null"},
			{code: "'text'", value: "'text'"},
			{code: "{a: 1}", value: "{ a: 1 }"},
			{code: "{ let q = 1; q + 1 }", value: "2"},
			{code: "({a: {b: {c: {d: 1}}}})", value: "{ a: { b: { c: [Object] } } }"},
			{code: "[1n, -0, NaN, Infinity, Symbol('s')]", value: "[ 1n, -0, NaN, Infinity, Symbol(s) ]"},
			{code: "10n ** 20n", value: "100000000000000000000n"},
			{code: "-0", value: "-0"},
			{code: "NaN", value: "NaN"},
			{code: "Symbol('s')", value: "Symbol(s)"},
			{code: "new Map([[1, {a: 2}]])", value: "Map(1) { 1 => { a: 2 } }"},
			{code: "(function named() {})", value: "[Function: named]"},
			{code: "Promise.resolve(3)", value: "Promise { 3 }"},
			// The promise that is the value of a cell is awaited.
			{code: "const nap = () => new Promise((r) => setTimeout(r, 30)); (async () => { await nap(); console.log('slept') })();", out: "slept\n"},
			{code: "(async () => { await nap(); return 4 })()", value: "Promise { 4 }"},
			{code: "(async () => { await nap(); throw new RangeError('late') })()", error: "RangeError", trace: "~<cell "},
			{code: "Promise.reject(new RangeError('early'))", error: "RangeError", trace: "~<cell "},
			{code: "new Promise((r) => setTimeout(r, 3000))", error: "Interrupted", stop: true},
			{code: "nap(); 5", value: "5"},
			{code: "new Proxy({}, {get() { throw new Error('p') }})", value: "~Proxy"},
			{code: "({[Symbol.for('nodejs.util.inspect.custom')]() { throw new RangeError('i') }})", error: "RangeError"},
			{code: "'x'.repeat(1000000)", value: "~more characters"},
			{code: "let a = 1"},
			{code: "a = 2;", value: "2"},
			{code: "for (let i = 0; i < 3; i++) i", value: "2"},
			{code: "display(1, {b: 2})", shows: 2},
			{code: "let kept = 5; _", value: "~"},
			{code: "var _ = 7; _", value: "7"},
			{code: "1; _", value: "7"},
		}},
		{"questions", []cell{
			{code: "for await (const line of require('readline').createInterface({input: process.stdin})) console.log(line); 'ended'", value: "'ended'"},
			{code: "const rl = require('readline').createInterface({input: process.stdin, output: process.stdout}); await new Promise((answer) => rl.question('name? ', answer))", error: "Error", value2: "~end of input", out: "name? "},
			{code: "await require('util').promisify(rl.question).call(rl, 'again? ')", error: "Error", value2: "~end of input", out: "again? "},
			{code: "import * as promises from 'node:readline/promises'; const rl2 = promises.createInterface({input: process.stdin}); await rl2.question('promised? ')", error: "Error", value2: "~end of input", out: "promised? "},
			{code: "const { PassThrough } = require('stream'); const input = new PassThrough(); const rl3 = require('readline').createInterface({input}); setTimeout(() => input.write('me\\n'), 20); await new Promise((answer) => rl3.question('', answer))", value: "'me'"},
		}},
		{"errors", []cell{
			{code: "function f() {\n  throw new TypeError('é')\n}\n"},
			{code: "f()", error: "TypeError", value2: "é", trace: "<cell 1>:2\n  throw new TypeError('é')\n        ^\n\nTypeError: é\n    at f (<cell 1>:2:9)\n    at <cell 2>:1:1\n"},
			{code: "let ok = 1\nlet a = = 3", error: "SyntaxError", trace: "<cell 3>:2\nlet a = = 3\n        ^\n\nSyntaxError: Unexpected token '='\n"},
			{code: "ok", error: "ReferenceError", trace: "~at <cell 4>:1:1"},
			{code: "null.x", error: "TypeError", trace: "~<cell 5>:1\nnull.x\n     ^"},
			{code: "throw 'text'", error: "Uncaught", value2: "'text'", trace: "Uncaught 'text'\n"},
			{code: "throw null", error: "Uncaught", value2: "null"},
			{code: "throw undefined", error: "Uncaught", value2: "undefined"},
			{code: "await Promise.reject(new RangeError('r'))", error: "RangeError", trace: "~<cell 9>:1"},
			{code: "async function g() { await 1; throw new Error('deep') }\nawait g()", error: "Error", trace: "~at async <cell 10>:2:1"},
			{code: "class MyError extends Error { constructor(m) { super(m); this.name = 'MyError'; this.code = 'E1' } }\nthrow new MyError('mine', )", error: "MyError", trace: "~code: 'E1'"},
			{code: "throw new Error('outer', {cause: new Error('inner')})", error: "Error", trace: "~[cause]: Error: inner"},
			{code: "(function r() { r() })()", error: "RangeError", value2: "Maximum call stack size exceeded"},
			{code: "throw new Error('x'.repeat(1000000))", error: "Error", trace: "~characters left out"},
			{code: "JSON.parse('{')", error: "SyntaxError", trace: "~at JSON.parse"},
			{code: "eval('a b')", error: "SyntaxError"},
			{code: "require('nosuchmodule')", error: "Error", value2: "~Cannot find module"},
			{code: "await import('nosuchmodule')", error: "Error", value2: "~Cannot find package"},
			{code: "try { null.x } catch (e) { console.log(e.stack) }", out: "~at <cell 19>:1:12\n"},
			{code: "console.trace('here')", err: "~Trace: here\n    at <cell 20>:1:9\n"},
			{code: "const a1 = 'unterminated", error: "SyntaxError"},
			{code: "if (true) {", error: "SyntaxError", value2: "Unexpected end of input"},
			{code: "throw Object.create(null)", error: "Uncaught"},
			{code: "throw new Proxy(new Error('p'), {get() { throw 1 }})", error: "Uncaught"},
		}},
		{"hostile code", []cell{
			{code: "a\x00b", error: "SyntaxError"},
			{code: "x = '\xff'", error: "SyntaxError", value2: "the code is not valid UTF-8"},
			{code: "'" + strings.Repeat("y", 10<<20) + "'.length", value: "10485760"},
			{code: "const fs = require('fs'); fs.writeSync = null; fs.readSync = null; JSON.stringify = null; globalThis.setImmediate = null; globalThis.Buffer = null; undefined"},
			{code: "console.log(1); 2", out: "1\n", value: "2"},
			{code: "process.stdout.end(); process.stderr.destroy(); console.log('still')", out: "still\n"},
			{code: "console.log('again')", out: "again\n"},
			{code: "process.stdout = null; console.log('x')", out: "x\n"},
			{code: "globalThis.console = null; undefined"},
			{code: "1", value: "1"},
			{code: "Error.prepareStackTrace = null; throw new Error('e')", error: "Error", trace: "~at <cell 11>:1"},
			{code: "Error.stackTraceLimit = 0; throw new Error('e')", error: "Error"},
			{code: "process.removeAllListeners(); 3", value: "~"},
			{code: "delete globalThis.imp0rt; globalThis.imp0rt = 1; await import('fs').then(() => 5)", value: "5"},
			{code: "3 //# sourceURL=evil", value: "3"},
			{code: "`${1}` /* */ // `", value: "'1'"},
		}},
		{"streams", []cell{
			{code: "for (let i = 0; i < 3; i++) { console.log(i); console.error('e' + i) }", out: "0\n1\n2\n", err: "e0\ne1\ne2\n"},
			{code: "process.stdout.write('no newline'); undefined", out: "no newline"},
			{code: "[process.stdout.isTTY, process.stdout.fd, process.stderr.fd]", value: "[ undefined, 1, 2 ]"},
			{code: "require('fs').writeSync(1, 'raw\\n'); require('fs').writeSync(2, 'err\\n'); console.log('x'); undefined", out: "raw\nx\n", err: "err\n"},
			{code: "for (let i = 0; i < 400; i += 2) { console.log(i); require('fs').writeSync(1, `${i + 1}\\n`) }; undefined", out: numbers(400)},
			{code: "fs = require('fs'); [fs.writeSync(1, Buffer.from('abcd'), 1, 2), fs.writeSync(1, 'é\\n', null, 'latin1'), fs.writeSync(1, new Uint8Array([120, 10]), {offset: 1})]", out: "bc\xe9\n\n", value: "[ 2, 2, 1 ]"},
			{code: "fs.writeSync(1, 'x', 'y'.repeat(3))", out: "x", value: "1"},
			{code: "fs.writeSync(1, Buffer.alloc(3), 4)", error: "RangeError"},
			{code: "fs.writeSync(1, {})", error: "TypeError"},
			{code: "console.log('a'); require('child_process').execSync('echo b', {stdio: 'inherit'}); console.log('c')", out: "a\nb\nc\n"},
			{code: "require('child_process').execSync('echo got').toString()", value: "'got\\n'"},
			{code: "console.log({a: 1}, [2]); console.table([{a: 1}])", out: "~{ a: 1 } [ 2 ]"},
			{code: "console.log('\\ud800 é'); process.stdout.write(Buffer.from([0xff, 10])); undefined", out: "\ufffd é\n\xff\n"},
			{code: "for (let i = 0; i < 20000; i++) console.log(i)", out: numbers(20000)},
			{code: "console.log('x'.repeat(3000000))", out: strings.Repeat("x", 3000000) + "\n"},
			{code: "await new Promise((r) => process.stdout.write('cb\\n', r)).then(() => {})", out: "cb\n"},
			{code: "const { Worker } = require('worker_threads'); await new Promise((r) => new Worker('console.log(1 + 1)', {eval: true}).on('exit', r))", out: "~", value: "0"},
			{code: "require('fs').closeSync(1); console.log('closed')", out: "closed\n"},
		}},
		{"await", []cell{
			{code: "await 5", value: "5"},
			{code: "const v = await Promise.resolve(7)"},
			{code: "v", value: "7"},
			{code: "for await (const x of (async function* () { yield 1; yield 2 })()) console.log(x)", out: "1\n2\n"},
			{code: "let n = 0; const enough = new Promise((r) => { const t = setInterval(() => { if (++n > 5) { clearInterval(t); r(true) } }, 2) })"},
			{code: "await enough", value: "true"},
			{code: "await new Promise(() => {})", error: "Interrupted", stop: true},
			{code: "v", value: "7"},
			{code: "setTimeout(() => { throw new Error('late') }, 1); Promise.reject(new Error('rejected')); 1", value: "1", err: "~Error: rejected"},
			{code: "await new Promise((r) => setTimeout(r, 30)); 2", value: "2", err: "~Error: late\n    at "},
			{code: "import('fs').then((m) => console.log(typeof m.readFileSync)); await null", out: "~", value: "null"},
		}},
		{"imports", []cell{
			{code: "import fs, { readFileSync as r, writeFileSync } from 'fs'\nimport * as path from \"node:path\";\nimport 'os'\n[r === fs.readFileSync, typeof writeFileSync, typeof path.join]", value: "[ true, 'function', 'function' ]"},
			{code: "const m = await import('fs'); m.default === fs", value: "true"},
			{code: "fs.writeFileSync('mod.mjs', 'export const a = 1; export default 2'); fs.writeFileSync('mod.cjs', 'module.exports = {c: 3}')"},
			{code: "import two, { a } from './mod.mjs'; [two, a, require('./mod.cjs').c]", value: "[ 2, 1, 3 ]"},
			{code: "const s = 'import x from \"y\"'; const re = /import(/.source.length; s", error: "SyntaxError"},
			{code: "const s = 'import x from \"y\"', re = /import\\('/, q = `${'import(' + 1} import('z')`; s + q", value: "`import x from \"y\"import(1 import('z')`"},
			{code: "require('fs').writeFileSync('mod.json', '[4]'); [JSON.parse(fs.readFileSync(new URL('./mod.json', import.meta.url))), (await import('module')).createRequire(import.meta.url)('./mod.json'), 'import.meta.url', { import: { meta: 5 } }.import.meta]", value: "[ [ 4 ], [ 4 ], 'import.meta.url', 5 ]"},
			{code: "// import('x')\n/* import a from 'b' */ ({import: 1}).import", value: "1"},
			{code: "import {\n  join,\n  resolve,\n} from 'path'\nthrow new Error(typeof join)", error: "Error", value2: "function", trace: "~<cell 9>:5"},
			{code: "export const one = 1\nexport default async function second() { return 2 }\nexport class Three {}\nexport { one as uno }; export default (x) => x;\nexport default class {};[one, await second(), new Three()]", value: "[ 1, 2, Three {} ]"},
			{code: "const exported = { export: 1 }.export; `export {} ${exported}`", value: "'export {} 1'"},
			{code: "export { one } from './mod.mjs'", error: "SyntaxError"},
		}},
		{"interrupt", []cell{
			{code: "let kept = 1"},
			{code: "while (true);", error: "Interrupted", stop: true},
			{code: "for (;;) console.log('x'.repeat(1000))", error: "Interrupted", stop: true, out: "~xxx"},
			{code: "/(a+)+$/.test('a'.repeat(40) + 'b')", error: "Interrupted", stop: true},
			{code: "require('child_process').execSync('sleep 100')", error: "Interrupted", stop: true},
			{code: "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 100000)", error: "Interrupted", stop: true},
			{code: "process.on('SIGINT', () => console.log('mine')); undefined"},
			{code: "while (true);", error: "Interrupted", stop: true},
			{code: "await new Promise(() => {})", error: "Interrupted", stop: true, out: "~"},
			{code: "process.removeAllListeners('SIGINT'); undefined", out: "~"},
			{code: "while (true);", error: "Interrupted", stop: true, out: "~"},
			{code: "await new Promise(() => {})", error: "Interrupted", stop: true, out: "~"},
			{code: "kept", value: "1", out: "~"},
		}},
		{"rich", []cell{
			{code: "({[Symbol.for('Jupyter.display')]() { return {'text/plain': 'plain', 'text/html': '<b>'} }})", value: "plain"},
			{code: "({_toHtml() { return '<i>' }, _toPng() { throw new Error('x') }})", value: "~_toHtml"},
			{code: "({async _toMime() { return {'text/plain': 'slow'} }})", value: "slow"},
			{code: "Buffer.from('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=', 'base64')", value: "<image/png, 68 bytes>"},
			{code: "Buffer.from('plain bytes')", value: "<Buffer 70 6c 61 69 6e 20 62 79 74 65 73>"},
			{code: "display({async _toMime() { await 1; return {'text/plain': 'later'} }})", shows: 1},
		}},
	}
}

func TestNodeRichData(t *testing.T) {
	k := start(t, JavaScript, nodes(t)[0])
	_, rec := run(t, k, "({_repr_html_() { return '<b>' }, _repr_json_() { return {a: 1} }, _repr_png_() { return Buffer.from('123') }})")
	if len(rec.displays) != 1 || rec.displays[0].Data["text/html"] != "<b>" || rec.displays[0].Data["application/json"] != `{"a":1}` || rec.displays[0].Data["image/png"] != "MTIz" {
		t.Errorf("got %+v", rec.displays)
	}
	res, rec := run(t, k, "for (let i = 0; i < 50; i++) display(i); 99")
	if len(rec.displays) != protocol.MaxDisplays || res.Dropped != 11 {
		t.Errorf("got %d displays and %d dropped, want 40 and 11", len(rec.displays), res.Dropped)
	}
	_, rec = run(t, k, "({_repr_html_() { return 'h'.repeat(9000000) }, _repr_latex_() { return 'small' }})")
	if len(rec.displays) != 1 || len(rec.displays[0].Data) != 2 || rec.displays[0].Data["text/latex"] != "small" {
		t.Errorf("got %.300v, want plain text and latex", rec.displays)
	}
	_, rec = run(t, k, "({_repr_mimebundle_() { return Object.fromEntries(Array.from({length: 1000}, (_, i) => ['type/' + i, ''])) }})")
	if len(rec.displays) != 1 || len(rec.displays[0].Data) != protocol.MaxRepresentations {
		t.Errorf("1000 representations: got %.300v, want %d of them", rec.displays, protocol.MaxRepresentations)
	}
	_, rec = run(t, k, "console.log('one'); display(1); console.error('two'); display(2); 3")
	if got := rec.all.String(); got != "one\n<display>two\n<display><display>" {
		t.Errorf("got order %q", got)
	}
}

func TestNodeStreaming(t *testing.T) {
	k := start(t, JavaScript, nodes(t)[0])
	for _, code := range []string{
		"console.log('a'); await new Promise((r) => setTimeout(r, 400)); console.log('b')",
		"console.log('a'); { const e = Date.now() + 400; while (Date.now() < e); } console.log('b')",
	} {
		_, rec := run(t, k, code)
		if len(rec.times) < 2 || rec.times[1].Sub(rec.times[0]) < 200*time.Millisecond {
			t.Errorf("%s: output came at %v", code, rec.times)
		}
	}
}

// TestNodeBetweenRuns: output between two runs does not block the timers that print it.
func TestNodeBetweenRuns(t *testing.T) {
	k := start(t, JavaScript, nodes(t)[0])
	mark := filepath.Join(t.TempDir(), "printed")
	run(t, k, fmt.Sprintf("let n = 0; const t = setInterval(() => { console.log('x'.repeat(10000)); if (++n == 50) require('fs').writeFileSync(%q, '') }, 1)", mark))
	polltest.Until(t, 10*time.Second, "the timer has printed", exists(mark))
	if _, rec := run(t, k, "clearInterval(t); n >= 50"); rec.value() != "true" {
		t.Errorf("got %q", rec.value())
	}
}

// TestNodeCollectedPromise: collecting the promise of a pending cell does not end the
// kernel.
func TestNodeCollectedPromise(t *testing.T) {
	for _, node := range nodes(t) {
		k := start(t, JavaScript, node)
		for range 5 {
			runWith(t, k, Request{Code: []byte("await new Promise(() => {})"), Timeout: 50 * time.Millisecond})
			runWith(t, k, Request{Code: []byte("await (async () => { for (;;) await new Promise(() => {}) })()"), Timeout: 50 * time.Millisecond})
		}
		res, rec := run(t, k, "require('v8').setFlagsFromString('--expose-gc'); const gc = require('vm').runInNewContext('gc'); for (let i = 0; i < 5; i++) gc(); let a = []; for (let i = 0; i < 1e6; i++) a.push({i}); a.length")
		if !res.OK || rec.value() != "1000000" {
			t.Errorf("%s: got %+v", node, res)
		}
	}
}

func TestNodePreload(t *testing.T) {
	home := t.TempDir()
	if err := os.MkdirAll(home+"/node_modules/mine", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(home+"/node_modules/mine/index.js", []byte("console.log('hello'); require('child_process').execSync('echo raw', {stdio: 'inherit'}); globalThis.loaded = true; exports.v = 4"), 0o644); err != nil {
		t.Fatal(err)
	}
	k, err := Start(t.Context(), Config{Language: JavaScript, Interpreter: nodes(t)[0], Home: home, Env: os.Environ(), Preload: []string{"mine", "nosuchmodule", "os"}})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	if got := strings.Join(k.Missing(), " "); got != "nosuchmodule" {
		t.Errorf("missing: got %q", got)
	}
	if _, rec := run(t, k, "[loaded, require('mine').v, (await import('mine')).v]"); rec.value() != "[ true, 4, 4 ]" || rec.all.String() != "<display>" {
		t.Errorf("got %s, %q", rec.value(), rec.all.String())
	}
	if !strings.Contains(k.Version(), ".") {
		t.Error(fmt.Sprint("got version ", k.Version()))
	}
}
