// Package attack is a corpus of attacks on boxes and on the server, with a judge
// that watches each attack from outside.
//
// An [Attack] names the promise that it tries to break. Most attacks run a script
// as user code in a fresh box (see guest); others speak to a server that the
// corpus starts, tamper with snapshots, or act as another user of the machine. A
// script reports every attempt that succeeded, but the judge does not depend on
// it. For each attack it checks that
//
//   - nothing planted on the host was read, written or connected to (bait.go),
//   - the host and a neighbouring box answer within a second (witness.go),
//   - the next command in the box works, or the box is reported dead with a
//     reason, and destroying it is quick (cell.go),
//   - nothing is left: processes, mounts, cgroups, files (leftover.go),
//   - attacks on memory stay within a bound of the host's memory (memory.go).
//
// Every attack is bounded and harmless if it succeeds, so that the tests can show
// that the judge notices: they run each class against an engine without isolation
// or against a weakened configuration.
package attack

//go:generate go run ./docgen ../../docs/attack.md
