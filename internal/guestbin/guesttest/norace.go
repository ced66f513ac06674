//go:build !race

package guesttest

var buildFlags, cgo = []string{"-trimpath", "-ldflags", "-s -w"}, "CGO_ENABLED=0"
