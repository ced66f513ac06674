// Package retrylist bounds and lists the tests that one run of all tests retries, over
// the programs that run them: go test and the conformance suite.
package retrylist

import (
	"fmt"
	"os"
	"strings"
)

// Env names the file with the list. scripts/testlists creates the file and prints it at the
// end of the run; without it nothing is retried.
const Env = "GLOVEBOX_TEST_RETRIED"

// Max bounds the tests that one run retries. A busy machine makes one or two tests late;
// more failures than that have a cause.
const Max = 3

// List is the list of retried tests. Programs of one run use it one after the other.
type List struct{ path string }

// FromEnv returns the list of this run, or nil if failed tests must not be retried.
func FromEnv() *List {
	if path := os.Getenv(Env); path != "" {
		return &List{path}
	}
	return nil
}

// Admit returns nil if the run may retry n more tests, and otherwise the reason.
func (l *List) Admit(n int) error {
	text, err := os.ReadFile(l.path)
	if err != nil {
		return fmt.Errorf("read the list of retried tests: %w", err)
	}
	if used := strings.Count(string(text), "\n"); used+n > Max {
		return fmt.Errorf("%d failed and %d were retried before; the whole run may retry %d", n, used, Max)
	}
	return nil
}

// Add appends a retried test and its outcome.
func (l *List) Add(test, outcome string) error {
	f, err := os.OpenFile(l.path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("extend the list of retried tests: %w", err)
	}
	defer f.Close()
	if _, err := fmt.Fprintf(f, "%s: %s\n", test, outcome); err != nil {
		return fmt.Errorf("extend the list of retried tests: %w", err)
	}
	return nil
}
