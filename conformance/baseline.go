package main

import (
	"fmt"
	"os"
	"strings"
)

// A baseline lists the checks that are expected to fail, with reasons.
type baseline struct {
	file    string
	reasons map[string]string // "target scenario:check" to the reason
	used    map[string]bool
}

// readBaseline reads lines of: target, scenario:check, reason. Lines that begin
// with # are comments.
func readBaseline(file string) (*baseline, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the baseline: %w", err)
	}
	b := &baseline{file: file, reasons: make(map[string]string), used: make(map[string]bool)}
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 4 {
			return nil, fmt.Errorf("read the baseline: line %d of %s: want a target, scenario:check and a reason, got %q", n, file, line)
		}
		b.reasons[fields[0]+" "+fields[1]] = strings.Join(fields[2:], " ")
	}
	return b, nil
}

// expects reports whether a check of a target may fail.
func (b *baseline) expects(target, scenario, check string) bool {
	key := target + " " + scenario + ":" + check
	_, ok := b.reasons[key]
	if ok {
		b.used[key] = true
	}
	return ok
}

// stale returns the entries whose checks no longer fail.
func (b *baseline) stale() []string {
	var list []string
	for key := range b.reasons {
		if !b.used[key] {
			list = append(list, key)
		}
	}
	return list
}
