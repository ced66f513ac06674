//go:build !race

package attack

// unmeasured are attacks whose judges cannot measure here: none without the race detector.
var unmeasured []string
