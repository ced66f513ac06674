// Package template keeps machines with a started interpreter and its libraries
// imported as snapshots, addressed by what went into them, so that a new box is a
// restore instead of a boot.
//
//	t, ok := store.Find(want)                   // cheap; a template that fits exactly
//	t, err := store.Build(ctx, want, progress)  // finds or builds: a second or two
//	m, err := store.Restore(ctx, t, id)         // a machine of its own
//
// On disk a template is a directory named by its key: the record of what went
// in, the engine's snapshot, and a file that tells when it was last used. It is
// renamed into place when a machine restored from it has run, so that what has
// the name is whole. Processes that share a directory keep out of each other's
// way with locks that end with their holder.
package template
