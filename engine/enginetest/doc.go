// Package enginetest is the conformance suite of the engine contract: an engine
// is right if Run passes on it, and the contract means what Run checks.
//
// An engine's whole integration test is a file of this shape:
//
//	func TestConformance(t *testing.T) {
//		enginetest.Run(t, enginetest.Harness{
//			Open: func(t testing.TB) engine.Engine { ... },
//			Spec: func(t testing.TB) *engine.Spec { ... },
//			Held: enginetest.Host{Dirs: []string{stateDir}}.Held,
//		})
//	}
//
// Each test is a sentence of the contract. Around every one of them the suite
// compares what guests hold on the host: a test that passes but leaves a process,
// a mount, a cgroup, a file, a descriptor or a goroutine behind fails.
//
// Tests skip by what the engine says of itself (Info), never by its name. What an
// engine cannot pass yet is listed in Harness.Known with the reason; an entry that
// has become wrong fails.
//
// The suite builds a program, package probe, that plays broken and hostile agents
// and looks around inside guests, so that it needs little of the guest's own file
// system: /bin/sh, cat, env, sleep. GLOVEBOX_TEST_PROBE names a built one where
// there is no Go to build it with.
package enginetest
