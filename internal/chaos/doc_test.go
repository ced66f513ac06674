// Package chaos drives the real box manager over the real engine while things fail:
// sentries are killed or stop, the disk fills, descriptors and cgroups run out, agents
// answer slowly or not at all. It holds tests only.
//
// Everything that happens is derived from a seed: operation n of a run with a seed is
// always the same one, on the same box, with the same fault. How the operations interleave
// is up to the machine.
//
// The invariants, checked throughout and after each round of operations:
//
//   - hang: no call takes longer than its own time-out and callGrace.
//   - lost: a box loses variables or files only with a report that names the reason.
//   - unexplained: nothing is lost and no call fails where no fault was near.
//   - neighbor: the boxes of the owner whom no fault is aimed at keep everything.
//   - leak: processes, mounts, cgroups, files, descriptors and goroutines are freed.
//
// TestInvariants_CanFail breaks the manager or the engine on purpose, once or more for each.
package chaos
