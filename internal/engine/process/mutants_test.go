package process_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/enginetest"
	"github.com/glovebox-dev/glovebox/internal/guest/embed/embedtest"
	"github.com/glovebox-dev/glovebox/internal/proctest"
)

// mutant is an engine that is wrong in one way, and the tests of the suite that
// must notice.
type mutant struct {
	name   string
	caught []string // by all of them
	wrong  func(e engine.Engine) engine.Engine
	known  map[string]string // as in enginetest.Harness
}

const (
	// mutantEnv names the mutant that TestMutant runs.
	mutantEnv = "GLOVEBOX_TEST_MUTANT"
	// containedEnv is set when something kills what the mutant leaves.
	containedEnv = "GLOVEBOX_TEST_CONTAINED"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(mutantEnv) == "":
		os.Exit(proctest.Main(m))
	case os.Getenv(containedEnv) == "":
		os.Exit(proctest.Contain(containedEnv + "=1"))
	}
	os.Exit(m.Run())
}

// TestMutant runs the suite on a mutant, for TestSuite_CatchesEveryMutant.
func TestMutant(t *testing.T) {
	name := os.Getenv(mutantEnv)
	if name == "" {
		t.Skip("run by TestSuite_CatchesEveryMutant")
	}
	for _, m := range mutants {
		if m.name == name {
			h := harness(t, m.wrong)
			h.Timeout = 3 * time.Second // those that hang are to fail soon
			h.Many = 4
			h.Known = m.known
			enginetest.Run(t, h)
			return
		}
	}
	t.Fatalf("no mutant %q", name)
}

// TestSuite_CatchesEveryMutant checks that the tests written for each mutant catch it.
// Each mutant runs in a process of its own, since mutants leave things behind.
func TestSuite_CatchesEveryMutant(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	probe, agent := enginetest.Probe(t), embedtest.Program(t).Path
	// Those that run as another user must reach it.
	for dir := filepath.Dir(probe); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		os.Chmod(dir, 0o755)
	}
	for _, m := range mutants {
		if len(m.caught) == 0 {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			var groups, names []string
			for _, test := range m.caught {
				group, name, _ := strings.Cut(test, "/")
				groups, names = append(groups, group), append(names, name)
			}
			// A mutant that only slows something down may pass on a busy machine: it
			// survives only if it passes repeatedly.
			for attempt := 1; ; attempt++ {
				survived := survives(t, self, m, groups, names, "GLOVEBOX_TEST_PROBE="+probe, "GLOVEBOX_TEST_GUEST="+agent)
				if survived == "" {
					return
				}
				if attempt == 3 {
					t.Fatal(survived)
				}
			}
		})
	}
}

// survives runs the tests that should catch the mutant, and says so if one of
// them does not.
func survives(t *testing.T, self string, m mutant, groups, names []string, env ...string) string {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, "-test.v", "-test.run",
		fmt.Sprintf("^TestMutant$/^(%s)$/^(%s)$", strings.Join(groups, "|"), strings.Join(names, "|")))
	cmd.Env = append(append(os.Environ(), mutantEnv+"="+m.name), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // so that it can kill what the mutant leaves
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	for _, test := range m.caught {
		if !strings.Contains(string(out), "--- FAIL: TestMutant/"+test+" ") {
			return fmt.Sprintf("mutant %q survives %s: %v\n%s", m.name, test, err, out)
		}
	}
	return ""
}

// TestSuite_KnownFailures checks how the suite reports tests that are known to fail.
func TestSuite_KnownFailures(t *testing.T) {
	const test = "contract/guest-has-its-id"
	for _, c := range []struct {
		mutant string
		fails  bool
		says   string
	}{
		{"known failure", false, "known failure: for a reason"},
		{"known failure that passes", true, "passes, but Known says it cannot"},
		{"known failure of no test", true, `Known lists "no/test", which is no test`},
	} {
		cmd := exec.Command(os.Args[0], "-test.v", "-test.run", "^TestMutant$/^contract$/^guest-has-its-id$")
		cmd.Env = append(os.Environ(), mutantEnv+"="+c.mutant)
		out, err := cmd.CombinedOutput()
		if (err != nil) != c.fails || !strings.Contains(string(out), c.says) {
			t.Errorf("%s: %s: %v, want failure %t and %q\n%s", c.mutant, test, err, c.fails, c.says, out)
		}
	}
}

// badEngine replaces methods of an engine and keeps its abilities.
type badEngine struct {
	engine.Engine
	info   func() engine.Info
	create func(ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error)
	close  func() error
}

func (b *badEngine) Unwrap() engine.Engine { return b.Engine }

