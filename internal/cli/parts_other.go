//go:build !(linux && (amd64 || arm64))

package cli

import "errors"

// Parts does nothing: no engine is linked in.
func Parts() {}

// finishTemplatesInBackground fails: without an engine there are no templates.
func finishTemplatesInBackground() error { return errors.ErrUnsupported }

// mountScratch fails.
func mountScratch(string) error { return errors.ErrUnsupported }
