//go:build !linux

package child

// activityOf returns nothing: only Linux shows the activity of a process.
func activityOf(int) (activity, bool) { return activity{}, false }
