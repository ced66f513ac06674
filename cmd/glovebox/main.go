// Command glovebox gives an AI agent an isolated computer of its own, through MCP. The
// same executable runs the parts of the isolation, selected by argv[0]. Everything else
// is in internal/cli.
package main

import (
	"context"
	"os"

	"github.com/glovebox-dev/glovebox/internal/cli"
)

func main() {
	cli.Parts() // does not return in processes of the isolation
	os.Exit(cli.Main(context.Background(), os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}
