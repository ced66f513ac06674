// Package enginetest is the conformance suite of the engine contract: an engine is
// correct if Run passes.
//
// The integration test of an engine has this form:
//
//	func TestConformance(t *testing.T) {
//		enginetest.Run(t, enginetest.Harness{
//			Open: func(t testing.TB) engine.Engine { ... },
//			Spec: func(t testing.TB) *engine.Spec { ... },
//			Held: enginetest.Host{Dirs: []string{stateDir}}.Held,
//		})
//	}
//
// Each test checks one sentence of the contract. The suite compares the resources
// that guests hold before and after each test: a test that leaves a process, a
// mount, a cgroup, a file, a descriptor or a goroutine behind fails.
//
// Tests skip by the engine's abilities and Info, never by its name. Harness.Known
// lists the tests that an engine does not pass yet, with the reason; an outdated
// entry fails.
//
// The suite builds two programs from this module's source: the agent (see Agent),
// and package probe, which acts as a broken or hostile agent and examines guests
// from inside. Guests therefore need few programs of their own: /bin/sh, cat, env,
// sleep. GLOVEBOX_TEST_GUEST and GLOVEBOX_TEST_PROBE name built programs, for
// machines without Go.
package enginetest
