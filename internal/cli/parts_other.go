//go:build !(linux && (amd64 || arm64))

package cli

// Parts does nothing here: the isolation is not linked in.
func Parts() {}

// noNamespaces knows of none here.
func noNamespaces(error) (cause, fix string, ok bool) { return "", "", false }
