//go:build linux

package attack

import (
	"embed"
	"fmt"
	"slices"
	"strings"
)

// guestFiles are the scripts that run in boxes: lib.py and a file for each class.
// Each attack is a function without arguments.
//
//go:embed guest/*.py
var guestFiles embed.FS

// guestScript returns the program of a class, which runs the function that its
// first argument names.
func guestScript(class string) ([]byte, error) {
	lib, err := guestFiles.ReadFile("guest/lib.py")
	if err != nil {
		return nil, fmt.Errorf("read the library of scripts: %w", err)
	}
	own, err := guestFiles.ReadFile("guest/" + strings.ReplaceAll(class, "-", "_") + ".py")
	if err != nil {
		return nil, fmt.Errorf("read the scripts of class %q: %w", class, err)
	}
	return slices.Concat(lib, own, []byte("\nmain()\n")), nil
}
