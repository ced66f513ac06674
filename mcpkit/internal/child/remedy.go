package child

import (
	"path/filepath"
	"slices"
	"strings"
)

// brokenCache are texts of npx, of the shell and of Node.js that name a part of a package
// that is missing.
var brokenCache = []string{"not found", "ERR_MODULE_NOT_FOUND", "MODULE_NOT_FOUND", "Cannot find module", "ENOTEMPTY", "ENOENT"}

// remedyFor returns the remedy for the exit of a program that wrote words to standard
// error; "" if none is known.
func remedyFor(argv []string, words string) string {
	name := strings.TrimSuffix(filepath.Base(argv[0]), ".cmd")
	npx := name == "npx" || name == "npm" && len(argv) > 1 && (argv[1] == "exec" || argv[1] == "x")
	if npx && slices.ContainsFunc(brokenCache, func(text string) bool { return strings.Contains(words, text) }) {
		return `if an earlier start was interrupted, npx's cache may be incomplete; delete it by typing: rm -rf "$(npm config get cache)/_npx"`
	}
	return ""
}
