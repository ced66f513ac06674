// Command docgen writes the JSON schema of glovebox.toml.
package main

import (
	"log"
	"os"

	"github.com/glovebox-dev/glovebox/internal/recipe"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: docgen FILE")
	}
	b, err := recipe.Schema()
	if err == nil {
		err = os.WriteFile(os.Args[1], b, 0o644)
	}
	if err != nil {
		log.Fatal(err)
	}
}
