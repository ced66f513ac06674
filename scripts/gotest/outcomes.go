package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// outcomesEnv names the file that collects which tests passed and which were skipped in all
// runs of go test. scripts/testlists reads it: a test that every user skips tests nothing.
const outcomesEnv = "GLOVEBOX_TEST_OUTCOMES"

// listOutcomes appends a line for each test and subtest that passed or was skipped to the file
// that outcomesEnv names, if any: the outcome, the package and the test, separated by tabs.
func (r *report) listOutcomes() error {
	path := os.Getenv(outcomesEnv)
	if path == "" {
		return nil
	}
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(r.packages)) {
		tests := r.packages[name].tests
		for _, test := range slices.Sorted(maps.Keys(tests)) {
			if outcome := tests[test].outcome; outcome != "" {
				fmt.Fprintf(&text, "%s\t%s\t%s\n", outcome, name, test)
			}
		}
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("list the outcomes of tests: %w", err)
	}
	defer file.Close()
	if _, err := file.WriteString(text.String()); err != nil {
		return fmt.Errorf("list the outcomes of tests: %w", err)
	}
	return nil
}
