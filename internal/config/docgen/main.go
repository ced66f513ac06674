// Command docgen writes docs/configuration.md to the file that its argument names.
package main

import (
	"fmt"
	"os"

	"github.com/glovebox-dev/glovebox/internal/config"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: docgen FILE")
		os.Exit(2)
	}
	if err := os.WriteFile(os.Args[1], []byte(config.Markdown()), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
