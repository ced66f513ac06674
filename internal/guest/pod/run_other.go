//go:build !linux

package pod

import "errors"

var errLinux = errors.New("boxes run on Linux")

func run([]string) (int, error)   { return 1, errLinux }
func start([]string) (int, error) { return 1, errLinux }
func wait([]string) (int, error)  { return 1, errLinux }
func enter([]string) (int, error) { return 1, errLinux }
