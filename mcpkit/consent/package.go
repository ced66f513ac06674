package consent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// packageIn adds what npx runs of a local directory.
func (f *finder) packageIn(a string) {
	if len(a) > maxPath {
		return
	}
	for _, base := range f.bases {
		if path := absolute(base, a); strings.HasPrefix(a, ".") || filepath.IsAbs(a) {
			f.packageOf(path)
		}
	}
}

// ownBinary adds the program that the package.json of the working directory gives a name.
// npx prefers it to a package of that name.
func (f *finder) ownBinary(name string) {
	for _, base := range f.bases {
		file := filepath.Join(base, "package.json")
		pkg, err := readPackage(file)
		if err != nil {
			f.fail(fmt.Errorf("programs of %q cannot be compared: %w", file, err))
		}
		if program := pkg.program(name); program != "" {
			f.add(file)
			f.packaged(base, program)
		}
	}
}

const (
	// maxPackage bounds a package.json, and maxPrograms the programs in it.
	maxPackage  = 1 << 20
	maxPrograms = 32
)

// packageOf adds the package.json of a directory, and the programs that it names.
func (f *finder) packageOf(dir string) {
	path := filepath.Join(dir, "package.json")
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() || ofSystem(path) {
		return
	}
	f.add(path)
	pkg, err := readPackage(path)
	var programs []string
	if err == nil {
		programs, err = pkg.programs()
	}
	if err != nil {
		f.fail(fmt.Errorf("programs of %q cannot be compared: %w", path, err))
	}
	for _, name := range programs {
		f.packaged(dir, name)
	}
}

// packaged adds a program that a package.json names.
func (f *finder) packaged(dir, name string) {
	if name != "" && len(name) <= maxPath && !strings.Contains(name, "\x00") {
		f.add(absolute(dir, name))
	}
}

// A manifest is the content of a package.json. Names in a map are exact; those of struct
// fields would match in any case.
type manifest map[string]json.RawMessage

// readPackage reads a package.json. It returns nil if there is none that programs can
// read.
func readPackage(path string) (manifest, error) {
	file, err := openFile(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ENAMETOOLONG) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(file, maxPackage+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxPackage {
		return nil, fmt.Errorf("it is larger than %d bytes", maxPackage)
	}
	var pkg manifest
	if err := json.Unmarshal(bytes.TrimPrefix(b, []byte("\ufeff")), &pkg); err != nil {
		return nil, err
	}
	return pkg, nil
}

// programs returns the programs that the package names.
func (m manifest) programs() ([]string, error) {
	values := []json.RawMessage{m["main"], m["bin"]}
	var bin map[string]json.RawMessage
	if json.Unmarshal(m["bin"], &bin) == nil { // otherwise it is the only program
		values = append(values, slices.Collect(maps.Values(bin))...)
	}
	if len(bin) > maxPrograms {
		return nil, fmt.Errorf("it names %d programs; the limit is %d", len(bin), maxPrograms)
	}
	var programs []string
	for _, value := range values {
		if name := asString(value); name != "" { // other values name no program
			programs = append(programs, name)
		}
	}
	return programs, nil
}

// program returns the file of the package's program of a name, or "".
func (m manifest) program(name string) string {
	var bin, directories map[string]json.RawMessage
	if json.Unmarshal(m["bin"], &bin) == nil && bin[name] != nil {
		return asString(bin[name])
	}
	if only := asString(m["bin"]); only != "" && path.Base(asString(m["name"])) == name {
		return only
	}
	if json.Unmarshal(m["directories"], &directories) == nil && asString(directories["bin"]) != "" && filepath.IsLocal(name) {
		return filepath.Join(asString(directories["bin"]), name)
	}
	return ""
}

// asString returns a JSON string, or "" for any other value.
func asString(value json.RawMessage) (s string) {
	if json.Unmarshal(value, &s) != nil {
		return ""
	}
	return s
}
