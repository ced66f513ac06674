//go:build !linux

package child

// activityOf is not implemented here.
func activityOf(int) (activity, bool) { return activity{}, false }
