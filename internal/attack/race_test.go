//go:build race

package attack

// unmeasured are attacks whose judges measure memory, which the race detector multiplies.
var unmeasured = []string{"codemode/huge-result"}
