//go:build !linux

package child

import "os/exec"

// asUser does nothing: there are no user namespaces.
func asUser(*exec.Cmd) bool { return false }

func noNamespace(error) bool { return false }
