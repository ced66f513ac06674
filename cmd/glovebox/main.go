// Command glovebox gives an AI agent an isolated computer of its own, reached
// through MCP. The same executable plays the parts of the isolation, told apart
// by argv[0]; everything else is in internal/cli.
package main

import (
	"context"
	"os"

	"github.com/glovebox-dev/glovebox/internal/cli"
)

func main() {
	cli.Parts() // does not return in a process that plays another part
	os.Exit(cli.Main(context.Background(), os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}
