//go:build linux && (amd64 || arm64)

package template

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/image"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/engine/gvisor"
	"github.com/glovebox-dev/glovebox/internal/guest/embed"
	"github.com/glovebox-dev/glovebox/internal/guest/embed/embedtest"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/polltest"
	"github.com/glovebox-dev/glovebox/internal/proctest"
)

func TestMain(m *testing.M) {
	gvisor.Main()
	if err := gvisor.Enter(false); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if os.Getenv(builderEnv) != "" {
		os.Exit(builder())
	}
	code := proctest.Main(m)
	code = max(code, cleanUp())
	os.Exit(code)
}

// lab is shared by tests: an engine, a maker of machines, and a store of templates.
type lab struct {
	dir   string // removed at the end
	maker *machine.Maker
	files map[string][]string
	store *Store
}

var theLab struct {
	mu  sync.Mutex
	lab *lab
}

// open returns the lab.
func open(tb testing.TB) *lab {
	tb.Helper()
	theLab.mu.Lock()
	defer theLab.mu.Unlock()
	if theLab.lab != nil {
		return theLab.lab
	}
	dir, err := os.MkdirTemp("", "templates-")
	if err != nil {
		tb.Fatal(err)
	}
	// A copy, because another test process may replace the file meanwhile.
	program, err := os.ReadFile(embedtest.Program(tb).Path)
	if err != nil {
		tb.Fatal(err)
	}
	agent := filepath.Join(dir, "agent")
	if err := os.WriteFile(agent, program, 0o755); err != nil {
		tb.Fatal(err)
	}
	l, err := newLab(dir, agent)
	if err != nil {
		os.RemoveAll(dir)
		tb.Fatal(err)
	}
	theLab.lab = l
	return l
}

// newLab opens an engine in dir. The files of the agent and of the image are
// shared with other labs in dir, and so are the templates.
func newLab(dir, agent string) (*lab, error) {
	e, err := gvisor.Open(context.Background(), gvisor.Config{StateDir: dir})
	if err != nil {
		return nil, err
	}
	img, err := image.Toolchain(context.Background(), image.ToolchainConfig{StateDir: dir})
	if err != nil {
		return nil, err
	}
	l := &lab{dir: dir, files: make(map[string][]string)}
	interpreters := make(map[string]string)
	for language, i := range img.Interpreters {
		interpreters[language] = i.Path
		l.files[language] = i.Files
	}
	l.maker = &machine.Maker{
		Engine: e, Agent: engine.Program{Path: agent, Args: []string{embed.Name}}, Root: img.Root,
		Interpreters: interpreters, Home: machine.Home, UID: engine.UserID, GID: engine.UserID,
	}
	l.store, err = Open(Config{Dir: filepath.Join(dir, "templates"), Maker: l.maker, Files: l.files})
	return l, err
}

func (l *lab) close() error {
	err := l.store.Close()
	if errEngine := l.maker.Engine.Close(); err == nil {
		err = errEngine
	}
	return err
}

// cleanUp closes the lab and returns 1 if it left something behind.
func cleanUp() int {
	l := theLab.lab
	if l == nil {
		return 0
	}
	defer os.RemoveAll(l.dir)
	if err := l.close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	entries, err := os.ReadDir(l.store.cfg.Dir)
	for _, e := range entries {
		if !isKey(e.Name()) {
			fmt.Fprintln(os.Stderr, "left in the store:", e.Name(), err)
			return 1
		}
	}
	return 0
}

// another returns a store in a new directory.
func (l *lab) another(tb testing.TB, change func(*Config)) *Store {
	tb.Helper()
	cfg := Config{Dir: filepath.Join(tb.TempDir(), "store"), Maker: l.maker, Files: l.files, Log: slog.New(slog.NewTextHandler(tb.Output(), nil))}
	if change != nil {
		change(&cfg)
	}
	s, err := Open(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
		for _, e := range ls(tb, s.cfg.Dir) {
			if !isKey(e) {
				tb.Errorf("left in the store: %s", e)
			}
		}
	})
	return s
}

func ls(tb testing.TB, dir string) []string {
	tb.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		tb.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

var small = engine.Limits{CPUs: 1, MemoryMB: 512, DiskMB: 256, PIDs: 64}

// python is the spec of a Python without preloaded modules, which is built fastest.
func python() Spec {
	return Spec{Name: "python", Language: "python", Flavor: "small", Limits: small}
}

// pandas is the spec of a Python with pandas; it skips the test without pandas.
func pandas(tb testing.TB) Spec {
	tb.Helper()
	w := python()
	w.Preload = []string{"pandas", "no_such_module", "numpy", "matplotlib"}
	t := mustBuild(tb, open(tb).store, w)
	if slices.Contains(t.Missing, "pandas") {
		tb.Skip("the Python of this machine has no pandas")
	}
	return w
}

func mustBuild(tb testing.TB, s *Store, w Spec) Template {
	tb.Helper()
	t, err := s.Build(tb.Context(), w, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

var serial struct {
	sync.Mutex
	n int
}

// mustRestore returns a machine of a template, closed at the end of the test.
func mustRestore(tb testing.TB, s *Store, t Template) *machine.Machine {
	tb.Helper()
	serial.Lock()
	serial.n++
	id := fmt.Sprintf("box-%d", serial.n)
	serial.Unlock()
	m, err := s.Restore(tb.Context(), t, id)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := m.Close(context.Background()); err != nil {
			tb.Error(err)
		}
	})
	return m
}

// output keeps what code printed and the value of its last expression.
type output struct {
	text    strings.Builder
	value   string
	figures int
}

func (o *output) Output(_ protocol.Channel, p []byte) { o.text.Write(p) }
func (o *output) Display(d protocol.Display) {
	if d.Result {
		o.value = d.Data["text/plain"]
	}
	if d.Data["image/png"] != "" {
		o.figures++
	}
}

// run runs a cell and returns what it printed, and its value in a line.
func run(tb testing.TB, m *machine.Machine, language, code string) *output {
	tb.Helper()
	var out output
	res, err := m.Agent.Run(tb.Context(), protocol.Run{Kernel: language, Language: language, TimeoutMS: 60_000}, []byte(code), &out)
	if err != nil || !res.OK {
		tb.Fatalf("run %q: %v, %+v", code, err, res.Error)
	}
	if res.Fresh {
		tb.Errorf("run %q: the kernel was started for it", code)
	}
	return &out
}

// progress keeps lines.
type progress struct {
	mu    sync.Mutex
	lines []string
}

func (p *progress) tell(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines = append(p.lines, line)
}

func (p *progress) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// eventually waits until ok.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	polltest.Until(tb, 30*time.Second, what, ok)
}
