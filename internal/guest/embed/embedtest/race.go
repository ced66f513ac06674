//go:build race

package embedtest

// buildFlags make the agent look for races where the test does.
var buildFlags, cgo = []string{"-race"}, "CGO_ENABLED=1"
