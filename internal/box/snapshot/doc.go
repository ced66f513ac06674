// Package snapshot keeps the snapshots of boxes on disk: a record for every box,
// living or hibernated, and those that users keep. It knows who holds a record,
// how much disk they take and when they are too old; what a snapshot consists of
// is the engine's business.
//
// # The life of a record
//
// A box is made: Create makes its record, held and without data. The box is used:
// Update notes it. It hibernates: Write has the engine put its memory into a new
// directory, which takes the place of the data before it, and Release gives the
// record up. The next call on the box may come to any process: Acquire takes the
// record, its Dir is restored from, and Update notes that the box goes on (Live).
// The box ends: Remove.
//
// A snapshot that a user keeps is a record of another class, made by Create, Write
// and Release; any number of processes may Read it at once.
//
// A Box record whose data cannot be restored is set aside (Meta.Aside): the box
// goes on in a record of its own, and the old one stays until it is too old or room
// is needed.
//
// A process that is killed holds nothing any more, because the kernel drops its
// locks. Its boxes with data are then there to be claimed, at the state of their
// last Write; Sweep removes the others, and what is too old or too much.
//
// # On disk
//
//	lock                     one byte of it is locked for each held record
//	records/ID/saved.json    describes the data; its rename into place commits them
//	records/ID/meta.json     what became of the record since, not waited for
//	records/ID/data-N/       the N-th data
//	trash/                   what is being removed
//
// saved.json counts where the two differ about the data and whether the box went on
// after them, and alone if meta.json is of other data or torn by a power cut. A name
// with .new is that of a file that will be written or is not yet in its place.
//
// Any number of processes of one user may use one directory at once; nothing about
// it is only in memory. Holds are open file description locks on one file, at an
// offset that the record's id gives. So whether a record is held can be asked
// without taking it, a hold takes no descriptor of its own, and there is no lock to
// lose when a record is renamed away.
package snapshot
