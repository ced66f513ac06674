package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/guest/agent/kernel"
)

// standardDirs are searched for programs.
var standardDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// launcherDir holds programs that start the configured interpreters under their usual
// names, where nothing else does. It is first in PATH.
const launcherDir = "/opt/glovebox/bin"

// userPrograms is the directory below the home directory into which installers put
// programs of the user.
const userPrograms = ".local/bin"

// searchPath returns PATH for user code: commands find the interpreters of the kernels
// under their usual names, the programs of the user in own, and the programs installed
// beside the interpreters. It writes launchers
// to dir for names that lead elsewhere or nowhere, such as python on Debian; an empty
// dir means that nothing may be written.
func searchPath(interpreters map[string]string, dir, own string) (string, error) {
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
		// The pip beside an interpreter belongs to that directory's python3.
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
			return strings.Join(append([]string{own}, dirs...), ":"), err
		}
		return strings.Join(append([]string{dir, own}, dirs...), ":"), nil
	}
	return strings.Join(append([]string{own}, dirs...), ":"), nil
}

// find returns the first program of that name in dirs, or "".
func find(dirs []string, name string) string {
	for _, dir := range dirs {
		p := filepath.Join(dir, name)
		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return p
		}
	}
	return ""
}

// same reports whether a and b are the same interpreter. Python derives its environment
// from the directory of its path, so the directories must be equal.
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

// writeLaunchers writes a program for each command line. A symbolic link would not do:
// Python would look for its libraries beside it.
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
