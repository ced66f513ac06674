package kernel

import (
	"bufio"
	"encoding/json"
	"io"
	"math"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// helper is a process that runs one of the scripts on texts, outside of a kernel.
type helper struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	err strings.Builder
}

func startHelper(tb testing.TB, argv ...string) *helper {
	tb.Helper()
	h := &helper{cmd: exec.Command(argv[0], argv[1:]...)}
	h.cmd.Stderr = &h.err
	h.cmd.WaitDelay = 10 * time.Second
	var err error
	if h.in, err = h.cmd.StdinPipe(); err != nil {
		tb.Fatal(err)
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	h.out = bufio.NewReader(out)
	if err := h.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		h.in.Close()
		h.cmd.Wait()
	})
	return h
}

func transformer(tb testing.TB, python string) *helper {
	return startHelper(tb, python, "-X", "utf8", "testdata/transform.py", "python/transform.py", "python/shell.py", "python/magics.py")
}

func sourcer(tb testing.TB, node string) *helper {
	return startHelper(tb, node, "testdata/source.cjs", "node/source.cjs")
}

// call calls a task of the helper and decodes its result.
func (h *helper) call(tb testing.TB, result any, args ...any) {
	tb.Helper()
	b, err := json.Marshal(args)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := h.in.Write(append(b, '\n')); err != nil {
		tb.Fatalf("%.500q: %v; %s", b, err, h.err.String())
	}
	line, err := h.out.ReadBytes('\n')
	if err != nil {
		h.cmd.Wait()
		tb.Fatalf("%.500q: %v; %s", b, err, h.err.String())
	}
	if err := json.Unmarshal(line, result); err != nil {
		tb.Fatalf("%.500q: %q: %v", b, line, err)
	}
}

// TestTransform_StandardLibrary puts a magic above every file and every line of the standard
// library. Valid Python must stay unchanged, and the time must be proportional to the
// text, compared with the time that the same Python takes to parse it.
func TestTransform_StandardLibrary(t *testing.T) {
	for _, py := range pythons(t) {
		t.Run(py, func(t *testing.T) {
			t.Parallel()
			var got struct {
				Files, Lines, Size     int
				Wrong                  [][]string
				Whole, Single, Parsing float64
			}
			transformer(t, py).call(t, &got, "library")
			t.Logf("%d files, %d different lines, %d characters: %.2f s for the files, %.2f s for the lines, %.2f s to parse",
				got.Files, got.Lines, got.Size, got.Whole, got.Single, got.Parsing)
			if got.Files < 100 || got.Lines < 10_000 {
				t.Fatalf("got %d files and %d lines: not the standard library", got.Files, got.Lines)
			}
			if len(got.Wrong) > 0 {
				t.Errorf("valid Python was changed: %q", got.Wrong)
			}
			if got.Whole > got.Parsing {
				t.Errorf("the files took %.2f s, parsing them %.2f s", got.Whole, got.Parsing)
			}
			if got.Single > 10*got.Parsing {
				t.Errorf("the lines took %.2f s, parsing the files %.2f s", got.Single, got.Parsing)
			}
		})
	}
}

// unit is a text of growing size: prefix, repeated part, suffix.
type unit [3]string

// linear is how much longer sixteen times the text may take: sixteen times, and several times
// that for memory beyond the caches; quadratic work takes 256 times as long.
const linear = 128

func TestTransform_IsLinear(t *testing.T) {
	h := transformer(t, pythons(t)[0])
	for kind, units := range map[string][]unit{
		"transform": {
			{"", "please compute the sum ", "\n"}, {"from sklearn.ensemble import ", "a", "\n"}, {"!ls\nimport ", "a_b.", "="},
			{"", "a ", "="}, {"", "a, ", "= 1 ("}, {"", "= % ", ""}, {"", "= ! ", "x"}, {"", "=", ""}, {"", "(", ""}, {"", "'", "\n!ls"},
			{"", "\"\"\"", ""}, {"", "\\", ""}, {"", "\\\n", "!ls"}, {"!a\\\n", "b\\\n", ""}, {"%a\\\n", "\\\n", ""}, {"", "!a\n", ""},
			{"", "\n", "!a"}, {"", " ", "!a"}, {"", " ", "x?"}, {"x?", " ", "y"}, {"x", "?", ""}, {"x;", " ", "y"}, {"", "?", "x"},
			{"", "x.", "?"}, {"pip", " ", "install"}, {"", "pip ", "x"}, {">>> x\n", "... ", "\n!ls"}, {">>> x\n", "   ...:\n", ""},
			{"In [", "1", "]: !ls"}, {" x\n", " y\n", "!ls"}, {"%%", "a ", "\n"}, {"%%a\n", "'\n", ""}, {"%", "% ", "x"}, {"x = !", " ", "="},
		},
		"expand": {
			{"", "${", ""}, {"", "${", "}"}, {"", "{", ""}, {"", "{", "}"}, {"", "{x}", ""}, {"{", "$", ""}, {"", "{$", ""}, {"", "$x", ""}, {"", "}", ""}, {"", "{x\n", "}"},
			{"", "$nosuch{", ""}, {"$", "x", ""}, {"{", " $y ", "}"},
		},
		"timeit": {{"", "-n 1 ", "x"}, {"-n", " ", "x"}, {"-n 1", " ", "x"}, {"-n ", "1", "x"}, {"", "-o ", "x"}},
	} {
		for _, u := range units {
			ratio := leastRatio(func(ratio *float64) { h.call(t, ratio, "grow", kind, u, 2000) })
			if ratio > linear {
				t.Errorf("%s %q: 16 times the text took %.1f times as long", kind, u, ratio)
			}
		}
	}
}

