package lazyregexp

import (
	"os"
	"testing"
)

func TestNew_SameExpression(t *testing.T) {
	re := New(`^a+$`)
	first, again := re(), re()
	if !first.MatchString("aa") || first != again {
		t.Error("the function does not return one expression that matches")
	}
}

// In a test program a mistake shows at once; elsewhere nothing is compiled before it is used.
func TestNew_Invalid(t *testing.T) {
	panics := func(f func()) (panicked bool) {
		defer func() { panicked = recover() != nil }()
		f()
		return false
	}
	if !panics(func() { New(`(`) }) {
		t.Error("a test program does not panic in New")
	}
	name := os.Args[0]
	os.Args[0] = "glovebox"
	defer func() { os.Args[0] = name }()
	var re = New(`(`)
	if !panics(func() { re() }) {
		t.Error("the first call does not panic")
	}
}
