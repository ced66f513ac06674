// Command glovebox-pod is the first process of a box that is a Pod: see
// internal/guest/pod.
package main

import (
	"os"

	"github.com/glovebox-dev/glovebox/internal/guest/pod"
)

func main() { os.Exit(pod.Main(os.Args[1:])) }
