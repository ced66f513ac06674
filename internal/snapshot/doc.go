// Package snapshot keeps the snapshots of boxes on disk: a record for every box,
// living or hibernated, and those that users keep. It knows who holds a record,
// how much disk they take and when they are too old; what a snapshot consists of
// is the engine's business.
package snapshot
