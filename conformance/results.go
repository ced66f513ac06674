package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/glovebox-dev/glovebox/internal/truncate"
)

// A row is the result of one scenario.
type row struct {
	target, set, scenario string

	scored   bool // demanded by the revision
	passed   int  // checks
	skipped  int
	expected int // failures that the baseline has
	warnings []string
	failures []string
}

func (r *row) verdict() string {
	switch {
	case len(r.failures) > 0:
		return "FAILED"
	case r.passed == 0 && r.expected == 0 && len(r.warnings) == 0:
		return "skipped"
	}
	return "passed"
}

// results are all rows in the order of the runs.
type results struct {
	rows  []row
	notes []string
}

func (a *results) add(r row) { a.rows = append(a.rows, r) }

// count counts scenarios; a skipped one is neither.
func (a *results) count() (passed, failed int) {
	for i := range a.rows {
		switch a.rows[i].verdict() {
		case "passed":
			passed++
		case "FAILED":
			failed++
		}
	}
	return passed, failed
}

// A sum counts the results of a set of scenarios.
type sum struct {
	target, set  string
	scored, good int // scenarios that the revision demands, and those of them that passed
	other, fine  int // the others, and those of them that passed
	checks       int // that passed
}

// sums sums up the sets, in their order.
func (a *results) sums() (list []sum) {
	for i := range a.rows {
		r := &a.rows[i]
		at := slices.IndexFunc(list, func(s sum) bool { return s.target == r.target && s.set == r.set })
		if at < 0 {
			at = len(list)
			list = append(list, sum{target: r.target, set: r.set})
		}
		s := &list[at]
		s.checks += r.passed
		n, passed := &s.other, &s.fine
		if r.scored {
			n, passed = &s.scored, &s.good
		}
		switch r.verdict() {
		case "passed":
			*passed++
			*n++
		case "FAILED":
			*n++
		}
	}
	return list
}

func (s sum) String() string {
	return fmt.Sprintf("%s, %s: %d of %d required scenarios passed, %d of %d others, %d checks", s.target, s.set, s.good, s.scored, s.fine, s.other, s.checks)
}

// table formats the results for a terminal: a line for each scenario, with its failures
// below.
func (a *results) table() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for i := range a.rows {
		r := &a.rows[i]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.target, r.set, r.scenario, r.verdict(), r.checks())
		for _, f := range r.failures {
			fmt.Fprintf(w, "\t\t\t\t  %s\n", short(f))
		}
		for _, f := range r.warnings {
			fmt.Fprintf(w, "\t\t\t\t  warning: %s\n", short(f))
		}
	}
	_ = w.Flush() // a builder takes everything
	for _, s := range a.sums() {
		b.WriteString(s.String() + "\n")
	}
	for _, n := range a.notes {
		b.WriteString(n + "\n")
	}
	return b.String()
}

func (r *row) checks() string {
	s := fmt.Sprintf("%d of %d checks", r.passed, r.passed+r.expected+len(r.warnings)+len(r.failures))
	if r.expected > 0 {
		s += fmt.Sprintf(", %d in the baseline", r.expected)
	}
	if r.skipped > 0 {
		s += fmt.Sprintf(", %d skipped", r.skipped)
	}
	if !r.scored {
		s += ", not scored"
	}
	return s
}

// short shortens a message of the suite, which can be pages long.
func short(s string) string {
	return truncate.Bytes(strings.Join(strings.Fields(s), " "), 300)
}

// The marks around the table in a document.
const (
	beginMark = "<!-- begin: table by scripts/conformance -doc -->\n"
	endMark   = "<!-- end -->\n"
)

// writeDoc replaces the table in a document.
func (a *results) writeDoc(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(data), beginMark)
	_, after, ok2 := strings.Cut(rest, endMark)
	if !ok || !ok2 {
		return fmt.Errorf("write table to %s: it lacks the lines %q and %q", file, strings.TrimSpace(beginMark), strings.TrimSpace(endMark))
	}
	var b strings.Builder
	b.WriteString(before + beginMark + "\n")
	for _, s := range a.sums() {
		b.WriteString("* " + s.String() + "\n")
	}
	b.WriteString("\n| what | set | scenario | | checks |\n|---|---|---|---|---|\n")
	for i := range a.rows {
		r := &a.rows[i]
		fmt.Fprintf(&b, "| %s | %s | `%s` | %s | %s |\n", r.target, r.set, r.scenario, r.verdict(), r.checks())
	}
	b.WriteString("\n")
	for _, n := range a.notes {
		b.WriteString(n + "\n")
	}
	passed, failed := a.count()
	fmt.Fprintf(&b, "%d passed, %d failed.\n\n%s%s", passed, failed, endMark, after)
	return os.WriteFile(file, []byte(b.String()), 0o644)
}
