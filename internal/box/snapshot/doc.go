// Package snapshot stores the snapshots of boxes on disk: a record for every live or
// hibernated box, and those that users save. It manages leases, disk space and age; the
// content of a snapshot is the engine's.
//
// # The life of a record
//
// A new box: Create makes its record, leased and without data. The box is used: Update
// records it. It hibernates: Write lets the engine write its memory to a new directory,
// which replaces the earlier data, and Release ends the lease. The next call on the box
// may arrive at any process: Acquire leases the record, the box is restored from Dir,
// and Update records that it continues (Stale). The box ends: Remove.
//
// A snapshot that a user saves is a record of another class, made by Create, Write and
// Release. Any number of processes may Read it at once.
//
// A Box record whose data cannot be restored is set aside (Meta.Aside): the box
// continues in a new record, and the old one stays until it expires or its space is
// needed.
//
// The kernel releases the leases of a killed process. Its boxes with data can then be
// acquired, in the state of their last Write. Sweep removes the others, expired
// records, and records beyond the limits.
//
// # On disk
//
//	lock                     one byte of it is locked for each leased record, one by a
//	                         reservation of space and one by an eviction
//	records/ID/saved.json    describes the data; renaming it into place commits them
//	records/ID/meta.json     later changes of the metadata, not synced
//	records/ID/data-N/       the N-th data
//	trash/                   files being removed
//
// Where the two files disagree about the data, or about whether the box continued after
// them, saved.json wins; it is used alone if meta.json describes other data or was torn
// by a power failure. Files with the suffix .new are not in place yet.
//
// Any number of processes of one user may share a directory; no state is only in
// memory. Leases are open file description locks on one file, at an offset derived from
// the record's id. So a process can test for a lease without taking it, a lease needs
// no descriptor of its own, and no lock is lost when a record is renamed away.
//
// Where to look: store.go opens the store and its records, lease.go writes and publishes data,
// meta.go describes them, lock.go has the locks between processes, quiescent.go marks boxes that do
// nothing, space.go makes room, drop.go by dropping data of boxes in memory, scan.go and usage.go
// count, sweep.go and remove.go remove, netlimit.go has the limits of networks.
package snapshot
