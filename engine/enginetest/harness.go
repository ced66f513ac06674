package enginetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/guest/embed/embedtest"
)

// Harness connects the suite to an engine.
type Harness struct {
	// Open returns a new engine, which the suite closes. All engines of a Run share
	// their state. Required. The suite calls it for each group of tests, and in tests
	// that need a second engine.
	Open func(t testing.TB) engine.Engine
	// Spec returns a small valid spec. Required. All calls within one Run return
	// the same Root. If it has no agent, the suite adds Glovebox's, built from
	// source.
	Spec func(t testing.TB) *engine.Spec
	// Program turns a static executable on this machine into a program for the
	// engine's guests, for example by storing it in an image. Default: the file
	// itself.
	Program func(t testing.TB, path string, args []string) engine.Program
	// User returns the user of code in guest id of e. Default: engine.UserID with the
	// home /home/user.
	User func(e engine.Engine, id string) User
	// Held lists the resources that guests hold now, in any order. Entries that begin
	// with "goroutine" may lag behind. Required; see Host.
	Held func(t testing.TB) []string
	// SmallDir returns a directory on a file system of less than 16 MiB. Default:
	// tests that need one are skipped.
	SmallDir func(t testing.TB) string
	// Timeout bounds each single call of the engine. Default: 10 s.
	Timeout time.Duration
	// Many bounds the guests that run concurrently. Default: 12.
	Many int
	// Known gives the reason for each test "group/name" that the engine does not pass.
	Known map[string]string
}

// User is the user of code in a guest.
type User struct {
	Home     string   // the working directory of commands
	UID, GID int      // UID -1: those of the agent
	Env      []string // KEY=value
	Scratch  []string // further directories for files
}

// test checks one sentence of the contract.
type test struct {
	name string
	run  func(t *tester)
}

// group is a list of tests that share an engine.
type group struct {
	name  string
	tests []test
}

// groups returns the suite.
func groups() []group {
	return []group{
		{"contract", contractTests()},
		{"lifecycle", lifecycleTests()},
		{"stream", streamTests()},
		{"exec", execTests()},
		{"calls", callTests()},
		{"isolation", isolationTests()},
		{"volumes", volumesTests()},
		{"limits", limitsTests()},
		{"pause", pauseTests()},
		{"snapshot", snapshotTests()},
		{"recover", recoverTests()},
		{"stats", statsTests()},
		{"hostile", hostileTests()},
	}
}

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	h = h.withDefaults(t)
	probe := Probe(t)
	names := make(map[string]bool)
	for _, g := range groups() {
		for _, tc := range g.tests {
			names[g.name+"/"+tc.name] = true
		}
		t.Run(g.name, func(t *testing.T) { h.runGroup(t, g, probe) })
	}
	for name := range h.Known {
		if !names[name] {
			t.Errorf("Known lists %q, which is no test", name)
		}
	}
}

func (h Harness) withDefaults(t testing.TB) Harness {
	if h.Program == nil {
		h.Program = func(_ testing.TB, path string, args []string) engine.Program {
			return engine.Program{Path: path, Args: args}
		}
	}
	if inner := h.Spec; inner(t).Agent.Path == "" {
		agent := Agent(t)
		h.Spec = func(t testing.TB) *engine.Spec {
			s := inner(t)
			s.Agent = h.Program(t, agent.Path, slices.Clone(agent.Args))
			return s
		}
	}
	if h.Timeout == 0 {
		h.Timeout = 10 * time.Second
	}
	if h.Many == 0 {
		h.Many = 12
	}
	if h.User == nil {
		h.User = func(engine.Engine, string) User {
			return User{Home: "/home/user", UID: engine.UserID, GID: engine.UserID}
		}
	}
	return h
}

// runGroup runs the tests of g on one engine and checks that closing the engine
// frees its resources.
func (h Harness) runGroup(t *testing.T, g group, probe string) {
	warmUp(t)
	before := h.settled(t)
	e := h.Open(t)
	defer func() {
		newTester(t, h, e, probe).inTime("close engine", h.Timeout, func() {
			if err := e.Close(); err != nil {
				t.Errorf("close engine: %v", err)
			}
		})
		h.checkHeld(t, before)
	}()
	warm := false
	for _, tc := range g.tests {
		t.Run(tc.name, func(t *testing.T) {
			// Resources that all guests of a root share, prepared once, are no leak. A
			// group without a selected test does not need them.
			if !warm {
				warm = true
				h.warm(t, e, probe)
			}
			h.runTest(t, g.name+"/"+tc.name, tc, e, probe)
		})
	}
}

