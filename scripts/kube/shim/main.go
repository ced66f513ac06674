// Command shim is gVisor's shim for containerd. It is a module of its own, because it
// depends on containerd.
package main

import "gvisor.dev/gvisor/shim/v1/cli"

func main() { cli.Main() }
