// Package image is where the root file systems of guests come from: the host's
// own toolchain, a directory, or an image that package oci unpacked. It describes them
// as engine.Root and says which interpreters are inside; it mounts nothing itself.
package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/engine"
)

// Image is a root file system and what is known about it.
type Image struct {
	Root         engine.Root
	Name         string                 // of a container image, as --image takes it; empty for others
	Digest       string                 // of a container image in the store: that of its manifest, or of its config if it has none
	Interpreters map[string]Interpreter // by language
	Env          []string               // of user code, KEY=value, where the image sets any
	Notes        []string               // what people should know, a sentence each
	Warnings     []string               // what the operator should act on, a sentence or two each
}

// Interpreter runs programs of one language.
type Interpreter struct {
	Language  string   `json:"language"`            // Python or JavaScript
	Path      string   `json:"path"`                // as seen inside the guest
	Version   string   `json:"version"`             // as the interpreter tells it; empty if it could not be asked
	Prefix    string   `json:"prefix"`              // what it is installed in
	Libraries []string `json:"libraries,omitempty"` // of those that are looked for, the ones it has
	// Files are files and directories of the host that change when the interpreter
	// or a library that it uses is installed or upgraded. Toolchain knows them.
	Files []string `json:"files,omitempty"`
}

// HowToInstall returns what to type on the host for Python to have more modules: apt
// for the system's own, in which pip refuses to install, pip for others.
func (i Interpreter) HowToInstall(modules ...string) string {
	if i.Prefix != "/usr" {
		return i.Path + " -m pip install " + strings.Join(modules, " ")
	}
	return "sudo apt-get install python3-" + strings.Join(modules, " python3-")
}

// The languages.
const (
	Python     = "python"
	JavaScript = "javascript"
)

// libraries are the modules that people who analyse data expect in Python, the most
// important first. Clients and the doctor show those of them that an image has.
var libraries = []string{
	"numpy", "pandas", "matplotlib", "scipy", "sklearn", "statsmodels", "seaborn", "plotly", "polars", "pyarrow",
	"openpyxl", "xlrd", "lxml", "bs4", "PIL", "requests", "sqlalchemy", "sympy", "networkx", "tabulate", "jinja2", "torch", "IPython",
}

// Libraries returns the modules of Python that images are searched for, the most
// important first.
func Libraries() []string { return slices.Clone(libraries) }

// Directory describes a directory that holds a root file system, such as an
// unpacked container image. Its interpreters are found, not run.
func Directory(dir string) (*Image, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find image directory: %w", err)
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, invalidError{fmt.Errorf("find image directory: %w", withoutCall(err))}
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("find image directory: %w", err)
	}
	if !info.IsDir() || dir == "/" {
		return nil, invalidError{fmt.Errorf("use %q as image: not a directory of its own", dir)}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open image directory: %w", err)
	}
	defer root.Close()
	img := &Image{
		Root:         engine.Root{Key: hashKey("directory", dir, info.ModTime().String()), Tree: &engine.Tree{Dir: dir}},
		Name:         "dir:" + dir,
		Interpreters: make(map[string]Interpreter),
	}
	if i, ok := pythonIn(root); ok {
		img.Interpreters[Python] = i
	} else {
		img.Notes = append(img.Notes, fmt.Sprintf("No Python was found in %s.", dir))
	}
	if i, ok := nodeIn(root); ok {
		img.Interpreters[JavaScript] = i
	}
	if warning := accountWarning(root); warning != "" {
		img.Warnings = append(img.Warnings, warning)
	}
	return img, nil
}

// invalidError is an engine.ErrInvalid whose text is for people.
type invalidError struct{ error }

func (e invalidError) Unwrap() []error { return []error{e.error, engine.ErrInvalid} }

// withoutCall returns an error of the file system with its path and without the system call,
// which says nothing to people.
func withoutCall(err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%q: %w", at.Path, at.Err)
	}
	return err
}

// prefixes are where interpreters are installed in images.
var prefixes = []string{"usr/local", "opt/conda", "opt/venv", "usr"}

// places are where Python has its libraries, below a prefix.
var places = []string{"lib/python3*/site-packages", "lib/python3*/dist-packages", "local/lib/python3*/dist-packages"}

func pythonIn(root *os.Root) (Interpreter, bool) {
	for _, prefix := range prefixes {
		name := path.Join(prefix, "bin/python3")
		if !isProgram(root, name) {
			continue
		}
		i := Interpreter{Language: Python, Path: "/" + name, Prefix: "/" + prefix, Files: []string{filepath.Join(root.Name(), name)}}
		if dirs, err := fs.Glob(root.FS(), path.Join(prefix, "lib/python3.*")); err == nil && len(dirs) > 0 {
			i.Version = strings.TrimPrefix(path.Base(dirs[0]), "python")
		}
		for _, place := range places {
			dirs, err := fs.Glob(root.FS(), path.Join(prefix, place))
			if err != nil {
				continue // not possible: the patterns are constant
			}
			for _, dir := range dirs {
				i.Files = append(i.Files, filepath.Join(root.Name(), dir))
			}
		}
		for _, lib := range libraries {
			for _, place := range places {
				found, err := fs.Glob(root.FS(), path.Join(prefix, place, lib, "__init__.py"))
				if err == nil && len(found) > 0 && !slices.Contains(i.Libraries, lib) {
					i.Libraries = append(i.Libraries, lib)
				}
			}
		}
		return i, true
	}
	return Interpreter{}, false
}

func nodeIn(root *os.Root) (Interpreter, bool) {
	for _, prefix := range prefixes {
		name := path.Join(prefix, "bin/node")
		if isProgram(root, name) {
			return Interpreter{Language: JavaScript, Path: "/" + name, Prefix: "/" + prefix, Files: []string{filepath.Join(root.Name(), name)}}, true
		}
	}
	return Interpreter{}, false
}

// isProgram reports whether name is an executable file in root, or a link: links
// with absolute targets can only be followed inside the guest.
func isProgram(root *os.Root, name string) bool {
	info, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) || err != nil {
		return false
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return true
	}
	return info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}
