//go:build linux

package codemode

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/engine/stdiolink"
	"github.com/glovebox-dev/glovebox/internal/gateway"
	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/embed/embedtest"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// agent is a dialer to a real agent in a process without isolation.
type agent struct{ *stdiolink.Stream }

func (a agent) Dial(context.Context) (io.ReadWriteCloser, error) { return a.Stream.Dial() }

// newConn connects to an agent that ends with the test.
func newConn(t *testing.T) *client.Conn {
	t.Helper()
	p := embedtest.Program(t)
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := &exec.Cmd{Path: p.Path, Args: p.Args, Stdin: inR, Stdout: outW, Stderr: os.Stderr}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	inR.Close()
	outW.Close()
	a := agent{stdiolink.New(outR, inW)}
	interpreters := make(map[string]string)
	for language, name := range map[string]string{"python": "python3", "javascript": "node"} {
		if path, err := exec.LookPath(name); err == nil {
			interpreters[language] = path
		}
	}
	l, err := client.Open(t.Context(), a, client.Options{Hello: protocol.Hello{Home: t.TempDir() + "/home", UID: -1, GID: -1, Interpreters: interpreters}})
	t.Cleanup(func() {
		if l != nil {
			l.Close()
		}
		a.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("agent ended: %v", err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// output keeps what code prints.
type output struct{ strings.Builder }

func (o *output) Output(_ protocol.Channel, p []byte) { o.Write(p) }
func (o *output) Display(d protocol.Display)          { o.WriteString(d.Data["text/plain"] + "\n") }

// program runs code with a host and returns what it printed.
func program(t *testing.T, l *client.Conn, language, code string, h client.Host) string {
	t.Helper()
	var o output
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	res, err := l.RunWithCalls(ctx, protocol.Run{Kernel: language, Language: language}, []byte(code), &o, h)
	if err != nil {
		t.Fatal(err)
	}
	if res.Error != nil {
		return o.String() + res.Error.Traceback
	}
	return o.String()
}

// TestPrograms_discovery finds, reads about and calls tools from programs.
func TestPrograms_discovery(t *testing.T) {
	w := newWorld(t, mcpkit.Trusted, Options{}, "my-server")
	l := newConn(t)
	const signature = "tools.my_server.add(*, a: int, b: int = 1, many: list[str] = ..., note: str = ...) -> Any"
	const command = "glovebox-tool my_server.add a=<int> [b=<int>] [many=<list[str]>] [note=<str>]"
	for _, tc := range []struct{ language, code, want string }{
		{"python", "print(tools.my_server.add(a=1, b=2))", "{'sum': 3}\n"},
		{"python", "tools.search('add')", signature + "  # Does add.\n"},
		{"python", "print(tools.describe('my_server.add').splitlines()[0])", signature + "\n"},
		{"python", "print(tools.my_server.add.__doc__.splitlines()[0])", signature + "\n"},
		{"python", "import inspect; print(inspect.signature(tools.my_server.add))", "(*, a: int, b: int = 1, many: list = None, note: str = None)\n"},
		{"python", "print('add' in dir(tools.my_server), dir(tools))", "True ['describe', 'my_server', 'search']\n"},
		{"python", "try:\n    tools.my_server.add(b=2)\nexcept ToolError as e:\n    print(e.server, e.tool, e.code, e.signature)", "my-server add invalid_arguments " + signature + "\n"},
		{"python", "try:\n    tools.my_server.ad(b=2)\nexcept ToolError as e:\n    print('did you mean add?' in e.message)", "True\n"},
		{"python", "print(tools.my_server.picture())\nprint(hasattr(tools, '__wrapped__'), hasattr(tools.x, '_repr_html_'))", "{'bytes': 8, 'mime_type': 'image/png', 'type': 'image'}\nFalse False\n"},
		{"javascript", "console.log(await tools.my_server.add({a: 1, b: 2}))", "{ sum: 3 }\n"},
		{"javascript", "console.log((await tools.describe('my_server.add')).split('\\n')[0])", "await tools.my_server.add({a: number, b?: number, many?: string[], note?: string}): any\n"},
		{"javascript", "console.log(await tools.search('add', 1))", "await tools.my_server.add({a: number, b?: number, many?: string[], note?: string}): any  // Does add.\n"},
		{"javascript", "try { await tools.my_server.add({}) } catch (e) { console.log(e.code, e.tool) }", "invalid_arguments add\n"},
		{"javascript", "console.log(await Promise.resolve(tools) === tools, JSON.stringify({t: tools.x}))", "true {\"t\":{}}\n"},
		{"python", "try:\n    list(tools.my_server)\nexcept TypeError as e:\n    print(e)", "'Server' object is not iterable\n"},
		{"javascript", "process.kill(process.pid, 'SIGUSR1'); await new Promise((r) => setTimeout(r, 500)); console.log(require('inspector').url())", "undefined\n"},
		{"javascript", "console.log(`${tools} ${tools.my_server} ${tools.my_server.add}`, String(tools.x), await tools.my_server.catch)", "tools tools.my_server my_server.add tools.x undefined\n"},
		{"python", "try:\n    tools.my_server.digits()\nexcept ToolError as e:\n    print(e.code, 'Python cannot read its result' in e.message)", "tool_error True\n"},
		{"python", "!glovebox-tool my_server.add a=1 b=4", "{\"sum\":5}\n"},
		{"python", "!glovebox-tool my-server.version", "1.10\n"},
		{"python", "!glovebox-tool --search add", command + "  # Does add.\n"},
		{"python", "!glovebox-tool --describe my_server.add | head -n 1", command + "\n"},
		{"python", "!glovebox-tool my_server.add a=x 2>&1; echo $?", "glovebox-tool: a: expected an integer, got \"x\" [invalid_arguments]\n  " + command + "\n3\n"},
		{"python", "!printf '1\\n2\\n' | while read n; do glovebox-tool my_server.add a=$n; done", "{\"sum\":1}\n{\"sum\":2}\n"},
		{"python", "!echo '{\"b\": 5}' | glovebox-tool my_server.add - a=1; echo '{\"a\": 5}' | glovebox-tool my_server.add", "{\"sum\":6}\n{\"sum\":5}\n"},
		{"python", "!glovebox-tool --schema my_server.add | cut -c 1-24", "{\"name\":\"my_server.add\",\n"},
		{"python", "!glovebox-tool my_server.fail 2>/dev/null; echo $?", "1\n"},
		{"python", "!glovebox-tool my_server.add a 2>&1; echo $?", "glovebox-tool: argument \"a\" is not NAME=VALUE\n2\n"},
		{"python", "!glovebox-tool my_server.add a=1 a=2 2>&1; echo $?", "glovebox-tool: argument \"a\" is given twice; pass a list as JSON on standard input\n2\n"},
	} {
		if got := program(t, l, tc.language, tc.code, w.Begin(Identity{})); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.code, got, tc.want)
		}
	}
}

// TestPrograms_servers shows the servers of a program.
func TestPrograms_servers(t *testing.T) {
	w := newWorld(t, mcpkit.Trusted, Options{}, "alpha", "files", "zeta")
	l := newConn(t)
	const hint = "tools of the user's servers: await tools.search('words') finds tools, await tools.describe('server') lists those of a server, await tools.server.tool({name: value}) calls one\n"
	for _, tc := range []struct{ language, code, want string }{
		{"python", "print(tools)", "tools of the servers alpha, files, zeta\n"},
		{"javascript", "tools", "tools of the servers alpha, files, zeta\n"},
		{"javascript", "console.log((await tools.files).constructor, tools)", "undefined " + hint},
		{"javascript", "console.log(Object.keys(tools), 'search' in tools)", "[ 'search', 'describe' ] true\n"},
		{"javascript", "console.log(tools.files)", "tools.files: await tools.describe('files') lists its tools\n"},
		{"python", "tools.fils", "tools.fils: there is no server \"fils\"; did you mean files?; the servers are alpha, files, zeta\n"},
		{"python", "print(tools.fils)", "tools.fils: there is no server \"fils\"; did you mean files?; the servers are alpha, files, zeta\n"},
		{"javascript", "tools.fils", "tools.fils: there is no server \"fils\"; did you mean files?; the servers are alpha, files, zeta\n"},
	} {
		if got := program(t, l, tc.language, tc.code, w.Begin(Identity{})); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.code, got, tc.want)
		}
	}
	got := program(t, l, "javascript", "tools.files", w.Begin(Identity{}))
	if !strings.HasPrefix(got, "tools.files: ") || !strings.Contains(got, "add, ") {
		t.Errorf("the value tools.files is shown as %q", got)
	}
}

