// Package once tells the first run of a test from its retry.
package once

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// First reports whether this is the first run of the test, and counts it.
func First(t *testing.T) bool {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(os.Getenv("GOTEST_RUNS"), strings.ReplaceAll(t.Name(), "/", "_")), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return info.Size() == 1
}
