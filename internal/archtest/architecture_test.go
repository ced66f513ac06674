package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
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

// TestArchitecture_PathsExist: each path in "Where to look" exists, and each function
// there is declared in the file that the text names after it.
func TestArchitecture_PathsExist(t *testing.T) {
	paths := regexp.MustCompile("`([a-z_0-9]+(?:/[a-z_0-9]+)+(?:\\.go)?)`").FindAllStringSubmatch(section(t, "Where to look"), -1)
	if len(paths) < 10 {
		t.Fatalf("found %d paths", len(paths))
	}
	for _, m := range paths {
		if _, err := os.Stat(filepath.Join("..", "..", "internal", filepath.FromSlash(m[1]))); err != nil {
			t.Errorf("docs/architecture.md: %v", err)
		}
	}
	in := regexp.MustCompile("`([A-Za-z.]+)`(?: in | \\()`([a-z_0-9/]+\\.go)`").FindAllStringSubmatch(section(t, "Where to look"), -1)
	if len(in) < 6 {
		t.Fatalf("found %d functions", len(in))
	}
	for _, m := range in {
		name := m[1][strings.LastIndex(m[1], ".")+1:]
		if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + name + `\(`).MatchString(readFile(t, "internal/"+m[2])) {
			t.Errorf("docs/architecture.md: %s does not declare %s", m[2], m[1])
		}
	}
}