func (b *badEngine) Info() engine.Info {
	if b.info != nil {
		return b.info()
	}
	return b.Engine.Info()
}

func (b *badEngine) Create(ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
	if b.create != nil {
		return b.create(ctx, id, spec)
	}
	return b.Engine.Create(ctx, id, spec)
}

func (b *badEngine) Close() error {
	if b.close != nil {
		return b.close()
	}
	return b.Engine.Close()
}

// badGuest replaces methods of a guest.
type badGuest struct {
	engine.Guest
	id      func() string
	dial    func(ctx context.Context) (io.ReadWriteCloser, error)
	wait    func(ctx context.Context) (engine.Exit, error)
	destroy func(ctx context.Context) error
}

func (b *badGuest) ID() string {
	if b.id != nil {
		return b.id()
	}
	return b.Guest.ID()
}

func (b *badGuest) Dial(ctx context.Context) (io.ReadWriteCloser, error) {
	if b.dial != nil {
		return b.dial(ctx)
	}
	return b.Guest.Dial(ctx)
}

func (b *badGuest) Wait(ctx context.Context) (engine.Exit, error) {
	if b.wait != nil {
		return b.wait(ctx)
	}
	return b.Guest.Wait(ctx)
}

func (b *badGuest) Destroy(ctx context.Context) error {
	if b.destroy != nil {
		return b.destroy(ctx)
	}
	return b.Guest.Destroy(ctx)
}

// badPauser replaces the ability to pause.
type badPauser struct {
	*badEngine
	pause, resume func(ctx context.Context, id string) error
}

func (b *badPauser) Pause(ctx context.Context, id string) error  { return b.pause(ctx, id) }
func (b *badPauser) Resume(ctx context.Context, id string) error { return b.resume(ctx, id) }

// badStatser replaces the ability to measure.
type badStatser struct {
	engine.Engine
	stats func(ctx context.Context, id string) (engine.Stats, error)
}

func (b *badStatser) Unwrap() engine.Engine { return b.Engine }
func (b *badStatser) Stats(ctx context.Context, id string) (engine.Stats, error) {
	return b.stats(ctx, id)
}

// badRecoverer replaces methods of a Recoverer.
type badRecoverer struct {
	engine.Recoverer
	engine.Engine
	list         func(ctx context.Context) ([]engine.GuestState, error)
	detach       func(ctx context.Context, id string) error
	recoverGuest func(ctx context.Context, state engine.GuestState) (engine.Guest, error)
}

func (b *badRecoverer) Unwrap() engine.Engine { return b.Engine }
func (b *badRecoverer) List(ctx context.Context) ([]engine.GuestState, error) {
	if b.list != nil {
		return b.list(ctx)
	}
	return b.Recoverer.List(ctx)
}
func (b *badRecoverer) Detach(ctx context.Context, id string) error {
	if b.detach != nil {
		return b.detach(ctx, id)
	}
	return b.Recoverer.Detach(ctx, id)
}
func (b *badRecoverer) Recover(ctx context.Context, state engine.GuestState) (engine.Guest, error) {
	if b.recoverGuest != nil {
		return b.recoverGuest(ctx, state)
	}
	return b.Recoverer.Recover(ctx, state)
}

// info returns a mutation of what an engine says of itself.
func info(f func(i *engine.Info)) func(engine.Engine) engine.Engine {
	return func(e engine.Engine) engine.Engine {
		return &badEngine{Engine: e, info: func() engine.Info {
			i := e.Info()
			f(&i)
			return i
		}}
	}
}

type createFunc func(ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error)

// create returns a mutation of Create, which is called good.
func create(f func(good createFunc, ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error)) func(engine.Engine) engine.Engine {
	return func(e engine.Engine) engine.Engine {
		return &badEngine{Engine: e, create: func(ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
			return f(e.Create, ctx, id, spec)
		}}
	}
}

// guests returns a mutation of all guests.
func guests(f func(g engine.Guest) engine.Guest) func(engine.Engine) engine.Engine {
	return create(func(good createFunc, ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
		g, err := good(ctx, id, spec)
		if err != nil {
			return nil, err
		}
		return f(g), nil
	})
}

// streams returns a mutation of all streams.
func streams(f func(conn io.ReadWriteCloser) io.ReadWriteCloser) func(engine.Engine) engine.Engine {
	return guests(func(g engine.Guest) engine.Guest {
		return &badGuest{Guest: g, dial: func(ctx context.Context) (io.ReadWriteCloser, error) {
			conn, err := g.Dial(ctx)
			if err != nil {
				return nil, err
			}
			return f(conn), nil
		}}
	})
}
