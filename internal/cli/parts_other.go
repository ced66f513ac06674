//go:build !(linux && (amd64 || arm64))

package cli

import "errors"

// Parts does nothing here: the isolation is not linked in.
func Parts() {}

// leaveTemplates is never needed here: there are no templates.
func leaveTemplates() error { return errors.ErrUnsupported }

// mountScratch mounts nothing here.
func mountScratch(string) error { return errors.ErrUnsupported }

// noNamespaces knows of none here.
func noNamespaces(error) (cause, fix string, ok bool) { return "", "", false }