// TestPrograms_dotInName: a name in brackets may be a tool with its server, or a server with a dot in
// its name.
func TestPrograms_dotInName(t *testing.T) {
	w := newWorld(t, mcpkit.Trusted, Options{}, "My-Server.x", "alpha")
	l := newConn(t)
	for _, tc := range []struct{ language, code, want string }{
		{"python", `print(tools["My-Server.x"].add(a=1), tools["My-Server.x"]["add"](a=2), tools["alpha.add"](a=3), tools["My-Server.x.add"](a=4))`, "{'sum': 1} {'sum': 2} {'sum': 3} {'sum': 4}\n"},
		{"python", `print(hasattr(tools["My-Server.x"], "_repr_html_"), tools.My_Server_x.add(a=5))`, "False {'sum': 5}\n"},
		{"python", `print(repr(tools.alpha["get.it"]), repr(tools["My-Server.x"]["add"]))
try: tools.alpha.get.it
except AttributeError as e: print(e)`, "tools.alpha['get.it'] tools['My-Server.x'].add\nthe tool alpha.get has no attribute 'it': call it first, as in r = tools.alpha.get(name=value); r['it']. If there is a tool 'get.it', it is tools.alpha['get.it']\n"},
		{"javascript", `console.log(await tools["My-Server.x"].add({a: 1}), await tools["My-Server.x"]["add"]({a: 2}), await tools["alpha.add"]({a: 3}), await tools["My-Server.x.add"]({a: 4}))`, "{ sum: 1 } { sum: 2 } { sum: 3 } { sum: 4 }\n"},
		{"javascript", `console.log(String(tools["alpha.add"]), await tools.My_Server_x.add({a: 5}))`, "alpha.add { sum: 5 }\n"},
	} {
		if got := program(t, l, tc.language, tc.code, w.Begin(Identity{})); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.code, got, tc.want)
		}
	}
}

