//go:build linux

package attack

import (
	"context"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/engine/process"
	"github.com/glovebox-dev/glovebox/internal/guest/embed/embedtest"
	"github.com/glovebox-dev/glovebox/internal/proctest"
)

func TestMain(m *testing.M) { os.Exit(proctest.Main(m)) }

// unisolated returns a configuration whose boxes are plain processes, through wrap if
// it is not nil.
func unisolated(t *testing.T, wrap func(engine.Engine) engine.Engine) Config {
	t.Helper()
	python, err := exec.LookPath("/usr/bin/python3")
	if err != nil {
		t.Skipf("no Python: %v", err)
	}
	dir := t.TempDir()
	home := filepath.Join(dir, "home")
	for _, d := range []string{home, filepath.Join(dir, "run")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// The user of boxes needs a way to these directories.
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			break // not ours
		}
	}
	if err := os.Chmod(home, 0o777); err != nil {
		t.Fatal(err)
	}
	opened, err := process.Open(process.Config{Dir: filepath.Join(dir, "guests")})
	if err != nil {
		t.Fatal(err)
	}
	var e engine.Engine = unlimited{opened}
	if wrap != nil {
		e = wrap(e)
	}
	t.Cleanup(func() { e.Close() })
	uid := -1
	if os.Geteuid() == 0 {
		uid = 65534
	}
	return Config{
		Maker: &machine.Maker{
			Engine: e, Agent: embedtest.Program(t), Root: engine.Root{Key: "host", Tree: &engine.Tree{Dir: "/"}},
			Interpreters: map[string]string{box.Python: python}, Home: home, UID: uid, GID: uid,
		},
		Dir: filepath.Join(dir, "run"), StateDir: dir, seconds: 40, extraMB: 1024,
		weaken: func(engine.Limits) engine.Limits { return engine.Limits{} },
	}
}

// unlimited is an engine that ignores limits.
type unlimited struct{ engine.Engine }

func (u unlimited) Unwrap() engine.Engine { return u.Engine }

func (u unlimited) Create(ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
	free := *spec
	free.Limits = engine.Limits{}
	return u.Engine.Create(ctx, id, &free)
}

// run runs one attack and returns its result.
func run(t *testing.T, cfg Config, id string) Result {
	t.Helper()
	attacks, err := Select(All(), []string{id})
	if err != nil {
		t.Fatal(err)
	}
	report, err := Run(t.Context(), cfg, attacks)
	if err != nil || len(report.Results) != 1 {
		t.Fatalf("run %s: %v, %d results", id, err, len(report.Results))
	}
	return report.Results[0]
}

// expectBroken fails the test unless the judge noticed the attack.
func expectBroken(t *testing.T, r Result, want string) {
	t.Helper()
	if r.Outcome != Broken || !strings.Contains(strings.Join(r.Broken, "\n"), want) {
		t.Errorf("%s: got %s %q %q (%d MiB), want broken with %q", r.ID, r.Outcome, r.Broken, r.Why, r.HostMemoryMB, want)
	}
}

// Attacks succeed against an engine that isolates nothing, and the judge notices.
func TestControl_WithoutIsolation(t *testing.T) {
	for id, want := range map[string]string{
		"host-data/secret-file":      "contains the secret",
		"host-data/environment":      "contains the secret",
		"host-data/signals":          "the host's process",
		"host-data/loopback":         "reached a listener",
		"host-data/unix-sockets":     "reached a listener",
		"host-data/kernel-identity":  "is that of the host",
		"host-data/home-directories": "of the host is visible",
		"host-data/write-everywhere": "the attack created",
		"escape/docker-socket":       "reached a listener",
		"escape/magic-links":         "contains the secret",
		"escape/parent-directories":  "host's files",
		"userns/all-capabilities":    "the attack created",
		"userns/processes":           "processes in a box for",
		"userns/disk":                "were written in a box of",
		"kernel-memory/anonymous":    "of the host's memory",
		"sentry/system-call-filter":  "has no system call filter",
		"sentry/no-new-privileges":   "can gain privileges",
		"sentry/namespaces":          "has the server's",
		"kernel-memory/threads":      "threads in a box for",
	} {
		if id == "escape/docker-socket" && hostRoot() {
			continue // it needs the rights of root, which no attack gets here
		}
		t.Run(strings.ReplaceAll(id, "/", "-"), func(t *testing.T) {
			r := run(t, unisolated(t, nil), id)
			// Memory that other programs free meanwhile hides what the attack takes.
			for n := 1; n < 3 && r.Outcome == Held && strings.HasPrefix(id, "kernel-memory/"); n++ {
				r = run(t, unisolated(t, nil), id)
			}
			expectBroken(t, r, want)
		})
	}
}

