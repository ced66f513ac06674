//go:build linux

// Command docgen writes docs/attack.md to the file that its argument names.
package main

import (
	"fmt"
	"os"

	"github.com/glovebox-dev/glovebox/internal/attack"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: docgen FILE")
		os.Exit(2)
	}
	if err := os.WriteFile(os.Args[1], []byte(attack.Markdown()), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
