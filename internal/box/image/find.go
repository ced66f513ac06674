package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/internal/owned"
)

// askTimeout bounds one question to an interpreter. The first start of Python
// from a cold disk takes a few seconds; shims of version managers add to it.
const askTimeout = 20 * time.Second

// maxAnswer bounds the answer.
const maxAnswer = 64 << 10

// FindOptions narrow the search. The zero value means the defaults.
type FindOptions struct {
	// Dirs are searched in order. Default: those of PATH.
	Dirs []string
	// Python and Node, if set, are the only candidates for their language.
	Python, Node string
	// Cache is a file to remember answers in, so that interpreters are asked only
	// once. Default: none.
	Cache string
	// Progress, if set, receives a description of each slow step.
	Progress func(string)
	// Refused, if set, is called with each program that root must not run, and why.
	Refused func(file string, why error)
}

// answer is what an interpreter says of itself.
type answer struct {
	Interpreter
	Needs []string         `json:"needs"` // directories or files of the host that it consists of
	Sites map[string]int64 `json:"sites"` // directories of libraries and when they changed
}

// find returns the interpreters of the host in the order in which they would be
// chosen for their language: as on PATH, but those of Python that have both numpy
// and pandas first. Version managers' shims and links are resolved, so that each
// interpreter is there once.
//
// Interpreters that cannot be run, or that refuse rejects, are left out, unless they
// were asked for by name.
func find(ctx context.Context, opts FindOptions) ([]answer, error) {
	dirs := opts.Dirs
	if dirs == nil {
		dirs = filepath.SplitList(os.Getenv("PATH"))
	}
	store := openCache(opts.Cache)
	var found []answer
	for _, language := range []string{Python, JavaScript} {
		named, names := opts.Python, []string{"python3", "python"}
		if language == JavaScript {
			named, names = opts.Node, []string{"node", "nodejs"}
		}
		candidates := candidates(dirs, names)
		if named != "" {
			candidates = []string{named}
		}
		var these []answer
		for _, candidate := range candidates {
			if err := refuse(candidate); err != nil && named == "" {
				if opts.Refused != nil {
					opts.Refused(candidate, err)
				}
				continue
			}
			a, err := ask(ctx, store, language, candidate, opts.Progress)
			if cause := context.Cause(ctx); cause != nil {
				return nil, fmt.Errorf("find interpreters: %w", cause)
			}
			if err != nil {
				if named != "" {
					return nil, invalidError{fmt.Errorf("use %q for %s: %w", named, language, err)}
				}
				continue // broken or not what its name says: the next one may do
			}
			if err := refuse(a.Path); err != nil && named == "" { // a script that starts another user's
				if opts.Refused != nil {
					opts.Refused(a.Path, err)
				}
				continue
			}
			if !slices.ContainsFunc(these, func(b answer) bool { return b.Path == a.Path }) {
				these = append(these, a)
			}
		}
		slices.SortStableFunc(these, func(a, b answer) int { return rank(a) - rank(b) })
		found = append(found, these...)
	}
	store.save() // an answer that is not remembered is asked for again
	return found, nil
}

// refuse returns an error if this process is root and another user can change the program
// at file, or replace it. Root would run that user's code: sudo may keep the PATH of its
// caller, and programs of boxes see everything in them.
func refuse(file string) error {
	if os.Geteuid() != 0 || !owned.MapsAllUsers() {
		return nil
	}
	if err := owned.File(file); errors.Is(err, owned.ErrUnsafe) {
		return err
	}
	return nil // an error of the file system shows when the program is run
}

// rank sorts interpreters that can analyse data before those that cannot.
func rank(a answer) int {
	if slices.Contains(a.Libraries, "numpy") && slices.Contains(a.Libraries, "pandas") {
		return 0
	}
	return 1
}