// slow is an engine whose guests are paused and destroyed too slowly.
type slow struct{ engine.Engine }

func (s slow) Unwrap() engine.Engine { return s.Engine }

func (s slow) Pause(ctx context.Context, id string) error {
	time.Sleep(pauseTime + time.Second)
	p, _ := engine.As[engine.Pauser](s.Engine)
	return p.Pause(ctx, id)
}

func (s slow) Resume(ctx context.Context, id string) error {
	p, _ := engine.As[engine.Pauser](s.Engine)
	return p.Resume(ctx, id)
}

func TestControl_SlowEngine(t *testing.T) {
	r := run(t, unisolated(t, func(e engine.Engine) engine.Engine { return slow{e} }), "storm/zombies")
	expectBroken(t, r, "to pause the box took")
}

// leaky is an engine with a process of each box that holds a file of the host.
type leaky struct {
	engine.Engine
	file *os.File
}

func (l leaky) Unwrap() engine.Engine { return l.Engine }

func (l leaky) Create(ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
	g, err := l.Engine.Create(ctx, id, spec)
	if err != nil {
		return nil, err
	}
	holder := exec.Command("/bin/sleep", "60")
	holder.Env, holder.ExtraFiles = []string{"BOX=" + id}, []*os.File{l.file}
	if err := holder.Start(); err != nil {
		return nil, errors.Join(err, g.Destroy(ctx))
	}
	return leakyGuest{g, holder}, nil
}

type leakyGuest struct {
	engine.Guest
	holder *exec.Cmd
}

func (g leakyGuest) Destroy(ctx context.Context) error {
	g.holder.Process.Kill()
	g.holder.Wait() // again after the first call
	return g.Guest.Destroy(ctx)
}

// A process of a box that can write a file of the host is noticed.
func TestControl_OpenFile(t *testing.T) {
	file, err := os.OpenFile(filepath.Join(t.TempDir(), "writable"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r := run(t, unisolated(t, func(e engine.Engine) engine.Engine { return leaky{e, file} }), "sentry/descriptors")
	expectBroken(t, r, "can write a file of the host")
}

// trusting is an engine that restores any snapshot.
type trusting struct{ engine.Engine }

func (t trusting) Unwrap() engine.Engine { return t.Engine }

func (t trusting) Snapshot(_ context.Context, _, dir string) (string, error) {
	return "", errors.Join(os.WriteFile(filepath.Join(dir, "manifest.json"), []byte("{}"), 0o600),
		os.WriteFile(filepath.Join(dir, "pages"), make([]byte, 4096), 0o600))
}

func (t trusting) Restore(ctx context.Context, id string, spec *engine.Spec, _ engine.Snapshot) (engine.Guest, error) {
	return t.Create(ctx, id, spec)
}

func (t trusting) InspectSnapshot(context.Context, engine.Snapshot) (engine.SnapshotInfo, error) {
	return engine.SnapshotInfo{}, nil
}

func (t trusting) CheckSnapshot(context.Context, *engine.Spec, engine.Snapshot) error { return nil }

func (t trusting) RemoveSnapshot(context.Context, engine.Snapshot) error { return nil }

func TestControl_TrustingEngine(t *testing.T) {
	for _, id := range []string{"snapshot/truncated", "snapshot/no-manifest", "snapshot/symlink"} {
		expectBroken(t, run(t, unisolated(t, func(e engine.Engine) engine.Engine { return trusting{e} }), id), "the snapshot was restored")
	}
}

// A server that answers everything to everybody.
func TestControl_OpenServer(t *testing.T) {
	naive := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("Mcp-Session-Id", "1")
		io.Copy(io.Discard, r.Body) // an error shows in the answer
	}))
	defer naive.Close()
	for id, want := range map[string]string{
		"http/dns-rebinding":  "is answered with 200",
		"http/foreign-origin": "is answered with 200",
		"http/simple-request": "is answered with 200",
		"http/preflight":      "the page is permitted",
		"http/no-token":       "is answered with 200",
		"http/session-theft":  "is answered with 200",
		"http/path-tricks":    "is answered",
		"http/slow-headers":   "connections with unfinished headers were closed",
	} {
		cfg := unisolated(t, nil)
		cfg.target = naive.Listener.Addr().String()
		expectBroken(t, run(t, cfg, id), want)
	}
}

