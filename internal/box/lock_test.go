package box

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// slow are calls that may wait for a disk, a machine or the reader of a log. The accessors
// of a record's lease wait for its writes.
var slow = []string{"os.", ".Snapshots.", "record.", "lease.", ".log.", "log.", ".machine.", ".discard"}

// fast are the exceptions: they read a constant or only compute.
var fast = []string{".ID", "snapshot.Removal", "os.IsNotExist"}

// TestLock_IsNotHeldOverSlowCalls reads the source: no function that is called with the
// registry's lock held makes a slow call, directly or through another such function.
func TestLock_IsNotHeldOverSlowCalls(t *testing.T) {
	fset := token.NewFileSet()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string][]string{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
				calls[f.Name.Name] = append(calls[f.Name.Name], callsOf(f.Body)...)
			}
		}
	}
	checked := 0
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		if !strings.HasSuffix(name, "Locked") && name != "setState" {
			continue
		}
		checked++
		seen := map[string]bool{}
		var walk func(f string, path []string)
		walk = func(f string, path []string) {
			if seen[f] {
				return
			}
			seen[f] = true
			for _, c := range calls[f] {
				if slices.ContainsFunc(slow, func(s string) bool { return strings.Contains(c, s) }) &&
					!slices.ContainsFunc(fast, func(s string) bool { return strings.Contains(c, s) }) {
					t.Errorf("%s calls %s", strings.Join(append(path, f), " → "), c)
				}
				if m := c[strings.LastIndex(c, ".")+1:]; strings.HasSuffix(m, "Locked") || m == "setState" {
					walk(m, append(path, f))
				}
			}
		}
		walk(name, nil)
	}
	if checked < 15 {
		t.Errorf("only %d functions have names that say that the lock is held", checked)
	}
}

// callsOf lists the calls in a function as they are written, without those in
// goroutines.
func callsOf(body ast.Node) (calls []string) {
	ast.Inspect(body, func(n ast.Node) bool {
		c, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		name := text(c.Fun)
		calls = append(calls, name)
		return !strings.HasSuffix(name, "wg.Go")
	})
	return calls
}

func text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return text(e.X) + "." + e.Sel.Name
	}
	return ""
}

// The pool is notified of the end of a start instead of polling for it.
func TestWaitForCapacity_DoesNotPoll(t *testing.T) {
	looks := 0
	defer func(f func() bool) { memoryLow = f }(memoryLow)
	memoryLow = func() bool { looks++; return false }
	synctest.Test(t, func(t *testing.T) {
		m := New(DefaultConfig(), Parts{})
		defer m.end(errClosed)
		m.life.countStarting(1)
		var waited time.Duration
		begun, done := time.Now(), make(chan error, 1)
		go func() {
			err := m.maintainer.waitForCapacity(t.Context())
			waited = time.Since(begun)
			done <- err
		}()
		const start = time.Hour + time.Millisecond
		time.Sleep(start)
		if looks > 0 {
			t.Errorf("checked the memory %d times while a box was starting", looks)
		}
		m.life.countStarting(-1)
		if err := <-done; err != nil || waited != start || looks != 1 {
			t.Errorf("got %v after %v and %d checks, want the end of the start at once", err, waited, looks)
		}
	})
}
