// Package lazyregexp compiles regular expressions at their first use. The processes of every box
// run this program, so an expression that is compiled at the start of the program costs each of
// them time and memory.
package lazyregexp

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
)

// New returns a function that compiles expr at its first call and returns the same expression at
// each call. It may be called concurrently. An invalid expr panics at the first call, and in a
// test program in New, so that every test of the package shows it.
func New(expr string) func() *regexp.Regexp {
	compile := sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
	if inTest() {
		compile()
	}
	return compile
}

// inTest reports whether this is a program that go test built. Importing the package of that
// name would bring it into every program.
func inTest() bool {
	return strings.HasSuffix(strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe"), ".test")
}