// The memory that a server takes for a hostile agent ("agent/garbage" and others) is
// noticed.
func TestControl_GreedyServer(t *testing.T) {
	var kept []byte
	r := judged(t, func(_ context.Context, tr *trial) error {
		return tr.keepsMemory(func() error {
			kept = make([]byte, 128<<20)
			for i := range kept {
				kept[i] = 1
			}
			return nil
		})
	})
	expectBroken(t, r, "the server took")
	runtime.KeepAlive(kept)
}

// judgedAlone names the tests of the judges of classes whose attacks cannot run without
// isolation: those of class agent write to the streams of process 1.
var judgedAlone = map[string]string{"agent": "TestControl_GreedyServer"}

// Every class has a control in a test of this package: an attack that a test runs.
func TestControl_EveryClass(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	controlled, tests := make(map[string]bool), make(map[string]bool)
	for _, f := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), f, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				tests[n.Name.Name] = true
			case *ast.BasicLit:
				text, _ := strconv.Unquote(n.Value) // a number is no id
				if class, _, ok := strings.Cut(text, "/"); ok {
					controlled[class] = true
				}
			}
			return true
		})
	}
	for _, name := range classNames(All()) {
		if !controlled[name] && !tests[judgedAlone[name]] {
			t.Errorf("no test shows that the judge notices a successful attack of class %s", name)
		}
	}
}

// judged runs f as an attack of its own.
func judged(t *testing.T, f func(ctx context.Context, t *trial) error) Result {
	t.Helper()
	report, err := Run(t.Context(), unisolated(t, nil), []Attack{{Class: "test", Name: "test", run: f}})
	if err != nil || len(report.Results) != 1 {
		t.Fatalf("got %v, %d results", err, len(report.Results))
	}
	return report.Results[0]
}

func TestJudge_NoticesProcessesLeftBehind(t *testing.T) {
	var left *exec.Cmd
	r := judged(t, func(ctx context.Context, tr *trial) error {
		c, err := tr.boot(ctx, shape{})
		if err != nil {
			return err
		}
		tr.held(1)
		left = exec.Command("/bin/sleep", "60")
		left.Env = append(os.Environ(), "BOX="+c.m.ID)
		return left.Start()
	})
	if left != nil && left.Process != nil {
		left.Process.Kill()
		left.Wait()
	}
	expectBroken(t, r, "left behind: process")
}

func TestJudge_NoticesFilesLeftBehind(t *testing.T) {
	r := judged(t, func(ctx context.Context, tr *trial) error {
		c, err := tr.boot(ctx, shape{})
		if err != nil {
			return err
		}
		tr.held(1)
		return os.WriteFile(filepath.Join(tr.cfg.StateDir, c.m.ID+".sock"), nil, 0o600)
	})
	expectBroken(t, r, "left behind: path")
}

func TestJudge_NoticesASilentBox(t *testing.T) {
	r := judged(t, func(ctx context.Context, tr *trial) error {
		c, err := tr.boot(ctx, shape{})
		if err != nil {
			return err
		}
		tr.held(1)
		return c.m.Pause(ctx)
	})
	expectBroken(t, r, "neither answers")
}

