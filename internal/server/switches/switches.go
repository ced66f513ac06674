// Package switches disables the SDK's compatibility switches: an environment variable
// that changes the protocol, and ends the program before main if it is misspelt. Every
// program that serves with the SDK imports this package.
//
// The SDK reads the variable while packages are initialized. Go initializes packages
// whose imports are ready in the order of their paths; this package imports less than
// the SDK and sorts before it.
package switches

import "os"

func init() { _ = os.Unsetenv("MCPGODEBUG") }
