package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// section returns the part of docs/architecture.md below a heading of the second level.
func section(t *testing.T, title string) string {
	t.Helper()
	_, text, ok := strings.Cut(readFile(t, "docs/architecture.md"), "\n## "+title+"\n")
	if !ok {
		t.Fatalf("docs/architecture.md has no section %q", title)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// TestArchitecture_ListsEveryPackage: the table of packages names each package by its
// path or, next to related packages, by the last elements of its path.
func TestArchitecture_ListsEveryPackage(t *testing.T) {
	named := make(map[string]bool)
	for _, m := range regexp.MustCompile("`([a-z0-9/-]+)`").FindAllStringSubmatch(section(t, "Packages"), -1) {
		named[m[1]] = true
	}
	root := filepath.Join("..", "..")
	packages := 0
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "node_modules" || d.Name() == ".git"):
			return fs.SkipDir
		case !d.IsDir():
			return nil
		}
		sources, err := filepath.Glob(filepath.Join(file, "*.go"))
		if err != nil {
			return err
		}
		sources = filterTests(sources)
		rel, err := filepath.Rel(root, file)
		if err != nil || len(sources) == 0 {
			return err
		}
		packages++
		for p := filepath.ToSlash(rel); ; {
			if named[p] {
				return nil
			}
			_, rest, ok := strings.Cut(p, "/")
			if !ok {
				break
			}
			p = rest
		}
		t.Errorf("docs/architecture.md: the table of packages lacks %s", rel)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if packages < 40 {
		t.Errorf("found %d packages", packages)
	}
}

// filterTests returns the files that are not tests.
func filterTests(files []string) (sources []string) {
	for _, f := range files {
		if !strings.HasSuffix(f, "_test.go") {
			sources = append(sources, f)
		}
	}
	return sources
}

// TestArchitecture_NamesExist: each file, package and identifier in "Where to look"
// exists. An identifier is declared in the file that the text names after it or, without
// one, in a package that the same paragraph names.
func TestArchitecture_NamesExist(t *testing.T) {
	quoted := regexp.MustCompile("`([^`]+)`")
	in := regexp.MustCompile("`([A-Za-z.]+)`(?: in | \\()`([a-z_0-9/]+\\.go)`")
	names := 0
	paragraphs := strings.Split(section(t, "Where to look"), "\n* ")
	for _, paragraph := range paragraphs[1:] {
		var dirs, bare, identifiers []string
		for _, m := range quoted.FindAllStringSubmatch(paragraph, -1) {
			names++
			name := m[1]
			isFile := strings.HasSuffix(name, ".go")
			info, err := os.Stat(filepath.Join("..", "..", "internal", filepath.FromSlash(name)))
			switch {
			case err == nil && info.IsDir():
				dirs = append(dirs, "internal/"+name)
			case err == nil:
				dirs = append(dirs, "internal/"+filepath.ToSlash(filepath.Dir(name)))
			case strings.Contains(name, "/"):
				t.Errorf("docs/architecture.md: %v", err)
			case isFile:
				bare = append(bare, name)
			default:
				identifiers = append(identifiers, name)
			}
		}
		for _, name := range bare {
			if !slices.ContainsFunc(dirs, func(dir string) bool {
				_, err := os.Stat(filepath.Join("..", "..", dir, name))
				return err == nil
			}) {
				t.Errorf("docs/architecture.md: %s is in none of %q", name, dirs)
			}
		}
		for _, name := range identifiers {
			if pkg, rest, ok := strings.Cut(name, "."); ok && declaredBelow(t, pkg, rest) {
				continue
			}
			if !slices.ContainsFunc(dirs, func(dir string) bool { return declaredBelow(t, dir, name) }) {
				t.Errorf("docs/architecture.md: none of %q declares %s", dirs, name)
			}
		}
		for _, m := range in.FindAllStringSubmatch(paragraph, -1) {
			if !declares(readFile(t, "internal/"+m[2]), m[1]) {
				t.Errorf("docs/architecture.md: %s does not declare %s", m[2], m[1])
			}
		}
	}
	if names < 40 {
		t.Errorf("found %d names", names)
	}
}

// declaredBelow reports whether a file in dir, a path below the root, declares name.
func declaredBelow(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(filterTests(files), func(file string) bool {
		return declares(readFile(t, dir+"/"+filepath.Base(file)), name)
	})
}

// declares reports whether a source declares a function, method or type. The name of a
// method may begin with its type and a dot.
func declares(source, name string) bool {
	receiver := `(\([^)]*\) )?`
	function := name
	if typ, method, ok := strings.Cut(name, "."); ok {
		receiver, function = `\(\w+ \*?`+typ+`\) `, method
	}
	return regexp.MustCompile(`(?m)^(func ` + receiver + function + `\(|type ` + name + ` )`).MatchString(source)
}
