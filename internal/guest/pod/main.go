// Package pod is the helper in a Pod that is a box: the first process of its container.
// It runs the agent in namespaces of its own, without the Pod's network, and keeps it
// running while connections to it come and go. The engine connects by executing the
// helper again in the container ("link"), through the cluster's API.
//
// The package imports the standard library, golang.org/x/sys/unix, internal/guest/podlink
// and internal/engine/stdiolink only: every box contains it.
package pod

import (
	"fmt"
	"os"
)

// usage names the parts of the helper.
const usage = `usage: glovebox-pod run HOSTNAME PROGRAM NAME [ARG]...
       glovebox-pod link
       glovebox-pod install SOURCE TARGET`

// Main runs a part of the helper and returns the exit code.
func Main(args []string) int {
	parts := map[string]struct {
		min int
		run func(args []string) (int, error)
	}{
		"run":     {3, run},
		"enter":   {3, enter}, // run starts it
		"link":    {0, link},
		"install": {2, install},
	}
	if len(args) == 0 || parts[args[0]].run == nil || len(args)-1 < parts[args[0]].min {
		fmt.Fprintln(os.Stderr, usage)
		return 2
	}
	code, err := parts[args[0]].run(args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "glovebox-pod: %s: %v\n", args[0], err)
		return max(code, 1)
	}
	return code
}
