package auth

import (
	"go/ast"
	"go/parser"
	"go/token"
	"testing"
)

// function returns the method of a type that a file declares.
func function(t *testing.T, file, name string) *ast.FuncDecl {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil && fn.Name.Name == name {
			return fn
		}
	}
	t.Fatalf("%s declares no method %s", file, name)
	return nil
}

// TestVerify_ComparesInConstantTime: how long the server takes over a token tells nothing of the
// hashes of the file. It compares the token with every entry, also after one that matches, each
// time by the function of crypto/subtle alone. The test reads the source, since the time itself
// cannot be measured reliably.
func TestVerify_ComparesInConstantTime(t *testing.T) {
	body := function(t, "token.go", "matches").Body.List
	compares := 0
	ast.Inspect(body[0], func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			compares++
			if f, ok := call.Fun.(*ast.SelectorExpr); !ok || f.Sel.Name != "ConstantTimeCompare" {
				t.Errorf("matches calls another function than subtle.ConstantTimeCompare: %v", call.Fun)
			}
		}
		return true
	})
	if len(body) != 1 || compares != 1 {
		t.Errorf("matches has %d statements and %d calls, want one comparison", len(body), compares)
	}

	loops := 0
	ast.Inspect(function(t, "token_file.go", "verify").Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.RangeStmt:
			loops++
			if len(n.Body.List) != 1 {
				t.Errorf("the loop over the entries has %d statements, want the comparison alone", len(n.Body.List))
			}
			ast.Inspect(n.Body, func(n ast.Node) bool {
				switch n.(type) {
				case *ast.BranchStmt, *ast.ReturnStmt:
					t.Error("the loop over the entries ends at some of them")
				}
				return true
			})
		case *ast.ForStmt:
			t.Error("verify has a loop that this test does not know")
		case *ast.SelectorExpr:
			if n.Sel.Name == "Hash" {
				t.Error("verify compares a hash by itself, without matches")
			}
		}
		return true
	})
	if loops != 1 {
		t.Errorf("verify has %d loops over the entries, want one", loops)
	}
}
