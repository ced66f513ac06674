package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	fence   = regexp.MustCompile("(?ms)^```.*?^```")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	remote  = regexp.MustCompile(`^[a-z]+:`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	inLink  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	dropped = regexp.MustCompile(`[^\pL\pN_ -]`)
)

// TestDocs_LinksResolve: relative links in the documents lead to existing files and
// headings.
func TestDocs_LinksResolve(t *testing.T) {
	texts := make(map[string]string) // by path from the root
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == "testdata" || d.Name() == ".git"):
			return fs.SkipDir
		case !d.IsDir() && filepath.Ext(file) == ".md":
			rel, err := filepath.Rel(root, file)
			if err != nil {
				return err
			}
			rel = filepath.ToSlash(rel)
			texts[rel] = fence.ReplaceAllString(readFile(t, rel), "")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(texts) < 10 {
		t.Fatalf("found %d documents", len(texts))
	}
	for from, text := range texts {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if remote.MatchString(m[1]) {
				continue
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			to := from
			if file != "" {
				to = filepath.ToSlash(filepath.Join(filepath.Dir(filepath.FromSlash(from)), filepath.FromSlash(file)))
			}
			if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(to))); err != nil {
				t.Errorf("%s: the link %s leads nowhere: %v", from, m[1], err)
			} else if anchor != "" && !hasHeading(texts[to], anchor) {
				t.Errorf("%s: the link %s leads to no heading", from, m[1])
			}
		}
	}
}

// hasHeading reports whether a document has a heading with that anchor, as GitHub
// derives it.
func hasHeading(text, anchor string) bool {
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		name := dropped.ReplaceAllString(strings.ToLower(inLink.ReplaceAllString(m[1], "$1")), "")
		if strings.ReplaceAll(strings.TrimSpace(name), " ", "-") == anchor {
			return true
		}
	}
	return false
}
