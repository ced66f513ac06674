package enginetest

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// recorder is a testing.TB whose failure does not fail the test.
type recorder struct {
	testing.TB

	mu      sync.Mutex
	log     strings.Builder // guarded by mu
	failed  bool            // guarded by mu
	skipped bool            // guarded by mu
}

func (r *recorder) note(failed, skipped bool, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = r.failed || failed
	r.skipped = r.skipped || skipped
	r.log.WriteString(strings.TrimSuffix(text, "\n") + "\n")
}

func (r *recorder) Helper()                      {}
func (r *recorder) Log(args ...any)              { r.note(false, false, fmt.Sprintln(args...)) }
func (r *recorder) Logf(f string, args ...any)   { r.note(false, false, fmt.Sprintf(f, args...)) }
func (r *recorder) Error(args ...any)            { r.note(true, false, fmt.Sprintln(args...)) }
func (r *recorder) Errorf(f string, args ...any) { r.note(true, false, fmt.Sprintf(f, args...)) }
func (r *recorder) Fail()                        { r.note(true, false, "failed") }
func (r *recorder) FailNow()                     { r.Fail(); runtime.Goexit() }
func (r *recorder) Fatal(args ...any)            { r.Error(args...); runtime.Goexit() }
func (r *recorder) Fatalf(f string, args ...any) { r.Errorf(f, args...); runtime.Goexit() }
func (r *recorder) SkipNow()                     { r.note(false, true, "skipped"); runtime.Goexit() }
func (r *recorder) Skip(args ...any)             { r.note(false, true, fmt.Sprintln(args...)); runtime.Goexit() }
func (r *recorder) Skipf(f string, args ...any) {
	r.note(false, true, fmt.Sprintf(f, args...))
	runtime.Goexit()
}

// Failed reports whether the test has failed.
func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// Skipped reports whether the test was skipped.
func (r *recorder) Skipped() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.skipped
}