// TestPrograms_serverNamedAsFunction: servers may have the names of the functions of tools, which
// remain functions. Their other name works too.
func TestPrograms_serverNamedAsFunction(t *testing.T) {
	w := newWorld(t, mcpkit.Trusted, Options{}, "search", "describe")
	l := newConn(t)
	for _, tc := range []struct{ language, code, want string }{
		{"python", "print(tools.search.add(a=1), tools.search['add'](a=2), tools['search'].add(a=3), tools.t_search.add(a=4), tools.describe.add(a=5))", "{'sum': 1} {'sum': 2} {'sum': 3} {'sum': 4} {'sum': 5}\n"},
		{"python", "import asyncio; await asyncio.sleep(0)\nprint(await tools.search.add(a=1), len(await tools.search('add', limit=1)))", "{'sum': 1} 1\n"},
		{"python", "print(len(tools.search('add', limit=1)), 'Does add.' in tools.describe('search.add'), tools.describe(tools.search) == tools.describe('search'))", "1 True True\n"},
		{"python", "import inspect; print('add' in dir(tools.search), inspect.signature(tools.describe), tools.search.__doc__[:7], tools.search, dir(tools))", "True (*names, detail='full') Returns <function tools.search> ['describe', 'search', 't_describe', 't_search']\n"},
		{"javascript", "console.log(await tools.search.add({a: 1}), await tools['search'].add({a: 2}), await tools.search['add']({a: 3}), await tools.t_search.add({a: 4}), await tools.describe.add({a: 5}))", "{ sum: 1 } { sum: 2 } { sum: 3 } { sum: 4 } { sum: 5 }\n"},
		{"javascript", "console.log((await tools.search('add', 1)).length, (await tools.search.call(tools, 'add', 1)).length, (await tools.describe('search.add')).includes('Does add.'), (await tools.describe(tools.search)) === await tools.describe('search'))", "1 1 true true\n"},
		{"javascript", "console.log(tools.search, typeof tools.search, await tools.search === tools.search)", "[AsyncFunction: search] function true\n"},
		{"javascript", "try { await tools.search('x', -1) } catch (e) { console.log(e.stack.includes('>:1:')) }", "true\n"},
	} {
		if got := program(t, l, tc.language, tc.code, w.Begin(Identity{})); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.code, got, tc.want)
		}
	}
}

