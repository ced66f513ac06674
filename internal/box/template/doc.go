// Package template stores snapshots of machines with a started interpreter and imported
// libraries, addressed by a hash of their inputs, so that a new box is restored instead
// of booted.
//
//	t, ok := store.Find(spec)                   // cheap; only an exact match
//	t, err := store.Build(ctx, spec, progress)  // finds or builds: a second or two
//	m, err := store.Restore(ctx, t, id)         // a new machine
//
// On disk a template is a directory named by its key. It contains a record of the
// inputs, the engine's snapshot, and a file whose time is that of the last restore. The
// directory is renamed into place once a machine restored from it has run, so that a
// named template is complete. Processes that share the store coordinate by file locks,
// which end with their owner.
package template