// candidates returns the programs of the given names in dirs, in order.
func candidates(dirs, names []string) []string {
	var list []string
	seen := make(map[string]bool)
	for _, dir := range dirs {
		if !filepath.IsAbs(dir) {
			continue
		}
		for _, name := range names {
			file := filepath.Join(dir, name)
			info, err := os.Stat(file)
			if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
				continue
			}
			real, err := filepath.EvalSymlinks(filepath.Dir(file))
			if err != nil || seen[filepath.Join(real, name)] {
				continue
			}
			seen[filepath.Join(real, name)] = true
			list = append(list, file)
		}
	}
	return list
}

// ask returns what the interpreter at file says of itself, from the cache if
// nothing has changed since.
func ask(ctx context.Context, store *cache, language, file string, progress func(string)) (answer, error) {
	if !filepath.IsAbs(file) {
		full, err := exec.LookPath(file)
		if err != nil {
			return answer{}, err
		}
		if file, err = filepath.Abs(full); err != nil {
			return answer{}, err
		}
	}
	mark, err := markOf(file)
	if err != nil {
		return answer{}, err
	}
	mark = language + " " + mark // one file may be asked for two languages by mistake
	if a, ok := store.get(file, mark); ok {
		return a, nil
	}
	if progress != nil {
		progress("asking " + file + " for its version and libraries")
	}
	var a answer
	if language == Python {
		a, err = askPython(ctx, file)
	} else {
		a, err = askNode(ctx, file)
	}
	if err != nil {
		return answer{}, err
	}
	store.put(file, mark, a)
	return a, nil
}

// pythonQuestion prints one line of JSON. It imports none of the libraries, which
// would take seconds, and runs on Python 3.4 and later.
const pythonQuestion = `
import sys, json, os, importlib.util
if sys.version_info[0] < 3: sys.exit(3)
have = []
for name in sys.argv[1:]:
    try:
        if importlib.util.find_spec(name): have.append(name)
    except Exception: pass
paths = [p for p in sys.path if os.path.isdir(p)]
print(json.dumps({"executable": sys.executable, "version": "%d.%d.%d" % sys.version_info[:3],
    "prefix": sys.prefix, "base": [sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix],
    "have": have, "paths": paths}))
`

func askPython(ctx context.Context, file string) (answer, error) {
	// Isolated mode: neither the environment nor the user's own site directory
	// counts, since neither will be in a guest.
	out, err := run(ctx, file, append([]string{"-I", "-c", pythonQuestion}, libraries...)...)
	if err != nil {
		return answer{}, err
	}
	var said struct {
		Executable, Version, Prefix string
		Base, Have, Paths           []string
	}
	if err := json.Unmarshal(out, &said); err != nil {
		return answer{}, fmt.Errorf("read answer of %q: %w", file, err)
	}
	executable, err := realDir(said.Executable)
	if err != nil {
		return answer{}, err
	}
	a := answer{
		Interpreter: Interpreter{
			Language: Python, Path: executable, Version: said.Version, Prefix: said.Prefix, Libraries: said.Have,
		},
		Sites: make(map[string]int64),
	}
	for _, prefix := range append([]string{said.Prefix}, said.Base...) {
		need, err := neededFor(prefix)
		if err != nil {
			return answer{}, err
		}
		if !slices.Contains(a.Needs, need) {
			a.Needs = append(a.Needs, need)
		}
	}
	a.Files = append([]string{executable}, said.Paths...)
	for _, p := range said.Paths {
		if info, err := os.Stat(p); err == nil {
			a.Sites[p] = info.ModTime().UnixNano()
		}
	}
	a.Files = append(a.Files, systemFiles()...)
	return a, nil
}

func askNode(ctx context.Context, file string) (answer, error) {
	out, err := run(ctx, file, "-e", `console.log(JSON.stringify({executable: process.execPath, version: process.versions.node}))`)
	if err != nil {
		return answer{}, err
	}
	var said struct{ Executable, Version string }
	if err := json.Unmarshal(out, &said); err != nil {
		return answer{}, fmt.Errorf("read answer of %q: %w", file, err)
	}
	executable, err := filepath.EvalSymlinks(said.Executable)
	if err != nil {
		return answer{}, err
	}
	a := answer{Interpreter: Interpreter{
		Language: JavaScript, Path: executable, Version: said.Version, Prefix: filepath.Dir(filepath.Dir(executable)),
	}}
	// The program is a single file that needs only the system's libraries; its
	// prefix, with npm, is shown if it is one.
	need := executable
	if info, err := os.Stat(filepath.Join(a.Prefix, "lib", "node_modules")); err == nil && info.IsDir() {
		if n, err := neededFor(a.Prefix); err == nil {
			need = n
		}
	}
	a.Needs = []string{need}
	a.Files = append([]string{executable}, systemFiles()...)
	return a, nil
}

