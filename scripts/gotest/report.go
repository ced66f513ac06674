package main

import (
	"encoding/json"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// failure is a failed top-level test, or a package that failed without one.
type failure struct {
	pkg, test string
	final     string // why a retry would hide something, or ""
}

func (f failure) String() string { return strings.TrimSpace(f.pkg + " " + f.test) }

// event is a line of go test -json; see go doc test2json.
type event struct {
	Action      string
	Package     string
	Test        string
	Output      string
	FailedBuild string
}

// report follows the events of one go test, prints them, and keeps the outcome.
type report struct {
	out      io.Writer
	verbose  bool
	packages map[string]*packageRun
	running  []*packageRun // in order of appearance; with verbose, the first prints at once
	passed   map[failure]bool
}

// packageRun is the run of a package's tests.
type packageRun struct {
	name    string
	lines   []line // not printed yet
	size    int    // of lines, in bytes
	dropped int    // of lines, for want of room
	tests   map[string]*testRun
	order   []string // of top-level tests, as they failed
	build   bool     // it did not build
	failed  bool
	ended   bool
	final   string  // why none of its tests can be retried
	leak    bool    // outside of a test
	excerpt excerpt // of the output outside of a test
}

// testRun is the run of a test or subtest.
type testRun struct {
	running  bool
	failed   bool
	outcome  string // "pass" or "skip"
	reported bool   // the test program reported the failure
	leak     bool
	crash    string // what a program died of, as its output tells
	excerpt  excerpt
}

type line struct{ test, text string }

// maxLines bounds the output of a package that waits to be printed, in bytes. The oldest
// lines go first.
const maxLines = 16 << 20

func newReport(out io.Writer, verbose bool) *report {
	return &report{out: out, verbose: verbose, packages: make(map[string]*packageRun), passed: make(map[failure]bool)}
}

// line takes one line of go test's output.
func (r *report) line(data []byte) {
	var e event
	if json.Unmarshal(data, &e) != nil || e.Action == "" {
		r.print(string(data) + "\n") // go test itself
		return
	}
	if e.Package == "" { // build-output, build-fail
		r.print(e.Output)
		return
	}
	p := r.packages[e.Package]
	if p == nil {
		p = &packageRun{name: e.Package, tests: make(map[string]*testRun)}
		r.packages[e.Package] = p
		r.running = append(r.running, p)
	}
	switch e.Action {
	case "output":
		p.output(e.Test, e.Output)
	case "run":
		p.test(e.Test).running = true
	case "fail":
		if e.Test == "" {
			p.ended, p.failed, p.build = true, true, e.FailedBuild != ""
			break
		}
		p.test(e.Test).running = false
		p.test(e.Test).failed = true
		if top := topLevel(e.Test); top == e.Test {
			p.order = append(p.order, top)
		}
	case "pass", "skip":
		if e.Test == "" {
			p.ended = true
			break
		}
		p.test(e.Test).running, p.test(e.Test).outcome = false, e.Action
		if e.Action == "pass" && topLevel(e.Test) == e.Test {
			r.passed[failure{pkg: p.name, test: e.Test}] = true
		}
	}
	r.flush()
}

// flush prints what can be printed: the output of packages that have ended, and with
// verbose, where packages follow one another, that of the first one which runs.
func (r *report) flush() {
	if r.verbose {
		for len(r.running) > 0 {
			p := r.running[0]
			r.show(p)
			if !p.ended {
				return
			}
			r.running = r.running[1:]
		}
		return
	}
	r.running = slices.DeleteFunc(r.running, func(p *packageRun) bool {
		if p.ended {
			r.show(p)
		}
		return p.ended
	})
}

// end prints the output of the packages whose end go test did not report.
func (r *report) end() {
	for _, p := range r.running {
		if !p.ended {
			p.failed = true
		}
		r.show(p)
	}
	r.running = nil
}

// show prints and drops the lines of a package: all with verbose, otherwise those of go
// test itself and those of failed tests.
func (r *report) show(p *packageRun) {
	if p.dropped > 0 {
		r.print("[the first lines of the output are dropped]\n")
		p.dropped = 0
	}
	for _, l := range p.lines {
		if r.verbose || p.shown(l) {
			r.print(l.text)
		}
	}
	p.lines, p.size = nil, 0
}

func (r *report) print(text string) { io.WriteString(r.out, text) }

// summary matches what go test prints of a package that passed.
var summary = regexp.MustCompile(`^(ok  \t|\?   \t|testing: warning)`)

// shown reports whether a line is printed without -v.
func (p *packageRun) shown(l line) bool {
	if !p.failed {
		return l.test == "" && summary.MatchString(l.text)
	}
	if strings.HasPrefix(l.text, "=== ") {
		return false
	}
	return l.test == "" || p.test(l.test).failed || p.test(topLevel(l.test)).running
}

// test returns the run of a test.
func (p *packageRun) test(name string) *testRun {
	if p.tests[name] == nil {
		p.tests[name] = &testRun{}
	}
	return p.tests[name]
}

// interrupted returns a test that has not ended, or "".
func (p *packageRun) interrupted() string {
	for name, t := range p.tests {
		if t.running {
			return name
		}
	}
	return ""
}

// topLevel returns the name of the test that a subtest belongs to.
func topLevel(test string) string {
	top, _, _ := strings.Cut(test, "/")
	return top
}

var (
	// These say what a program died of, in the output of a test program or in the log of
	// a server that a test started.
	crash = []struct {
		text *regexp.Regexp
		what string
	}{
		{regexp.MustCompile(`WARNING: DATA RACE`), "data race"},
		{regexp.MustCompile(`\bpanic: `), "panic"},
		{regexp.MustCompile(`\bfatal error: `), "fatal error"},
		{regexp.MustCompile(`^goroutine \d+ .*\[.+\]:$`), "goroutines that are left, or a crash"},
	}
	// go test reports how a failed test program ended: failed tests are status 1.
	abnormal = regexp.MustCompile(`^(signal: |exit status ([02-9]|\d\d))`)
	// Checks for leaks begin their messages with "leak:". testing reports files that a test
	// still writes, and mounts that it left, when it removes the test's directory.
	leak = regexp.MustCompile(`\bleak: |TempDir RemoveAll cleanup`)
)

// output takes a line of output of a test, or of the package.
func (p *packageRun) output(test, text string) {
	p.lines = append(p.lines, line{test, text})
	for p.size += len(text); p.size > maxLines; p.dropped++ {
		p.size -= len(p.lines[0].text)
		p.lines = p.lines[1:]
	}
	trimmed := strings.TrimSpace(text)
	switch {
	case strings.HasPrefix(trimmed, "=== "), strings.HasPrefix(trimmed, "--- PASS"), strings.HasPrefix(trimmed, "--- SKIP"):
		return // has the names of tests, which say anything
	case strings.HasPrefix(trimmed, "--- FAIL: "):
		if test != "" {
			p.test(test).reported = true
		}
		return
	}
	if test == "" {
		p.excerpt.add(text)
	} else {
		p.test(topLevel(test)).excerpt.add(text)
	}
	if test == "" && p.final == "" && abnormal.MatchString(text) {
		p.final = "test program: " + trimmed
	}
	for _, c := range crash {
		switch {
		case !c.text.MatchString(trimmed):
		case test == "" && p.final == "":
			p.final = c.what
		case test != "" && p.test(topLevel(test)).crash == "":
			p.test(topLevel(test)).crash = c.what
		}
	}
	if leak.MatchString(text) {
		if test == "" {
			p.leak = true
		} else {
			p.test(topLevel(test)).leak = true
		}
	}
}

// failures returns the failed tests by package.
func (r *report) failures() []failure {
	var list []failure
	for _, name := range slices.Sorted(maps.Keys(r.packages)) {
		p := r.packages[name]
		if !p.failed {
			continue
		}
		final := p.final
		switch {
		case p.build:
			final = "failed build"
		case final != "":
		case !p.ended:
			final = "go test did not report its end"
		case p.leak:
			final = "leak"
		case p.interrupted() != "":
			final = "the test program ended during " + p.interrupted()
		case len(p.order) == 0:
			final = "it failed outside of its tests"
		}
		if len(p.order) == 0 {
			list = append(list, failure{pkg: p.name, final: final})
		}
		for _, test := range p.order {
			f := failure{pkg: p.name, test: test, final: final}
			switch t := p.test(test); {
			case final != "":
			case t.crash != "":
				f.final = t.crash
			case t.leak:
				f.final = "leak"
			case !t.reported:
				f.final = "the test program ended during the test"
			}
			list = append(list, f)
		}
	}
	return list
}