// TestPrograms_mistakes makes the mistakes that models make.
func TestPrograms_mistakes(t *testing.T) {
	w := newWorld(t, mcpkit.Trusted, Options{}, "my-server")
	l := newConn(t)
	for _, tc := range []struct{ language, code, want string }{
		// A call that was not awaited is not taken for its value.
		{"python", "import asyncio; await asyncio.sleep(0)\np = tools.my_server.add(a=1)\n" + caught("print(p)") + "\n" + caught("f'{p}'") + "\n" + caught("p == {'sum': 2}") + "\n" + caught("p < 3") + "\nprint(await p)",
			strings.Repeat("TypeError: tools.my_server.add(...) was called in async code, so its value has to be awaited: await tools.my_server.add(...)\n", 4) + "{'sum': 1}\n"},
		{"python", "import asyncio; print(await asyncio.gather(*(tools.my_server.add(a=n) for n in range(3))))", "[{'sum': 0}, {'sum': 1}, {'sum': 2}]\n"},
		{"python", "t = asyncio.ensure_future(tools.my_server.add(a=1)); print(repr(t)[:6], await t)", "<Task  {'sum': 1}\n"},
		{"python", "await asyncio.sleep(0)\nkept = [tools.my_server.add(a=n) for n in range(3)]", "Note: 3 tool calls were not awaited and did not run: tools.my_server.add\n"},
		// Absent arguments.
		{"python", "print(tools.my_server.add(a=1, b=..., note=...), call_tool('my_server.add', {'a': 1, 'b': ...}))", "{'sum': 1} {'sum': 1}\n"},
		{"python", caught("tools.my_server.add(1)"), "TypeError: tools.my_server.add takes keyword arguments: tools.my_server.add(*, a: int, b: int = 1, many: list[str] = ..., note: str = ...) -> Any\n"},
		// A tool is taken for its result.
		{"python", caught("tools.my_server.add.sum") + "\n" + caught("tools.my_server.add['sum']"),
			"AttributeError: the tool my_server.add has no attribute 'sum': call it first, as in r = tools.my_server.add(name=value); r['sum']. If there is a tool 'add.sum', it is tools.my_server['add.sum']\n" +
				"TypeError: the tool my_server.add has no items: call it first, as in r = tools.my_server.add(name=value); r['sum']. If there is a tool 'add.sum', it is tools.my_server['add.sum']\n"},
		{"javascript", "try { await tools.my_server.add.sum } catch (e) { console.log(String(e)) }; try { await tools.my_server.get.price({}) } catch (e) { console.log(String(e)) }",
			"TypeError: the tool my_server.add has no property sum: call it first, as in r = await tools.my_server.add({name: value}); r[\"sum\"]. If there is a tool \"add.sum\", it is tools.my_server[\"add.sum\"]\n" +
				"TypeError: the tool my_server.get has no property price: call it first, as in r = await tools.my_server.get({name: value}); r[\"price\"]. If there is a tool \"get.price\", it is tools.my_server[\"get.price\"]\n"},
		{"javascript", "const { inspect } = require('util'); const t = tools.my_server.add; console.log(typeof inspect(t), t.name, t.length, JSON.stringify({t}), await Promise.resolve(t) === t)", "string add 0 {} true\n"},
		{"javascript", "const t = tools['my-server.add']; console.log(t, [t], new Error('x', {cause: t}).cause === t, tools.my_server.add.message)", "[Function: add] [ [Function: add] ] true undefined\n"},
		{"javascript", "tools.my_server.add", "tools.my_server.add\n"},
		{"python", "import copy; print(copy.copy(tools.my_server.add), hasattr(tools.my_server.add, '__array__'))\n" + caught("list(tools.my_server.add)"), "tools.my_server.add False\nTypeError: 'Tool' object is not iterable\n"},
		// A server is described, by its name or by itself.
		{"python", "print('Does version.' in tools.describe('my_server'), tools.describe('my_server') == tools.describe(tools.my_server) == await tools.describe('my-server'))", "True True\n"},
		{"javascript", "const d = await tools.describe('my_server'); console.log(d.includes('Does version.'), d === await tools.describe(tools.my_server))", "true true\n"},
		{"python", "import json; print(json.loads(tools.describe('my_server.add', detail='schema'))['input_schema']['required'])", "['a']\n"},
		{"javascript", "console.log(JSON.parse(await tools.describe(tools.my_server.add, {detail: 'schema'})).input_schema.required)", "[ 'a' ]\n"},
		{"python", "print(tools.describe('my_server.add', detail='names'))\nprint(tools.describe('my_server.add', detail='signatures'))", "my-server.add\ntools.my_server.add(*, a: int, b: int = 1, many: list[str] = ..., note: str = ...) -> Any  # Does add.\n"},
		{"javascript", "console.log(await tools.describe('my_server.add', {detail: 'names'}))", "my-server.add\n"},
		{"python", caught("tools.describe('my_server.add', detail='all')"), "ToolError: invalid detail \"all\": take \"names\", \"signatures\", \"full\" or \"schema\" [invalid_arguments]\n"},
		{"python", "try:\n    tools.my_server.ad(a=1)\nexcept ToolError as e:\n    print(e.server, e.tool)", "my-server ad\n"},
		// Searches are lists, and say what they leave out.
		{"python", "found = tools.search('', limit=2)\nprint(len(found), str(found).splitlines()[-1])\nprint(await tools.search('add') == tools.search('add'))", "2 # 15 more match: narrow the query, or raise limit (to 100)\nTrue\n"},
		{"python", "tools.search('nonsense')", "# no tool matches \"nonsense\": search without words to list all\n"},
		{"javascript", "const found = await tools.search('', {limit: 2}); console.log(found.length, String(found).split('\\n').at(-1))", "2 // 15 more match: narrow the query, or raise limit (to 100)\n"},
		{"python", caught("tools.search(limit=0)"), "ToolError: limit is 0: take 1 to 100, or leave it out for 10 [invalid_arguments]\n"},
		{"javascript", "try { await tools.search('x', -1) } catch (e) { console.log(e.reason) }", "limit is -1: take 1 to 100, or leave it out for 10\n"},
		{"python", caught("tools.describe(['my_server.add'])"), "TypeError: tools.describe takes each name as an argument: describe(*names), not a list of them\n"},
		{"javascript", "try { await tools.describe(['my_server.add']) } catch (e) { console.log(e.message) }", "tools.describe takes each name as an argument: describe(...names), not an array of them\n"},
		{"javascript", "try { await tools.search('x', 'y') } catch (e) { console.log(e.message) }", "tools.search takes words and a number: search(\"issue\", 5), not y\n"},
		// Errors have the signature of the program's language. The message says all, as Python's
		// text does, and the reason is alone.
		{"javascript", "try { await tools.my_server.add({b: 'x'}) } catch (e) { console.log(e.reason.includes('\\n'), e.message.startsWith('my-server.add: invalid arguments: '), e.message.endsWith('[invalid_arguments]\\n  ' + e.signature), e.signature); console.log(String(e).split('\\n')[1].trim() === e.signature, e.stack.includes(e.signature)) }",
			"false true true await tools.my_server.add({a: number, b?: number, many?: string[], note?: string}): any\ntrue true\n"},
		// Errors show the line of the program once, and say what was called.
		{"javascript", "async function f() {\n  await 1;\n  return tools.my_server.ad({b: 1});\n}\ntry { await f() } catch (e) { console.log(e.stack.includes('>:3:'), require('util').inspect(e).includes('{'), JSON.parse(JSON.stringify(e)).code) }",
			"true false unknown_tool\n"},
		{"python", "try:\n    tools.my_server.add(b='x')\nexcept ToolError as e:\n    print(repr(e)[:25], repr(e)[-21:])", "ToolError('my-server.add: [invalid_arguments]')\n"},
		// Numbers that JSON does not have are refused where they are.
		{"python", "import math\n" + caught("tools.my_server.add(a=float('nan'))"), "ToolError: my_server.add: invalid arguments: a: JSON has no number nan; pass None or leave it out [invalid_arguments]\n"},
		{"python", caught("call_tool('my_server.add', {'a': 1, 'many': [{'my key': (1, -math.inf)}]})"), "ToolError: my_server.add: invalid arguments: many[0]['my key'][1]: JSON has no number -inf; pass None or leave it out [invalid_arguments]\n"},
		{"python", caught("x = []; x.append(x); tools.my_server.add(a=x)"), "ValueError: Circular reference detected\n"},
		{"javascript", "try { await tools.my_server.add({a: 0 / 0}) } catch (e) { console.log(e.reason, e.code, e.server, e.tool) }", "invalid arguments: a: JSON has no number NaN; pass null or leave it out invalid_arguments my_server add\n"},
		{"javascript", "try { await callTool('my_server.add', {a: 1, many: [{'my key': {deep: [1, -1 / 0]}}]}) } catch (e) { console.log(e.reason.split(';')[0]) }", "invalid arguments: many[0][\"my key\"].deep[1]: JSON has no number -Infinity\n"},
		// So are strings that are not Unicode text.
		{"python", caught("tools.my_server.add(a=1, note='a\\udc80')"), "ToolError: my_server.add: invalid arguments: a string has the lone surrogate '\\udc80', which no tool can receive; pass s.encode('utf-8', 'replace').decode() [invalid_arguments]\n"},
		{"javascript", "try { await tools.my_server.add({a: 1, note: 'a\\udc80'}) } catch (e) { console.log(e.reason, e.code) }", "invalid arguments: a string has a lone surrogate, which no tool can receive; pass text.replace(/\\p{Surrogate}/gu, '?') invalid_arguments\n"},
		{"javascript", "console.log(await tools.my_server.add({a: 1n, b: 2}))", "{ sum: 3 }\n"},
		// A call that was not awaited leaves no warning behind.
		{"python", "import gc; await asyncio.sleep(0)\nlater = tools.my_server.add(a=1)", "Note: 1 tool call was not awaited and did not run: tools.my_server.add\n"},
		{"python", "try:\n    await later\nexcept ToolError as e:\n    print(e.code)\nlater = None; gc.collect(); None", "interrupted\n"},
		{"python", "await asyncio.sleep(0)\ntools.my_server.add(a=1); None", "Note: 1 tool call was not awaited and did not run: tools.my_server.add\n"},
		{"python", "await asyncio.sleep(0)\nlater = tools.my_server.add(a=1)", "Note: 1 tool call was not awaited and did not run: tools.my_server.add\n"},
		{"python", "del later; gc.collect(); None", ""},
		{"python", "!glovebox-tool my_server.ad 2>&1", "glovebox-tool: there is no tool \"ad\" in tools.my_server; did you mean add? List: glovebox-tool --describe my_server [unknown_tool]\n"},
	} {
		if got := program(t, l, tc.language, tc.code, w.Begin(Identity{})); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.code, got, tc.want)
		}
	}
}

