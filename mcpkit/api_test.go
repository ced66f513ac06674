package mcpkit_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Importers cannot name the types of internal packages, so no exported declaration of a
// public package may require one. An alias gives such a type a public name.
func TestAPI_HasNoInternalTypes(t *testing.T) {
	fset := token.NewFileSet()
	packages := 0
	err := filepath.WalkDir(".", func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if d.Name() == "internal" || d.Name() == "testdata" {
			return fs.SkipDir
		}
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			return err
		}
		packages++
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			internal := make(map[string]string) // import paths by name
			for _, imp := range f.Imports {
				if p, _ := strconv.Unquote(imp.Path.Value); strings.Contains(p, "/internal/") {
					internal[path.Base(p)] = p
				}
			}
			for _, decl := range f.Decls {
				for _, api := range exportedParts(decl) {
					ast.Inspect(api, func(n ast.Node) bool {
						if sel, ok := n.(*ast.SelectorExpr); ok {
							if pkg, ok := sel.X.(*ast.Ident); ok && internal[pkg.Name] != "" {
								t.Errorf("%s: the API has the type %s.%s of %s", fset.Position(sel.Pos()), pkg.Name, sel.Sel.Name, internal[pkg.Name])
							}
						}
						return true
					})
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if packages < 6 {
		t.Errorf("checked %d packages, want mcpkit and those below it", packages)
	}
}

// exportedParts returns the parts of a declaration that importers see: signatures, and
// the types of variables, constants and exported fields.
func exportedParts(decl ast.Decl) (parts []ast.Node) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && (d.Recv == nil || exportedType(d.Recv.List[0].Type)) {
			parts = append(parts, d.Type)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.ValueSpec:
				if s.Names[0].IsExported() && s.Type != nil {
					parts = append(parts, s.Type)
				}
			case *ast.TypeSpec:
				if !s.Name.IsExported() || s.Assign.IsValid() {
					continue
				}
				st, ok := s.Type.(*ast.StructType)
				if !ok {
					parts = append(parts, s.Type)
					continue
				}
				for _, field := range st.Fields.List {
					if len(field.Names) == 0 || field.Names[0].IsExported() {
						parts = append(parts, field.Type)
					}
				}
			}
		}
	}
	return parts
}

func exportedType(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.StarExpr:
		return exportedType(e.X)
	case *ast.IndexExpr:
		return exportedType(e.X)
	case *ast.Ident:
		return e.IsExported()
	}
	return false
}
