package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// namedVersions matches the versions of npm packages that documents name: the package's
// specification, or the name that the documents use for it.
var namedVersions = []struct {
	pattern *regexp.Regexp
	names   []string // of the packages, by group; none: the first group is the name
}{
	{regexp.MustCompile(`(@[\w-]+/[\w.-]+)@([0-9][\w.-]*)`), nil},
	{regexp.MustCompile(`\bmcporter ([0-9][0-9.]*)`), []string{"mcporter"}},
	{regexp.MustCompile(`\bTypeScript SDK ([0-9][0-9.]*) and ([0-9][0-9.]*)`), []string{"@modelcontextprotocol/sdk", "@modelcontextprotocol/client"}},
}

// TestDocuments_NameInstalledVersions compares the versions of npm packages in the
// documents with those that the tests install.
func TestDocuments_NameInstalledVersions(t *testing.T) {
	raw, err := os.ReadFile("../../e2e/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	var lock struct {
		Packages map[string]struct{ Version string }
	}
	if err := json.Unmarshal(raw, &lock); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(files) == 0 {
		t.Fatalf("documents: %v, %v", files, err)
	}
	found := map[string]bool{}
	check := func(file, name, version string) {
		installed := lock.Packages["node_modules/"+name].Version
		if installed == "" {
			return // not a package of the tests
		}
		found[name] = true
		if version = strings.TrimRight(version, "."); installed != version && !strings.HasPrefix(installed, version+".") {
			t.Errorf("%s names %s %s, and the tests install %s", filepath.Base(file), name, version, installed)
		}
	}
	for _, file := range append(files, "../../README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range namedVersions {
			for _, m := range v.pattern.FindAllStringSubmatch(string(text), -1) {
				if v.names == nil {
					check(file, m[1], m[2])
				}
				for i, name := range v.names {
					check(file, name, m[i+1])
				}
			}
		}
	}
	for _, name := range []string{"mcporter", "@modelcontextprotocol/sdk", "@modelcontextprotocol/client", "@modelcontextprotocol/server-everything", "@modelcontextprotocol/server-filesystem"} {
		if !found[name] {
			t.Errorf("no document names a version of %s; correct this test's patterns", name)
		}
	}
}
