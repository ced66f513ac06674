package archtest

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"path/filepath"
	"regexp"
	"testing"
)

// logTrees are the packages whose log keys are constants of internal/logkey.
var logTrees = []string{"internal/box", "internal/egress", "internal/engine", "internal/perplexity", "internal/server"}

// logger matches the expressions that these packages log with.
var logger = regexp.MustCompile(`(^|\.)([lL]og|Audit)$`)

// firstKey is the position of the first key among the arguments of a method.
var firstKey = map[string]int{"Debug": 1, "Info": 1, "Warn": 1, "Error": 1, "With": 0, "Log": 3}

// TestLogs_KeysAreConstants: one thing has one key in all logs of the server.
func TestLogs_KeysAreConstants(t *testing.T) {
	calls := 0
	for _, p := range ourPackages(t) {
		for _, tree := range logTrees {
			if !below(p.rel(), tree) {
				continue
			}
			for _, name := range p.GoFiles {
				calls += checkLogKeys(t, filepath.Join(p.Dir, name))
			}
		}
	}
	if calls < 50 {
		t.Errorf("found %d calls of loggers, want at least 50", calls)
	}
}

func checkLogKeys(t *testing.T, file string) (calls int) {
	t.Helper()
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		first, ok := firstKey[method.Sel.Name]
		var receiver bytes.Buffer
		if err := printer.Fprint(&receiver, files, method.X); err != nil {
			t.Fatal(err)
		}
		if !ok || !logger.Match(receiver.Bytes()) {
			return true
		}
		calls++
		for i := first; i < len(call.Args); i += 2 {
			if key, ok := call.Args[i].(*ast.BasicLit); ok {
				t.Errorf("%s: the log key %s is not a constant of internal/logkey", files.Position(key.Pos()), key.Value)
			}
		}
		return true
	})
	return calls
}
