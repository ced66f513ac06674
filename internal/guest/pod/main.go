// Package pod is the helper in a box that an engine reaches only by executing programs in
// it: a Pod of a cluster or a microVM. It runs the agent in namespaces of its own, without
// the network of the Pod or virtual machine, and keeps it running while connections to it
// come and go. The engine connects by executing the helper again in the box ("link").
//
// In a Pod the helper is the first process of the container ("run"). In a microVM it is
// started in the background ("start"), and another execution tells when the agent has
// ended, and how ("wait").
//
// The package imports the standard library, golang.org/x/sys/unix, internal/guest/podlink
// and internal/engine/stdiolink only: every box contains it.
package pod

import (
	"fmt"
	"os"
)

// Name is the base name of argv[0] that selects the helper in a program that links this
// package.
const Name = "glovebox-pod"

// usage names the parts of the helper.
const usage = `usage: glovebox-pod run HOSTNAME PROGRAM NAME [ARG]...
       glovebox-pod start HOSTNAME PROGRAM NAME [ARG]...
       glovebox-pod wait
       glovebox-pod link
       glovebox-pod install SOURCE TARGET`

// Main runs a part of the helper and returns the exit code.
func Main(args []string) int {
	parts := map[string]struct {
		min int
		run func(args []string) (int, error)
	}{
		"run":     {3, run},
		"start":   {3, start},
		"wait":    {0, wait},
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
