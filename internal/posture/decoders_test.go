//go:build linux

package posture

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// trustedDecoders are the packages below fromBoxes that decode only what no box has written.
var trustedDecoders = map[string]string{
	"internal/engine/kube/kubesim":       "a stand-in for a cluster, of tests: what the engine sends",
	"internal/engine/kube/kubesim/scale": "a measurement: the results of its own runs",
	"internal/box/catalog":               "the state directory, which only the server writes",
	"internal/box/image":                 "the state directory, and this machine's interpreters",
	"internal/box/template":              "the state directory, which only the server writes",
	"internal/engine/kube/kubeapi":       "the API server of the cluster, which is trusted",
	"internal/engine/kube/kubeconfig":    "the operator's kubeconfig and its programs",
	"internal/engine/process":            "tests; it isolates nothing",
	"internal/guest/agent/files":         "inside a box: archives that the host sends",
	"internal/guest/pod":                 "inside a box: what the engine has sent",
}

// fromBoxes are the folders whose packages handle what comes out of boxes.
var fromBoxes = []string{"internal/box", "internal/egress", "internal/engine", "internal/guest", "internal/untar"}

// decoding matches the import of a package that decodes bytes.
var decoding = regexp.MustCompile(`(?m)^\t(?:\w+ )?"(archive/\w+|compress/\w+|encoding/(?:json|binary|gob|xml|csv|asn1)|image(?:/\w+)?|golang\.org/x/net/dns/dnsmessage)"$`)

// TestDocument_DecodersAreFuzzed: the table of decoders has every fuzz target and no other, a
// target of each row calls each of its decoders, and a package that decodes what comes out of
// boxes has a target.
func TestDocument_DecodersAreFuzzed(t *testing.T) {
	targets := fuzzTargets(t)
	b, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(b), "\n## Decoders\n")
	table, _, _ = strings.Cut(table, "\n## ")
	name := regexp.MustCompile("`([a-z0-9/_]+)\\.(\\w+)`")
	named := make(map[string]bool)
	fuzzed := make(map[string]bool) // packages whose decoders have a target
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.HasPrefix(cells[1], "-") || strings.TrimSpace(cells[1]) == "bytes from" {
			continue
		}
		called := make(map[string]bool) // by the targets of the row
		none := true
		for _, m := range name.FindAllStringSubmatch(cells[3], -1) {
			target := m[1] + "." + m[2]
			if targets[target] == nil {
				t.Errorf("%s names the fuzz target %s, which does not exist", document, target)
			}
			named[target], fuzzed[m[1]] = true, true
			maps.Copy(called, targets[target])
			none = false
		}
		decoders := name.FindAllStringSubmatch(cells[2], -1)
		if len(decoders) == 0 || none {
			t.Errorf("%s: no decoder or no target in the row of bytes from %s", document, cells[1])
		}
		for _, m := range decoders {
			fuzzed[m[1]] = true
			if !declares(t, m[1], m[2]) {
				t.Errorf("%s names the decoder %s.%s, which does not exist", document, m[1], m[2])
			}
			if !called[m[2]] {
				t.Errorf("%s: no target in its row calls the decoder %s.%s", document, m[1], m[2])
			}
		}
	}
	for target := range targets {
		if !named[target] {
			t.Errorf("%s does not name the fuzz target %s", document, target)
		}
	}
	unused := maps.Clone(trustedDecoders)
	for _, dir := range fromBoxes {
		for dir, file := range decodersIn(t, dir) {
			if trustedDecoders[dir] == "" && !fuzzed[dir] && !strings.HasSuffix(dir, "test") {
				t.Errorf("%s decodes bytes, and %s names none of its decoders, nor a fuzz target of %s", file, document, dir)
			}
			delete(unused, dir)
		}
	}
	for dir := range unused {
		t.Errorf("trustedDecoders names %s, which decodes nothing", dir)
	}
}

// fuzzTargets returns the fuzz targets of the module, as "folder.FuzzName", with the names of
// the functions that each calls, itself or by functions of the tests of its package.
func fuzzTargets(t *testing.T) map[string]map[string]bool {
	t.Helper()
	calls := make(map[string]map[string][]string) // by folder and function of its tests
	err := walkTests("../..", func(file string) error {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir := packageOf(file)
		if calls[dir] == nil {
			calls[dir] = make(map[string][]string)
		}
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
				calls[dir][f.Name.Name] = append(calls[dir][f.Name.Name], calledIn(f.Body)...)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	targets := make(map[string]map[string]bool)
	for dir, funcs := range calls {
		for name := range funcs {
			if !strings.HasPrefix(name, "Fuzz") {
				continue
			}
			called := make(map[string]bool)
			for next := []string{name}; len(next) > 0; next = next[1:] {
				for _, callee := range funcs[next[0]] {
					if !called[callee] {
						called[callee] = true
						next = append(next, callee)
					}
				}
			}
			targets[dir+"."+name] = called
		}
	}
	return targets
}

// calledIn returns the names of the functions and methods that a body calls.
func calledIn(body ast.Node) (names []string) {
	ast.Inspect(body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		callee := call.Fun
		if of, ok := callee.(*ast.IndexExpr); ok { // with a type
			callee = of.X
		}
		switch callee := callee.(type) {
		case *ast.Ident:
			names = append(names, callee.Name)
		case *ast.SelectorExpr:
			names = append(names, callee.Sel.Name)
		}
		return true
	})
	return names
}

// decodersIn returns the packages below a folder that decode bytes, with a file that does.
func decodersIn(t *testing.T, folder string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	err := filepath.WalkDir(filepath.Join("../..", folder), func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		b, err := os.ReadFile(file)
		if decoding.Match(b) {
			found[packageOf(file)] = file
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// declares reports whether a package declares a function or method of that name.
func declares(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	declaration := regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + name + `[\[(]`)
	return slices.ContainsFunc(files, func(file string) bool {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return !strings.HasSuffix(file, "_test.go") && declaration.Match(b)
	})
}

// packageOf returns the folder of a file, from the root of the module.
func packageOf(file string) string {
	return strings.TrimPrefix(filepath.ToSlash(filepath.Dir(file)), "../../")
}