// leastRatio measures again what exceeds linear: on a busy machine caches and page faults
// make one measurement many times as long, but quadratic work exceeds it every time.
func leastRatio(measure func(*float64)) float64 {
	least := math.Inf(1)
	for tries := 0; tries < 4 && least > linear; tries++ {
		var ratio float64
		measure(&ratio)
		least = min(least, ratio)
	}
	return least
}

func TestSource_IsLinear(t *testing.T) {
	h := sourcer(t, nodes(t)[0])
	for _, u := range []unit{
		{"import a", " ", "!"}, {"import a,", " ", "!"}, {"import ", "a", "!"}, {"", "import {", ""}, {"", "import{]", ""}, {"", "import{]", "}"},
		{"import {", "a,", "} from 'b'"}, {"import {", "/*", "} from 'b'"}, {"import {a", " ", "as b} from 'c'"}, {"import {", "a as ", "} from 'c'"},
		{"", "import 'a' with {]", ""}, {"import 'a'", " ", "with"}, {"", "import 'a';", ""}, {"", "import '", ""}, {"", "import /*", ""}, {"", "import //\n", ""},
		{"", "import a from ", ""}, {"", "import(", ""}, {"import", " ", "(1)"}, {"", "import * as ", ""},
		{"export default function", " ", "("}, {"export default function", " ", "*"}, {"export default", " ", "async"}, {"export default async", " ", "x"},
		{"", "export{]", ""}, {"", "export{]", "}"}, {"export {}", " ", "from"}, {"", "export default ", ""}, {"", "export async ", ""}, {"export default class", " ", "{}"},
		{"import 'a';", "`${", ""}, {"import 'a';", "`", ""}, {"import 'a';", "/", ""}, {"import 'a';", "/[", "/"}, {"import 'a';", "'\\", ""},
		{"{", " ", "}"}, {"{", "; ", "x"}, {"{;", " ", "x"}, {"", " ", "{"},
	} {
		ratio := leastRatio(func(ratio *float64) { h.call(t, ratio, "grow", u, 1000) })
		if ratio > linear {
			t.Errorf("%q: 16 times the text took %.1f times as long", u, ratio)
		}
	}
}

// FuzzTransform transforms any text in one Python process, which counts the executed
// lines, and checks that valid Python stays unchanged.
func FuzzTransform(f *testing.F) {
	for _, s := range pythonStories("3.12") {
		for _, c := range s.cells {
			if len(c.code) < 1000 {
				f.Add(c.code)
			}
		}
	}
	f.Add("please compute the sum of all numbers up to ten")
	f.Add("%matplotlib inline\nfrom sklearn.ensemble import RandomForestClassifier")
	f.Add("a.b[c], d = !ls\nx = %time y\n'''\n!a\n''' \\\n%b\n>>> c\n... d\nIn [1]: e?\n   ...: ??f;")
	h := transformer(f, pythons(f)[0])
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 64<<10 || strings.ContainsAny(text, "\x00\r") {
			t.Skip() // such do not get here
		}
		var problem string
		h.call(t, &problem, "check", text)
		if problem != "" {
			t.Errorf("%q: %s", text, problem)
		}
	})
}

// FuzzSource prepares any text in one Node.js process: it never fails, and text without
// import or export stays unchanged.
func FuzzSource(f *testing.F) {
	for _, s := range nodeStories() {
		for _, c := range s.cells {
			if len(c.code) < 1000 {
				f.Add(c.code)
			}
		}
	}
	f.Add("import a, {b as c, default as d, 'e f' as g} from \"h\" with {type: 'json'}; export default async function i() {}")
	h := sourcer(f, nodes(f)[0])
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 64<<10 {
			t.Skip()
		}
		var problem string
		h.call(t, &problem, "check", text)
		if problem != "" {
			t.Errorf("%q: %s", text, problem)
		}
	})
}
