// Command glovebox-guest is the agent that runs inside a guest. Only engines start it.
package main

import (
	"os"

	"github.com/glovebox-dev/glovebox/internal/guest/agent"
)

func main() { os.Exit(agent.Main()) }
