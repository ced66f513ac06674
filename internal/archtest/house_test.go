package archtest

import (
	"bytes"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// maxLines and maxTestLines bound source files. A longer one has two subjects.
const (
	maxLines     = 500
	maxTestLines = 900
)

// vague are package names that do not describe the content.
var vague = []string{"util", "utils", "common", "helper", "helpers", "types", "manager", "service", "misc", "shared", "base"}

func TestPackages_NamesAndComments(t *testing.T) {
	for _, p := range ourPackages(t) {
		if slices.Contains(vague, filepath.Base(p.ImportPath)) || slices.Contains(vague, p.Name) {
			t.Errorf("%s: the name does not describe the content", p.rel())
		}
		if len(p.GoFiles) == 0 {
			continue // tests only
		}
		want := "Package " + p.Name + " "
		if p.Name == "main" {
			want = "Command " + filepath.Base(p.ImportPath) + " "
		}
		if !strings.HasPrefix(p.Doc, want) {
			t.Errorf("%s: package comment is %q, want one that begins with %q", p.rel(), p.Doc, want)
		}
		checkFileNames(t, p)
	}
}

// fileName matches the name of a file of Go in a comment, without a directory.
var fileName = regexp.MustCompile(`(?:^|[\s,])(\w+\.go)\b`)

// checkFileNames checks that the files that package comments name exist.
func checkFileNames(t *testing.T, p *pkg) {
	for _, name := range slices.Concat(p.GoFiles, p.IgnoredGoFiles) {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range fileName.FindAllStringSubmatch(f.Doc.Text(), -1) {
			if _, err := os.Stat(filepath.Join(p.Dir, m[1])); err != nil {
				t.Errorf("%s: the package comment in %s names %s, which does not exist", p.rel(), name, m[1])
			}
		}
	}
}

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

func TestFiles_AreShort(t *testing.T) {
	for _, p := range ourPackages(t) {
		for _, name := range slices.Concat(p.GoFiles, p.IgnoredGoFiles, p.TestGoFiles, p.XTestGoFiles) {
			b, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			limit := maxLines
			if strings.HasSuffix(name, "_test.go") {
				limit = maxTestLines
			}
			file := p.rel() + "/" + name
			if n := bytes.Count(b, []byte("\n")); n > limit && !generated.Match(b) {
				t.Errorf("%s has %d lines, more than %d: it has more than one subject", file, n, limit)
			}
		}
	}
}

// TestDependencies_AreDocumented: docs/dependencies.md lists exactly the direct
// dependencies of the module.
func TestDependencies_AreDocumented(t *testing.T) {
	doc := readFile(t, "docs/dependencies.md")
	documented := make(map[string]bool)
	for _, line := range strings.Split(doc, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < 5 {
			continue
		}
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
			documented[m[1]] = true
		}
	}
	for _, line := range strings.Split(readFile(t, "go.mod"), "\n") {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(fields) < 2 || !strings.HasPrefix(fields[1], "v") || strings.Contains(line, "// indirect") {
			continue
		}
		if !documented[fields[0]] {
			t.Errorf("docs/dependencies.md does not explain the direct dependency %s", fields[0])
		}
		delete(documented, fields[0])
	}
	for name := range documented {
		t.Errorf("docs/dependencies.md explains %s, which is not a direct dependency", name)
	}
}

// readFile reads a file of the module.
func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
