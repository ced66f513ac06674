//go:build linux

// Command probe is the conformance suite's other program: as a guest's first
// process ("probe agent PART") it plays agents that are simple, broken or hostile;
// run inside a guest ("probe PART") it looks around and tries what must not work.
//
// It prints one finding per line and exits with code 0 if it could look at all.
package main

import (
	"fmt"
	"os"
	"strconv"
)

func main() {
	args := os.Args[1:]
	parts := inside
	if len(args) > 0 && args[0] == "agent" {
		parts, args = agents, args[1:]
	}
	if len(args) == 0 || parts[args[0]] == nil {
		fmt.Fprintf(os.Stderr, "probe: no such part: %q\n", args)
		os.Exit(2)
	}
	if err := parts[args[0]](args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

// number returns argument i, which must be a number.
func number(args []string, i int) int {
	if i < len(args) {
		if n, err := strconv.Atoi(args[i]); err == nil {
			return n
		}
	}
	fmt.Fprintf(os.Stderr, "probe: argument %d of %q is not a number\n", i, args)
	os.Exit(2)
	return 0
}
