// Command glovebox-guest is the agent that runs inside a guest, and under another name the
// helper that keeps it running in a microVM. Only engines start it.
package main

import (
	"os"
	"path/filepath"

	"github.com/glovebox-dev/glovebox/internal/guest/agent"
	"github.com/glovebox-dev/glovebox/internal/guest/pod"
)

func main() {
	if filepath.Base(os.Args[0]) == pod.Name {
		os.Exit(pod.Main(os.Args[1:]))
	}
	os.Exit(agent.Main())
}
