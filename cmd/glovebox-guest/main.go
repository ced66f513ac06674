// Command glovebox-guest is the agent that runs inside a guest. It is not
// called by people.
package main

import (
	"os"

	"github.com/glovebox-dev/glovebox/internal/guest/agent"
)

func main() { os.Exit(agent.Main()) }
