// Package process is the reference engine: it runs a guest's agent as a plain
// child process and isolates nothing. It exists to test the layers above and to
// prove the conformance suite, and is never linked into a shipped program.
//
// # Which processes belong to a guest
//
// A guest must end whole, whatever its processes have done to hide: orphaned
// themselves, left their session, cleared their environment. So the agent is
// marked with a resource limit that Linux no longer uses (RLIMIT_LOCKS), set to a
// random number: children inherit it over fork and exec, nobody changes it, and
// /proc shows it. This process becomes a subreaper, so that orphans of a guest
// stay below it, where they can be reaped.
//
// What a guest sees is the host: Root and Hostname are checked and otherwise
// ignored, volumes are not supported, and of the limits only memory is held, by a
// watcher. Each guest has a directory of its own (Engine.Home), which is meant to
// be the home of its user and goes away with it.
package process
