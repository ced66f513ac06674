package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// failedEnv names the file that collects the failures of the whole run, which
// scripts/testlists prints last. Where only the end of a long output is kept, it must tell
// what failed.
const failedEnv = "GLOVEBOX_TEST_FAILED"

// The bounds of what is listed: failures of one go test, lines of one failure, of the trace of
// its panic, and bytes of one line.
const (
	maxListed  = 5
	maxExcerpt = 3
	maxTrace   = 30
	maxCut     = 300
)

// excerpt keeps the lines of an output that most likely tell why a test failed: the first
// messages of its checks, or without any the last lines. The first panic is listed with the
// beginning of its trace.
type excerpt struct {
	messages []string
	trace    []string // of a panic, from its first line
	last     []string
}

var (
	// message matches what testing prints for t.Error and its like.
	message = regexp.MustCompile(`^\w+_test\.go:\d+: `)
	// crashHead matches the first line that the runtime prints when a program crashes.
	crashHead = regexp.MustCompile(`^(panic: |fatal error: |unexpected fault address |SIG[A-Z]+: )`)
)

// add takes the next line of the output.
func (e *excerpt) add(text string) {
	text = strings.TrimSpace(text)
	if text == "" {
		return
	}
	if len(text) > maxCut {
		text = strings.ToValidUTF8(text[:maxCut], "") + "…"
	}
	switch {
	case len(e.trace) > 0 && len(e.trace) < maxTrace:
		e.trace = append(e.trace, text)
	case len(e.trace) == 0 && crashHead.MatchString(text):
		e.trace = []string{text}
	case message.MatchString(text) && len(e.messages) < maxExcerpt:
		e.messages = append(e.messages, text)
	}
	if len(e.last) == maxExcerpt {
		e.last = e.last[1:]
	}
	e.last = append(e.last, text)
}

func (e *excerpt) lines() []string {
	if len(e.messages) > 0 || len(e.trace) > 0 {
		return append(slices.Clone(e.messages), e.trace...)
	}
	return e.last
}

// excerpt returns the lines that tell why a test or package failed.
func (r *report) excerpt(f failure) []string {
	p := r.packages[f.pkg]
	if f.test == "" {
		return p.excerpt.lines()
	}
	return p.test(f.test).excerpt.lines()
}

// listFailures appends the failures that r reports to the file that failedEnv names, if
// any.
func (r *report) listFailures(label string) error {
	path := os.Getenv(failedEnv)
	if path == "" {
		return nil
	}
	var text strings.Builder
	failures := r.failures()
	if len(failures) == 0 {
		text.WriteString("go test failed" + label + " and named no package\n")
	}
	for i, f := range failures {
		if i == maxListed {
			fmt.Fprintf(&text, "and %d more\n", len(failures)-i)
			break
		}
		text.WriteString(f.String() + label)
		if f.final != "" {
			text.WriteString(" (" + f.final + ")")
		}
		text.WriteString("\n")
		for _, l := range r.excerpt(f) {
			text.WriteString("    " + l + "\n")
		}
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("list the failed tests: %w", err)
	}
	defer file.Close()
	if _, err := file.WriteString(text.String()); err != nil {
		return fmt.Errorf("list the failed tests: %w", err)
	}
	return nil
}
