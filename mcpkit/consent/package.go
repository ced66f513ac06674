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
	"path/filepath"
	"slices"
	"strings"
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
	file, err := openFile(path)
	if errors.Is(err, fs.ErrPermission) {
		return // the program cannot read it either
	}
	var programs []string
	if err == nil {
		defer file.Close()
		programs, err = programsOf(file)
	}
	if err != nil {
		f.fail(fmt.Errorf("programs of %q cannot be compared: %w", path, err))
	}
	for _, name := range programs {
		if name != "" && len(name) <= maxPath && !strings.Contains(name, "\x00") {
			f.add(absolute(dir, name))
		}
	}
}

// programsOf returns the programs that a package.json names.
func programsOf(file io.Reader) ([]string, error) {
	b, err := io.ReadAll(io.LimitReader(file, maxPackage+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxPackage {
		return nil, fmt.Errorf("it is larger than %d bytes", maxPackage)
	}
	// Names in a map are exact; those of struct fields would match in any case.
	var pkg map[string]json.RawMessage
	if err := json.Unmarshal(bytes.TrimPrefix(b, []byte("\ufeff")), &pkg); err != nil {
		return nil, err
	}
	values := []json.RawMessage{pkg["main"], pkg["bin"]}
	var bin map[string]json.RawMessage
	if json.Unmarshal(pkg["bin"], &bin) == nil { // otherwise it is the only program
		values = append(values, slices.Collect(maps.Values(bin))...)
	}
	if len(bin) > maxPrograms {
		return nil, fmt.Errorf("it names %d programs; the limit is %d", len(bin), maxPrograms)
	}
	var programs []string
	for _, value := range values {
		var name string
		if json.Unmarshal(value, &name) == nil { // other values name no program
			programs = append(programs, name)
		}
	}
	return programs, nil
}
