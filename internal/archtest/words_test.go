package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// clauseSubject matches a sentence that has a clause as its subject, as in "What it gets
// is read-only", and questions.
var clauseSubject = regexp.MustCompile(`(?:^|[.:;!?] +)((?:What|Who|Whoever|Whatever|Whose)\b[^.?!]*[.?!]?)`)

// clauseSubjects returns the sentences of a comment that begin with such a subject.
func clauseSubjects(comment string) (found []string) {
	for _, m := range clauseSubject.FindAllStringSubmatch(strings.Join(strings.Fields(comment), " "), -1) {
		if !strings.HasSuffix(m[1], "?") {
			found = append(found, m[1])
		}
	}
	return found
}

func TestClauseSubjects(t *testing.T) {
	for comment, want := range map[string]int{
		"What it gets is read-only.": 1, "It is slow. What\n it does\n is rare": 1, "It says: What is your name?": 0, "Who waits leaves. Who is it?": 1,
		"It knows what it gets.": 0, "Whatsoever": 0, "": 0,
	} {
		if got := clauseSubjects(comment); len(got) != want {
			t.Errorf("%q: got %q, want %d", comment, got, want)
		}
	}
}

// TestComments_NameTheirSubject: a sentence of a comment names who does what, instead of
// having "What …" or "Who …" as its subject.
func TestComments_NameTheirSubject(t *testing.T) {
	check := func(file, comment string) {
		for _, s := range clauseSubjects(comment) {
			t.Errorf("%s: %q: name the subject", file, s)
		}
	}
	eachFile(t, func(name string, f *ast.File) {
		for _, group := range f.Comments {
			check(name, group.Text())
		}
	})
	files := 0
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == "bin" || strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2):
			return fs.SkipDir
		case !d.Type().IsRegular() || !hasComments(root, path):
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		for _, comment := range lineComments(string(b)) {
			check(path, comment)
		}
		return nil
	})
	if err != nil || files < 50 {
		t.Errorf("%d files that are not Go, %v", files, err)
	}
}

// subjectOfComment matches the name that a comment says something of, as in "open returns".
var subjectOfComment = regexp.MustCompile(`^([a-z]\w*) [a-z]+s\b`)

// TestComments_BeginWithName: the comment on a function is about that function, and not about
// the name it had before.
func TestComments_BeginWithName(t *testing.T) {
	eachFile(t, func(name string, f *ast.File) {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && !strings.HasPrefix(fn.Name.Name, "Test") {
				if m := subjectOfComment.FindStringSubmatch(fn.Doc.Text()); m != nil && m[1] != fn.Name.Name {
					t.Errorf("%s: the comment on %s is about %q", name, fn.Name.Name, m[1])
				}
			}
		}
	})
}

// eachFile calls do for each file of Go of the module.
func eachFile(t *testing.T, do func(name string, f *ast.File)) {
	t.Helper()
	for _, p := range ourPackages(t) {
		for _, name := range slices.Concat(p.GoFiles, p.IgnoredGoFiles, p.TestGoFiles, p.XTestGoFiles) {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			do(p.rel()+"/"+name, f)
		}
	}
}

// hasComments reports whether the lines of a file that is not Go may be comments that
// begin with # or //.
func hasComments(root, path string) bool {
	switch filepath.Ext(path) {
	case ".py", ".cjs", ".mjs", ".txtar", ".html", ".service", ".yml", ".env":
		return true
	}
	dir, err := filepath.Rel(root, filepath.Dir(path))
	return err == nil && (dir == "scripts" && filepath.Ext(path) == "" || filepath.Base(path) == "Makefile" || filepath.Base(path) == "Dockerfile")
}

// lineComment matches a line that is a comment.
var lineComment = regexp.MustCompile(`^\s*(?:#+|//)(?: (.*))?$`)

// lineComments returns the comments of a file, consecutive lines joined.
func lineComments(text string) (comments []string) {
	var lines []string
	for line := range strings.Lines(text + "\n\n") {
		if m := lineComment.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
			lines = append(lines, m[1])
		} else if len(lines) > 0 {
			comments = append(comments, strings.Join(lines, "\n"))
			lines = nil
		}
	}
	return comments
}