// warm boots a guest of each kind.
func (h Harness) warm(t testing.TB, e engine.Engine, probe string) {
	w := newTester(t, h, e, probe)
	defer w.cleanUp()
	w.create(w.spec())
	w.create(w.probeSpec("echo"))
}

// runTest runs one test. A test in Known has to fail.
func (h Harness) runTest(t *testing.T, name string, tc test, e engine.Engine, probe string) {
	reason, known := h.Known[name]
	if !known {
		h.checked(newTester(t, h, e, probe), tc)
		return
	}
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() { // a failing test ends its goroutine
		defer close(done)
		h.checked(newTester(r, h, e, probe), tc)
	}()
	<-done
	switch {
	case r.skipped:
		t.Skip(r.log.String())
	case r.failed:
		t.Skipf("known failure: %s\n%s", reason, &r.log)
	default:
		t.Errorf("passes, but Known says it cannot: %s", reason)
	}
}

// checked runs tc and compares the resources held before and after.
func (h Harness) checked(t *tester, tc test) {
	before := h.settled(t)
	defer func() {
		if !t.Skipped() {
			h.checkHeld(t, before)
		}
	}()
	defer t.cleanUp()
	tc.run(t)
}

// settled returns the resources held once two samples are equal.
func (h Harness) settled(t testing.TB) []string {
	deadline := time.Now().Add(h.Timeout)
	held := h.sample(t)
	for time.Now().Before(deadline) {
		time.Sleep(sampleEvery)
		next := h.sample(t)
		if slices.Equal(held, next) {
			break
		}
		held = next
	}
	return held
}

// sampleEvery is the interval between two samples.
const sampleEvery = 10 * time.Millisecond

func (h Harness) sample(t testing.TB) []string {
	held := h.Held(t)
	slices.Sort(held)
	return held
}

// checkHeld fails the test if the resources held differ from before. Those that are
// freed asynchronously have half the timeout.
func (h Harness) checkHeld(t testing.TB, before []string) {
	t.Helper()
	deadline := time.Now().Add(h.Timeout / 2)
	for {
		more, less := difference(before, h.sample(t))
		if len(more)+len(less) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("leak: held on the host after the test and not before:\n\t%s\nbefore and not after:\n\t%s",
				strings.Join(more, "\n\t"), strings.Join(less, "\n\t"))
			return
		}
		time.Sleep(sampleEvery)
	}
}

// difference compares sorted lists, which may contain duplicates.
func difference(before, after []string) (more, less []string) {
	for len(before) > 0 || len(after) > 0 {
		switch {
		case len(before) == 0 || len(after) > 0 && after[0] < before[0]:
			more = append(more, after[0])
			after = after[1:]
		case len(after) == 0 || before[0] < after[0]:
			less = append(less, before[0])
			before = before[1:]
		default:
			before, after = before[1:], after[1:]
		}
	}
	return more, less
}

// warmUp makes the Go runtime and this package allocate what they allocate once.
func warmUp(t testing.TB) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	w.Close()
	if err := exec.Command("true").Run(); err != nil {
		t.Log(err) // not needed later
	}
}

// Agent builds the agent of Glovebox from this module's source and returns a copy
// that the test may use until its end. GLOVEBOX_TEST_GUEST names a built agent, for
// machines without Go.
func Agent(t testing.TB) engine.Program {
	t.Helper()
	agent := embedtest.Program(t)
	// Another test process may replace the file.
	program, err := os.ReadFile(agent.Path)
	if err != nil {
		t.Fatalf("read agent: %v", err)
	}
	agent.Path = filepath.Join(t.TempDir(), "agent")
	if err := os.WriteFile(agent.Path, program, 0o755); err != nil {
		t.Fatalf("copy agent: %v", err)
	}
	return agent
}

// Probe builds the probe program and returns its path. Run calls it; call it
// yourself to run the suite in several processes with one probe.
func Probe(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("GLOVEBOX_TEST_PROBE"); path != "" {
		return path
	}
	path := filepath.Join(t.TempDir(), "probe")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path,
		"github.com/glovebox-dev/glovebox/engine/enginetest/probe")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build probe: %v\n%s", err, out)
	}
	return path
}
