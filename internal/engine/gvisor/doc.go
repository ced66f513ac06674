// Package gvisor isolates guests with gVisor, an application kernel in user
// space that is linked into this binary. It needs no hardware support, no
// daemon and no root.
//
// # Processes
//
// The same executable plays several parts, told apart by argv[0]: the server,
// and per guest a sentry (the kernel, "runsc-sandbox") and, if volumes are shown
// to it, a gofer (which opens files for the sentry, "runsc-gofer"). Main, called
// first in main(), runs the latter two and never returns from them. Without
// volumes there is only the root for a sentry to ask for, which rootServer gives.
//
// The package starts these processes itself instead of going through
// runsc/container or the runsc command line, because those take the guest's
// standard streams from the process-wide os.Stdin and os.Stdout (which belong to
// the server), join cgroups with the whole process, and set the number of
// processors and the memory that a guest sees only where a cgroup says so, which
// an ordinary user does not have. What is used of runsc is the command line of
// its internal commands "boot" and "gofer" and the control socket; both may
// change with the pinned version, and the tests would tell.
//
// The sidecar programs that upstream wants beside the executable are not needed:
// the sentry and the gofer are started as /proc/self/exe, so that they are always
// of the same build as the server, even after an upgrade on disk. The others
// (metric server, checkpoint gofer, a prewarmer) are not used.
//
// # Namespaces
//
// Enter puts the server into a mount namespace of its own and, for an ordinary
// user, into a user namespace in which it is root. Therefore root file systems
// can be assembled from bind mounts that nobody else sees and that vanish with
// the process.
//
// # Snapshots
//
// A snapshot is what the sentry itself can write of its kernel, and what it takes
// in place of starting the agent: processes, memory, and the writable layer, which
// is memory to it. The sentry gets open files, never a path. The descriptors of
// the agent's streams, the connections to the gofer and the file behind the
// writable layer are those of the new guest; the gofer finds open files of the
// root again by their paths. The host name, the wall clock, the identity of the
// boot and what the kernel gives out as random are new in every restored guest.
//
// The guest stands still while its state is encoded and its pages are copied. The
// pages of a small guest are copied to memory, and from there to the disk when it
// runs again. On restore the guest runs before all of its pages are read.
package gvisor
