// Package process is the reference engine: it runs a guest's agent as a plain
// child process and isolates nothing. It exists to test the layers above and to
// validate the conformance suite. It is never linked into a shipped program.
//
// # Finding the processes of a guest
//
// Destroy must end all processes of a guest, including those that were orphaned,
// left their session or cleared their environment. The engine therefore marks the
// agent with a resource limit that Linux no longer uses (RLIMIT_LOCKS), set to a
// random number. Children inherit it over fork and exec, programs do not change
// it, and /proc shows it. This process becomes a subreaper, so that it can reap
// orphans of a guest.
//
// # Differences from other engines
//
// A guest sees the host: Root and Hostname are validated and otherwise ignored,
// volumes are not supported, and of the limits only memory is enforced, by a
// watcher. Each guest has a directory (Engine.Home), the home of its user, and
// one for temporary files (TMPDIR). Both are removed with it.
//
// Guests can be detached and recovered within this process only, because the
// pipes to the agent end with it.
package process