func TestJudge_NoticesASilentNeighbour(t *testing.T) {
	r := judged(t, func(ctx context.Context, tr *trial) error {
		tr.held(1)
		if err := tr.witness.neighbour.Pause(ctx); err != nil {
			return err
		}
		time.Sleep((muchTooLate + 1) * tr.allowed)
		return tr.witness.neighbour.Resume(ctx)
	})
	expectBroken(t, r, "a neighbour answers after")
}

func TestJudge_AttackThatTriesNothingFails(t *testing.T) {
	r := judged(t, func(context.Context, *trial) error { return nil })
	if r.Outcome != Failed || r.Why != "the attack attempted nothing" {
		t.Errorf("got %s %q", r.Outcome, r.Why)
	}
}

func TestJudge_SkippedIsNoFailure(t *testing.T) {
	r := judged(t, func(context.Context, *trial) error { return skip("no %s here", "root") })
	if r.Outcome != Skipped || r.Why != "no root here" {
		t.Errorf("got %s %q", r.Outcome, r.Why)
	}
}

func TestRun_ReportsOrderAndCounts(t *testing.T) {
	ok := func(_ context.Context, t *trial) error { t.held(2); return nil }
	bad := func(_ context.Context, t *trial) error { t.broke("\x1b[31mopen"); return nil }
	attacks := []Attack{{Class: "a", Name: "alone", Alone: true, run: ok}, {Class: "a", Name: "bad", run: bad}, {Class: "b", Name: "ok", run: ok}}
	report, err := Run(t.Context(), unisolated(t, nil), attacks)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, r := range report.Results {
		ids = append(ids, r.ID)
	}
	if want := []string{"a/alone", "a/bad", "b/ok"}; !slices.Equal(ids, want) {
		t.Errorf("got order %v, want %v", ids, want)
	}
	if report.OK || report.Counts[Broken] != 1 || report.Counts[Held] != 2 || len(report.Left) != 0 {
		t.Errorf("got %+v", report)
	}
	var table strings.Builder
	if err := report.Table(&table); err != nil || !strings.Contains(table.String(), "broken") || strings.Contains(table.String(), "\x1b") || !strings.Contains(table.String(), "NOT SAFE") {
		t.Errorf("got %v, table:\n%s", err, table.String())
	}
}

// An attack that was interrupted says nothing: it is not in the report, which says that attacks
// are missing, and not that something is unsafe.
func TestRun_Interrupted(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	ok := func(_ context.Context, t *trial) error { t.held(1); return nil }
	cut := func(ctx context.Context, t *trial) error {
		cancel(errors.New("stopped by hand"))
		<-ctx.Done()
		t.check(false, "what it asked has no answer")
		return context.Cause(ctx)
	}
	attacks := []Attack{{Class: "a", Name: "first", run: ok}, {Class: "a", Name: "cut", Alone: true, run: cut}, {Class: "a", Name: "never", Alone: true, run: ok}}
	report, err := Run(ctx, unisolated(t, nil), attacks)
	if err == nil || !strings.Contains(err.Error(), "stopped by hand") {
		t.Errorf("got the error %v, want the cause", err)
	}
	if report.OK || !report.Cut || report.Selected != 3 || len(report.Results) != 1 || report.Results[0].ID != "a/first" || report.Counts[Failed]+report.Counts[Broken] != 0 {
		t.Errorf("got %+v, want the first attack only", report)
	}
	var table strings.Builder
	if err := report.Table(&table); err != nil || !strings.Contains(table.String(), "INTERRUPTED: 2 of 3 attacks did not run to their end.") || strings.Contains(table.String(), "NOT SAFE") {
		t.Errorf("got %v, table:\n%s", err, table.String())
	}
}

func TestAttack_JSON(t *testing.T) {
	b, err := json.Marshal([]Attack{{Class: "a", Name: "b", Claim: "c"}})
	if want := `[{"id":"a/b","class":"a","name":"b","claim":"c"}]`; err != nil || string(b) != want {
		t.Errorf("got %s, %v, want %s", b, err, want)
	}
}
