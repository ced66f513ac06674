// Package switches takes the SDK's compatibility switches away. With them, whoever
// sets the environment changes what goes over the wire; one that is misspelt ends
// the program before main. Who serves with the SDK imports this package.
//
// The SDK reads them while packages are initialized, so that later is too late.
// Of all packages whose imports are initialized, Go begins with the first by path:
// this one imports less than the SDK and comes before it.
package switches

import "os"

func init() { _ = os.Unsetenv("MCPGODEBUG") }
