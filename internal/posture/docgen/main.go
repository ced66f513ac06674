// Command docgen writes the table of promises into docs/threat-model.md.
package main

import (
	"log"
	"os"

	"github.com/glovebox-dev/glovebox/internal/posture"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: docgen FILE")
	}
	old, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	text, err := posture.Document(string(old))
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(os.Args[1], []byte(text), 0o644); err != nil {
		log.Fatal(err)
	}
}
