// Package gvisor isolates guests with gVisor, an application kernel in user
// space that is linked into this binary. It needs no hardware support, no
// daemon and no root.
//
// # Processes
//
// The same executable runs as several processes, selected by argv[0]: the server,
// and for each guest a sentry (the kernel, "runsc-sandbox") and, if the guest has
// volumes, one or two gofers (which open files for the sentry, "runsc-gofer"). Main,
// called first in main(), runs sentries and gofers and never returns from them. Without
// volumes a sentry requests only the root, which rootServer sends; if the root is an image,
// it requests nothing.
//
// The package starts these processes itself instead of going through
// runsc/container or the runsc command line, because those take the guest's
// standard streams from the process-wide os.Stdin and os.Stdout (which belong to
// the server), join cgroups with the whole process, and set the visible processors
// and memory of a guest only by cgroups, which an ordinary user lacks. The package
// uses the command line of runsc's internal commands "boot" and "gofer" and the
// control socket; both may change with the pinned version, which the tests detect.
//
// Upstream's sidecar programs are not needed: the sentry and the gofer are started
// as /proc/self/exe, so they are always of the same build as the server, even after
// an upgrade on disk. The other sidecars (metric server, checkpoint gofer, a
// prewarmer) are not used.
//
// # Namespaces
//
// Enter moves the server to a mount namespace of its own and, for an ordinary user,
// to a user namespace in which it is root. There it assembles root file systems from
// bind mounts that are invisible outside and end with the process. Enter also gives up
// the capabilities that the server does not need.
//
// Each sentry and gofer has namespaces of its own of every kind, a user namespace among
// them. Under root each sentry runs as a user of its own, which owns no files on the host:
// it opens only files that everybody may read. docs/threat-model.md has the whole table.
//
// # Snapshots
//
// A snapshot is the sentry's own checkpoint of its kernel: processes, memory, and
// the writable layer, which is memory for the sentry. A restoring sentry loads it
// instead of starting the agent. The sentry gets open files, never a path. The
// agent's streams, the connections to the gofer and the file behind the writable
// layer are those of the new guest; the gofer reopens files of the root by path. The
// host name, the wall clock, the boot id and the kernel's randomness are new in
// every restored guest.
//
// The guest stops while its state is encoded and its pages are copied. The pages of
// a small guest are copied to memory first and written to disk after it continues.
// On restore the guest runs before all of its pages are read.
//
// # Where to look
//
//   - The contract: engine.go and guest.go implement it. factory.go and probe.go are how the
//     program finds the engine, version.go has the pinned version, and unsupported.go takes the
//     place of all on other systems. state.go has the directory of a running engine.
//   - Confinement of the server: enter.go and capabilities.go.
//   - Processes: launch.go, spawn.go and boot.go start a sentry, from the OCI spec of spec.go,
//     and gofer.go a gofer. users.go gives each sentry a user. control.go speaks to it,
//     streams.go keeps the last errors that it and the agent print, and exhausted.go recognizes
//     the errors of a host that ran out of a resource.
//   - Inside a sentry or gofer: main.go is what they run. filters.go has the compiled system
//     call filter, and mappings.go bounds the mappings of programs. procs.go, scavenge.go and
//     sysmon.go tune the Go runtime. With oomscore.go the host's kernel ends guests first.
//   - File systems: rootfs.go, rootserver.go, images.go and volume.go. beneath.go opens paths
//     without leaving a root.
//   - Limits: limits.go, cgroups.go, cgroup.go and watch.go bound a guest. hostmem.go measures
//     its memory where no cgroup does, processors.go divides the processors, and disk.go the
//     disk.
//   - Snapshots: snapshot.go writes and restores them, with image.go and digest.go. checks.go
//     remembers verified files, and hostfiles.go has the host's files that a guest has open.
//   - Observation: stats.go measures, readproc.go reads /proc, and inspect.go shows processes to
//     posture.
package gvisor
