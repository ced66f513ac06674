package main

import (
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
)

// A row is what one scenario came to.
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

// results are all rows, in the order in which they ran.
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

// table is for a terminal: a line a scenario, and what is wrong with it below.
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

// short is the first of what the suite says, which can be pages.
func short(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 300 {
		s = strings.ToValidUTF8(s[:300], "") + "…"
	}
	return s
}

// The marks between which a document has the table.
const (
	beginMark = "<!-- begin: table by scripts/conformance -doc -->\n"
	endMark   = "<!-- end -->\n"
)

// writeDoc puts the table into a document.
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
	b.WriteString(before + beginMark + "\n| what | set | scenario | | checks |\n|---|---|---|---|---|\n")
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
