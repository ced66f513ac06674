package oci

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/box/image"
	"github.com/glovebox-dev/glovebox/internal/erofs"
	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
)

// oldestPython is the minor version of the oldest Python 3 that the kernel supports.
const oldestPython = 8

// maxDirs bounds the directories of an image's PATH that are searched.
const maxDirs = 32

// standardDirs are where images have interpreters that are not on their PATH.
var standardDirs = []string{"/usr/local/bin", "/opt/conda/bin", "/opt/venv/bin", "/usr/bin", "/bin"}

// places are where Python has its libraries, below its prefix and for its version.
var places = []string{"lib/python3.%d/site-packages", "lib/python3/dist-packages", "local/lib/python3.%d/dist-packages"}

var pythonVersion = lazyregexp.New(`^python3\.([0-9]{1,2})$`)

// searchDirs returns the directories of an image's PATH, then the standard ones.
func searchDirs(env []string) []string {
	var dirs []string
	for _, kv := range env {
		list, ok := strings.CutPrefix(kv, "PATH=")
		if !ok {
			continue
		}
		for dir := range strings.SplitSeq(list, ":") {
			if path.IsAbs(dir) && len(dir) <= maxPath && len(dirs) < maxDirs {
				dirs = append(dirs, path.Clean(dir))
			}
		}
	}
	return append(dirs, standardDirs...)
}

// interpreters finds the interpreters of a tree, whose config has the environment env.
// Nothing is run: whether they work shows when a box starts.
func (t *tree) interpreters(env []string) (found []image.Interpreter, notes []string) {
	dirs := searchDirs(env)
	python, unfit := t.python(dirs)
	if python != nil {
		found = append(found, *python)
	} else if unfit != "" {
		notes = append(notes, unfit)
	}
	for _, dir := range dirs {
		if file := path.Join(dir, "node"); t.isProgram(file) {
			found = append(found, image.Interpreter{Language: image.JavaScript, Path: file, Prefix: path.Dir(dir)})
			break
		}
	}
	switch {
	case len(found) == 0:
		notes = append(notes, "The image has neither Python nor Node.js: boxes run commands only.")
	case len(found) == 1 && found[0].Language == image.Python:
		notes = append(notes, "The image has no Node.js: JavaScript is not available.")
	case len(found) == 1:
		notes = append(notes, "The image has no Python.")
	}
	if !t.isProgram("/bin/sh") {
		notes = append(notes, "The image has no /bin/sh: commands need a list of arguments.")
	}
	return found, notes
}

// python finds the first Python 3 that the kernel can run in. If there are only others, unfit
// says what is wrong with the last one.
func (t *tree) python(dirs []string) (_ *image.Interpreter, unfit string) {
	for _, dir := range dirs {
		file := path.Join(dir, "python3")
		if !t.isProgram(file) {
			continue
		}
		i := &image.Interpreter{Language: image.Python, Path: file, Prefix: path.Dir(dir)}
		minor := t.minor(file, i.Prefix)
		if minor >= 0 {
			i.Version = fmt.Sprintf("3.%d", minor)
		}
		if minor >= 0 && minor < oldestPython {
			unfit = fmt.Sprintf("%s is Python %s; at least 3.%d is needed.", file, i.Version, oldestPython)
			continue
		}
		if t.stripped(file, minor) {
			unfit = fmt.Sprintf("%s has no whole standard library, as in Debian's python3-minimal: install the package python3 in the image.", file)
			continue
		}
		for _, lib := range image.Libraries() {
			if slices.ContainsFunc(places, func(place string) bool {
				if strings.Contains(place, "%") {
					place = fmt.Sprintf(place, minor)
				}
				return t.lookup(path.Join(i.Prefix, place, lib, "__init__.py")) != nil
			}) {
				i.Libraries = append(i.Libraries, lib)
			}
		}
		return i, ""
	}
	return nil, unfit
}

// stripped reports whether the directory of a Python's standard library is there and lacks what
// the kernel needs. A library that is elsewhere is not judged, as that of a script which starts
// another Python.
func (t *tree) stripped(file string, minor int) bool {
	program := t.follow(file)
	home := path.Dir(path.Dir(program))
	has := func(format string) bool { return t.lookup(path.Join(home, fmt.Sprintf(format, minor))) != nil }
	lib := t.lookup(path.Join(home, fmt.Sprintf("lib/python3.%d", minor)))
	switch {
	case has("lib/python3.%d/os.py"):
		return !has("lib/python3.%d/json/__init__.py")
	case lib == nil, t.lookup(path.Join(home, "pyvenv.cfg")) != nil: // made with copies of programs
		return false
	case slices.ContainsFunc([]string{"lib/python3.%d/os.pyc", "lib/python3.%d/encodings", "lib/python3%d.zip", "lib64/python3.%d/os.py", "lib64/python3%d.zip"}, has):
		return false
	}
	return len(lib.Entries) == 0 || pythonVersion().MatchString(path.Base(program))
}

// follow returns the path that the links at file lead to.
func (t *tree) follow(file string) string {
	for range maxHops {
		dir := t.lookup(path.Dir(file))
		if dir == nil || dir.Entries[path.Base(file)] == nil || dir.Entries[path.Base(file)].Type() != erofs.TypeSymlink {
			break
		}
		to := dir.Entries[path.Base(file)].Target
		if !path.IsAbs(to) {
			to = path.Join(path.Dir(file), to)
		}
		file = path.Clean(to)
	}
	return file
}

// minor returns the minor version of the Python at file: that of the file which it links
// to, or else of its libraries; -1 if neither tells.
func (t *tree) minor(file, prefix string) int {
	dir, name := t.lookup(path.Dir(file)), path.Base(file)
	for range maxHops {
		if m := pythonVersion().FindStringSubmatch(name); m != nil {
			n, _ := strconv.Atoi(m[1]) // two digits
			return n
		}
		if dir == nil {
			break
		}
		next := dir.Entries[name]
		if next == nil || next.Type() != erofs.TypeSymlink {
			break
		}
		to := next.Target
		if !path.IsAbs(to) {
			to = path.Join(path.Dir(file), to)
		}
		file, name = to, path.Base(to)
		dir = t.lookup(path.Dir(to))
	}
	newest := -1
	if lib := t.lookup(path.Join(prefix, "lib")); lib != nil {
		for name := range lib.Entries {
			if m := pythonVersion().FindStringSubmatch(name); m != nil {
				n, _ := strconv.Atoi(m[1]) // two digits
				newest = max(newest, n)
			}
		}
	}
	return newest
}