// systemFiles are what changes when the system's libraries are upgraded: package
// managers have the linker's cache written anew, and replace files by renaming.
func systemFiles() []string {
	list := []string{"/etc/ld.so.cache"}
	for _, pattern := range []string{"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/lib/*-linux-*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			continue // not possible: the patterns are constant
		}
		for _, dir := range found {
			if real, err := filepath.EvalSymlinks(dir); err == nil && real == dir {
				list = append(list, dir)
			}
		}
	}
	return list
}

// run runs an interpreter and returns the last line that it printed.
func run(ctx context.Context, file string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, file, args...)
	cmd.Dir = "/" // version managers look for files in the working directory
	cmd.WaitDelay = time.Second
	var out, text limited
	cmd.Stdout, cmd.Stderr = &out, &text
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("run %q: no answer within %v", file, askTimeout)
		}
		if last := lastLine(text.b); last != "" {
			return nil, fmt.Errorf("run %q: %w: %s", file, err, last)
		}
		return nil, fmt.Errorf("run %q: %w", file, err)
	}
	return []byte(lastLine(out.b)), nil
}

// limited keeps the first maxAnswer bytes and drops the rest.
type limited struct{ b []byte }

func (l *limited) Write(p []byte) (int, error) {
	l.b = append(l.b, p[:min(len(p), maxAnswer-len(l.b))]...)
	return len(p), nil
}

func lastLine(b []byte) string {
	s := strings.TrimSpace(string(b))
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// realDir resolves links in the directory of file, but not file itself: what the
// python of a virtual environment is depends on where it is called.
func realDir(file string) (string, error) {
	if file == "" {
		return "", errors.New("the interpreter does not know where it is")
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(file))
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, filepath.Base(file)), nil
}

// stores are directories that hold programs together with all that they need.
var stores = []string{"/nix/store", "/gnu/store", "/home/linuxbrew/.linuxbrew"}

// neededFor returns the directory to show so that what is installed in prefix
// works. It refuses what would show more than programs.
func neededFor(prefix string) (string, error) {
	real, err := filepath.EvalSymlinks(prefix)
	if err != nil {
		return "", err
	}
	for _, store := range stores {
		if isWithin(real, store) {
			return store, nil
		}
	}
	if isWithin(real, "/usr") {
		return "/usr", nil
	}
	home, _ := os.UserHomeDir() // unknown if empty: then the others must do
	for _, private := range []string{"/", "/bin", "/etc", "/home", "/root", "/var", "/run", "/tmp", "/opt", home} {
		if private != "" && isWithin(private, real) {
			return "", fmt.Errorf("the interpreter is installed in %q, which holds more than programs", real)
		}
	}
	return real, nil
}

// check returns an error unless what the answer needs of the host is what an interpreter
// at its path may need. An answer from the cache may be of a time when the host was
// another one.
func (a *answer) check() error {
	real, err := filepath.EvalSymlinks(a.Path)
	if err != nil {
		return err
	}
	for _, need := range a.Needs {
		if need == real || need == a.Path {
			continue
		}
		now, err := neededFor(need)
		if err != nil {
			return err
		}
		if now != need || need != "/usr" && !slices.Contains(stores, need) && !isWithin(a.Path, need) && !isWithin(real, need) {
			return fmt.Errorf("%q is no directory of the interpreter %q", need, a.Path)
		}
	}
	return nil
}

// isWithin reports whether p is dir or below it.
func isWithin(p, dir string) bool {
	rel, err := filepath.Rel(dir, p)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}