// caught returns Python code that prints the error of a statement.
func caught(code string) string {
	return "try:\n    " + strings.ReplaceAll(code, "\n", "\n    ") + "\nexcept Exception as e:\n    print(type(e).__name__ + ':', str(e))"
}

// TestPrograms_noServer calls tools without their server, and servers as tools.
func TestPrograms_noServer(t *testing.T) {
	w := newWorld(t, mcpkit.Trusted, Options{}, "my-server", "other")
	l := newConn(t)
	const both = `"add" is a tool and no server: call tools.my_server.add or tools.other.add`
	const server = `my-server: tools.my_server is a server: call one of its tools, tools.my_server.TOOL(...); list: tools.describe("my-server") [unknown_tool]`
	for _, tc := range []struct{ language, code, want string }{
		{"python", caught("tools.add(a=1)"), "ToolError: " + both + " [unknown_server]\n"},
		{"python", caught("await tools.add(a=1)"), "ToolError: " + both + " [unknown_server]\n"},
		{"python", caught("call_tool('add', {'a': 1})"), "ToolError: " + both + " [unknown_server]\n"},
		{"python", caught("tools.nonsense(a=1)"), "ToolError: there is no server \"nonsense\"; the servers are my_server, other [unknown_server]\n"},
		{"python", caught("tools.my_server(a=1)"), "ToolError: " + server + "\n"},
		{"python", "!glovebox-tool add a=1 2>&1", "glovebox-tool: \"add\" is a tool and no server: call glovebox-tool my_server.add or glovebox-tool other.add [unknown_server]\n"},
		{"javascript", "try { await tools.add({a: 1}) } catch (e) { console.log(String(e)) }", "ToolError: " + both + " [unknown_server]\n"},
		{"javascript", "try { await tools.my_server({a: 1}) } catch (e) { console.log(String(e)) }", "ToolError: " + server + "\n"},
		{"javascript", "console.log(JSON.stringify({t: tools.add}), `${tools.add}`, tools.add)", "{\"t\":{}} tools.add tools.add: await tools.describe('add') lists its tools\n"},
	} {
		if got := program(t, l, tc.language, tc.code, w.Begin(Identity{})); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.code, got, tc.want)
		}
	}
}

