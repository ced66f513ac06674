//go:build !race

package embedtest

var buildFlags, cgo = []string{"-trimpath", "-ldflags", "-s -w"}, "CGO_ENABLED=0"
