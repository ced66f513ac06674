// Command docgen writes the documentation of the metrics.
package main

import (
	"log"
	"os"

	"github.com/glovebox-dev/glovebox/internal/server/metrics"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: docgen FILE")
	}
	if err := os.WriteFile(os.Args[1], []byte(metrics.Markdown()), 0o644); err != nil {
		log.Fatal(err)
	}
}