// TestPrograms_referenceServers joins data of three servers from npm in one program.
func TestPrograms_referenceServers(t *testing.T) {
	modules, err := filepath.Abs("../../e2e/node_modules/@modelcontextprotocol")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"filesystem", "memory", "everything"} {
		if _, err := os.Stat(filepath.Join(modules, "server-"+name)); err != nil {
			t.Skip("no stock servers: run npm ci in e2e first")
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "prices.csv"), []byte("item,price\nbread,3\nmilk,2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := func(name, module string, args ...string) *mcpjson.Server {
		s := &mcpjson.Server{Name: name, Transport: mcpjson.TransportStdio, Command: mcpjson.Literal("node"), Dir: dir,
			Env: []mcpjson.Pair{{Name: "MEMORY_FILE_PATH", Value: mcpjson.Literal(filepath.Join(dir, "memory.jsonl"))}}}
		for _, arg := range append([]string{filepath.Join(modules, module, "dist/index.js")}, args...) {
			s.Args = append(s.Args, mcpjson.Literal(arg))
		}
		return s
	}
	g := gateway.New(gateway.Options{Servers: mcpkit.Options{
		Config: &mcpjson.Config{Servers: []*mcpjson.Server{server("files", "server-filesystem", dir), server("memory", "server-memory"), server("everything", "server-everything")}},
		Trust:  func(context.Context, *mcpjson.Server) (mcpkit.Trust, error) { return mcpkit.Trusted, nil },
		Limits: mcpkit.Limits{Connect: time.Minute},
	}})
	t.Cleanup(func() { g.Close() })
	g.Register(mcp.NewServer(&mcp.Implementation{Name: "gateway", Version: "1"}, &mcp.ServerOptions{Capabilities: gateway.Capabilities()}))
	b := New(Options{Servers: FromGateway(g), Policy: Policy{{Server: "memory", Decision: Allow}}})
	r := b.Begin(Identity{})
	l := newConn(t)
	got := program(t, l, "python", `import asyncio, csv, io, os
text, _ = await asyncio.gather(
    tools.files.read_text_file(path='`+dir+`/prices.csv'),
    tools.memory.create_entities(entities=[{"name": "basket", "entityType": "list", "observations": ["bread 2", "milk 5"]}]))
text = text["content"] if isinstance(text, dict) else text
prices = {row["item"]: int(row["price"]) for row in csv.DictReader(io.StringIO(text))}
basket = (await tools.memory.read_graph())["entities"][0]["observations"]
total = sum(prices[item] * int(n) for item, n in map(str.split, basket))
print(total, await tools.everything.get_sum(a=total, b=1))
picture = await tools.everything.get_tiny_image()
print([c["type"] for c in picture if isinstance(c, dict)])
try:
    await tools.files.write_file(path='`+dir+`/x', content='x')
except ToolError as e:
    print(e.code)
try:
    await tools.files.read_text_file(path='/etc/passwd')
except ToolError as e:
    print(e.code, "outside" in e.message)
`, r)
	const want = "16 The sum of 16 and 1 is 17.\n['image']\napproval_required\ntool_error True\n"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if shown := r.Displays(); len(shown) != 1 || shown[0].Data["image/png"] == "" {
		t.Errorf("%d images", len(shown))
	}
}
