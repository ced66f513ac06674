package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/guest/agent/kernel"
)

// standardDirs are where programs are looked for.
var standardDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// launcherDir has programs that start the chosen interpreters under their usual
// names, where nothing else does. It is the first on PATH.
const launcherDir = "/opt/glovebox/bin"

// searchPath returns PATH for user code: commands find the interpreters that code
// runs in, under their usual names and with the programs that are installed beside
// them. It writes launchers to dir where names lead elsewhere or nowhere, as python
// does on Debian; an empty dir means that nothing may be written.
func searchPath(interpreters map[string]string, dir string) (string, error) {
	python, node := interpreters[kernel.Python], interpreters[kernel.JavaScript]
	var dirs []string
	for _, file := range []string{python, node} {
		if d := filepath.Dir(file); file != "" && !slices.Contains(append(dirs, standardDirs...), d) {
			dirs = append(dirs, d)
		}
	}
	dirs = append(dirs, standardDirs...)
	missing := make(map[string][]string) // name → command line
	if python != "" {
		for _, name := range []string{"python", "python3"} {
			if !same(find(dirs, name), python) {
				missing[name] = []string{python}
			}
		}
		// The pip beside an interpreter is of the one that is called python3 there.
		_, other := missing["python3"]
		for _, name := range []string{"pip", "pip3"} {
			if found := find(dirs, name); other || found == "" || filepath.Dir(found) != filepath.Dir(python) {
				missing[name] = []string{python, "-m", "pip"}
			}
		}
	}
	if node != "" {
		if !same(find(dirs, "node"), node) {
			missing["node"] = []string{node}
		}
		for _, name := range []string{"npm", "npx"} {
			beside := filepath.Join(filepath.Dir(node), name)
			if found := find(dirs, name); found != beside && find([]string{filepath.Dir(node)}, name) != "" {
				missing[name] = []string{beside}
			}
		}
	}
	if dir != "" && len(missing) > 0 {
		if err := writeLaunchers(dir, missing); err != nil {
			return strings.Join(dirs, ":"), err
		}
		dirs = append([]string{dir}, dirs...)
	}
	return strings.Join(dirs, ":"), nil
}

// find returns the first program of the given name in dirs, or "".
func find(dirs []string, name string) string {
	for _, dir := range dirs {
		p := filepath.Join(dir, name)
		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return p
		}
	}
	return ""
}

// same reports whether a and b are one interpreter. Which environment Python works
// in depends on the directory that it is called in, so that has to be the same.
func same(a, b string) bool {
	if a == b {
		return true
	}
	if a == "" || filepath.Dir(a) != filepath.Dir(b) {
		return false
	}
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

// writeLaunchers writes a program for each command line. It is no link: Python
// would look for its libraries beside that.
func writeLaunchers(dir string, commands map[string][]string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, argv := range commands {
		quoted := make([]string, len(argv))
		for i, arg := range argv {
			quoted[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
		text := fmt.Sprintf("#!/bin/sh\nexec %s \"$@\"\n", strings.Join(quoted, " "))
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			return err
		}
	}
	return nil
}
