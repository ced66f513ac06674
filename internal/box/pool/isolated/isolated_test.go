//go:build linux && (amd64 || arm64) && !cgo

package isolated

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/image"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/box/pool"
	"github.com/glovebox-dev/glovebox/internal/box/template"
	"github.com/glovebox-dev/glovebox/internal/engine/gvisor"
	"github.com/glovebox-dev/glovebox/internal/guest/embed"
	"github.com/glovebox-dev/glovebox/internal/guest/embed/embedtest"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/polltest"
	"github.com/glovebox-dev/glovebox/internal/proctest"
)

// missing is the reason why there can be no guests here.
var missing error

func TestMain(m *testing.M) {
	gvisor.Main()
	missing = gvisor.Enter(false)
	os.Exit(proctest.Main(m))
}

var class = pool.Class{Interpreter: "python", Flavor: "small"}

// newPool returns a full pool of Python machines, configured as by a server.
func newPool(t testing.TB, cfg pool.Config) *pool.Pool {
	t.Helper()
	if missing != nil {
		t.Skip("guests cannot be isolated here:", missing)
	}
	dir := t.TempDir()
	e, err := gvisor.Open(t.Context(), gvisor.Config{StateDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if left := sentries(t); len(left) > 0 {
			t.Errorf("sentries that are left: %v", left)
		}
		if err := e.Close(); err != nil {
			t.Errorf("close engine: %v", err)
		}
	})
	img, err := image.Toolchain(t.Context(), image.ToolchainConfig{StateDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	python, ok := img.Interpreters["python"]
	if !ok {
		t.Skip("no Python on this machine")
	}
	// A copy, because another test process may replace the file meanwhile.
	program, err := os.ReadFile(embedtest.Program(t).Path)
	if err != nil {
		t.Fatal(err)
	}
	agent := engine.Program{Path: filepath.Join(dir, "agent"), Args: []string{embed.Name}}
	if err := os.WriteFile(agent.Path, program, 0o755); err != nil {
		t.Fatal(err)
	}
	store, err := template.Open(template.Config{
		Dir: filepath.Join(dir, "templates"), Files: map[string][]string{"python": {python.Path}},
		Maker: &machine.Maker{
			Engine: e, Agent: agent, Root: img.Root, Interpreters: map[string]string{"python": python.Path},
			Home: machine.Home, UID: engine.UserID, GID: engine.UserID,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Errorf("close templates: %v", err)
		}
	})
	var serial atomic.Int64
	cfg.Make = func(ctx context.Context, c pool.Class) (*machine.Machine, error) {
		tmpl, err := store.Build(ctx, template.Spec{
			Name: c.Interpreter, Language: "python", Flavor: c.Flavor,
			Limits: engine.Limits{CPUs: 1, MemoryMB: 512, DiskMB: 256, PIDs: 64},
		}, nil)
		if err != nil {
			return nil, err
		}
		m, err := store.Restore(ctx, tmpl, fmt.Sprintf("instance-%d", serial.Add(1)))
		if err != nil {
			return nil, err
		}
		return m, m.Prove(ctx, "python", time.Minute)
	}
	if testing.Verbose() {
		cfg.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	p := pool.New(cfg)
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Errorf("close pool: %v", err)
		}
	})
	p.Start([]pool.Class{class})
	full(t, p)
	return p
}

// full waits until the pool is full.
func full(t testing.TB, p *pool.Pool) {
	t.Helper()
	full := func() bool { s := p.Stats().Of(class); return s.Ready == s.Wanted }
	if !polltest.Soon(2*time.Minute, full) {
		t.Fatalf("the pool is not full: %+v", p.Stats().Of(class))
	}
}

func take(t testing.TB, p *pool.Pool) *machine.Machine {
	t.Helper()
	m := p.Take(t.Context(), class)
	if m == nil {
		t.Fatalf("Take: got none; %+v", p.Stats())
	}
	t.Cleanup(func() { m.Close(context.Background()) })
	return m
}

// sentries returns the process of each guest of this process, by the guest's id.
func sentries(t testing.TB) map[string]int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]int)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		cmdline, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline")) // empty: it has just ended
		args := strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
		stat, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if args[0] == "runsc-sandbox" && len(fields) > 1 && fields[1] == strconv.Itoa(os.Getpid()) {
			found[args[len(args)-1]] = pid
		}
	}
	return found
}

// record keeps what code prints.
type record struct{ strings.Builder }

func (r *record) Output(_ protocol.Channel, p []byte) { r.Write(p) }
func (r *record) Display(protocol.Display)            {}

func run(t testing.TB, m *machine.Machine, code string) string {
	t.Helper()
	var out record
	res, err := m.Agent.Run(t.Context(), protocol.Run{Kernel: "python", Language: "python", TimeoutMS: 60_000}, []byte(code), &out)
	if err != nil || !res.OK {
		t.Fatalf("run %.60q: %v, %+v, %s", code, err, res.Error, out.String())
	}
	if res.Fresh {
		t.Errorf("run %.60q: the kernel was started for it", code)
	}
	return out.String()
}

// look reports the visible state of a box without leaving a trace in it.
const look = `
def _look():
    import json, os, random, secrets, sys, uuid, builtins
    files = {}
    for top in ("/tmp", "/var/tmp", "/dev/shm", os.path.expanduser("~"), "/etc", "/run"):
        for folder, _, names in os.walk(top):
            for name in names:
                path = os.path.join(folder, name)
                files[path] = os.lstat(path).st_size
    procs = []
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            with open(f"/proc/{pid}/cmdline") as f:
                procs.append(f.read())
    print(json.dumps({
        "box": {
            "files": files, "processes": sorted(procs), "variables": sorted(globals()), "builtins": sorted(dir(builtins)),
            "environment": dict(os.environ), "directory": os.getcwd(), "path": sys.path, "umask": os.umask(0o22),
        },
        "own": {
            "random": random.random(), "uuid": str(uuid.uuid4()), "secret": secrets.token_hex(8),
        },
    }))
_look()
del _look
`

// spoil leaves traces in a box wherever user code can.
const spoil = `
import builtins, os, random, subprocess, sys
residue = "residue"
builtins.residue = residue
os.environ["RESIDUE"] = residue
sys.path.insert(0, "/tmp/residue")
for path in ("/tmp/residue.txt", "~/residue.txt", "~/.bashrc", "~/.config/residue", "/dev/shm/residue"):
    path = os.path.expanduser(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(residue)
os.chdir("/tmp")
os.umask(0)
random.seed(1)
subprocess.Popen(["sleep", "86399"], start_new_session=True)
`

// seen is what look prints.
type seen struct {
	Box map[string]any
	Own map[string]any
}

func lookAt(t *testing.T, m *machine.Machine) seen {
	t.Helper()
	var s seen
	if err := json.Unmarshal([]byte(run(t, m, look)), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestTake_MachinesShareNothing also checks that instances differ where they must.
func TestTake_MachinesShareNothing(t *testing.T) {
	p := newPool(t, pool.Config{Size: 2, Pause: true})
	first := take(t, p)
	clean := lookAt(t, first)
	run(t, first, spoil)
	if _, err := first.Agent.Exec(t.Context(), protocol.Exec{Shell: "echo residue >> ~/shell.txt; sleep 86398", Background: true}, nil, &record{}); err != nil {
		t.Fatal(err)
	}
	spoilt := lookAt(t, first)
	for what, before := range clean.Box {
		if reflect.DeepEqual(before, spoilt.Box[what]) {
			t.Errorf("the change to the first box is not visible in its %s: %v", what, before)
		}
	}

	all := []seen{clean}
	check := func(which string) {
		t.Helper()
		m := take(t, p)
		s := lookAt(t, m)
		for what, want := range clean.Box {
			if got := s.Box[what]; !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %s: got %v, want %v", which, what, got, want)
			}
		}
		for _, other := range all {
			for what, value := range s.Own {
				if reflect.DeepEqual(value, other.Own[what]) {
					t.Errorf("%s: %s is %v, as in another box", which, what, value)
				}
			}
		}
		all = append(all, s)
	}
	check("a box taken while the first one lives")
	full(t, p)
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("a box taken after the first one has ended")
	full(t, p)
	check("a box made after the first one has ended")
}

// TestFill_ReplacesKilledInstance kills the kernel of an instance while it waits.
func TestFill_ReplacesKilledInstance(t *testing.T) {
	for _, pause := range []bool{true, false} {
		t.Run(fmt.Sprintf("pause=%t", pause), func(t *testing.T) {
			p := newPool(t, pool.Config{Size: 2, Pause: pause})
			before := sentries(t)
			if got := slices.Sorted(maps.Keys(before)); !slices.Equal(got, []string{"instance-1", "instance-2"}) {
				t.Fatalf("sentries: got %v", before)
			}
			if err := syscall.Kill(before["instance-1"], syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			// At once, perhaps before the pool has heard of it.
			m := take(t, p)
			if got := strings.TrimSpace(run(t, m, "print(6*7)")); m.ID != "instance-2" || got != "42" {
				t.Errorf("Take: got %s, which prints %q", m.ID, got)
			}
			full(t, p)
			if s := p.Stats().Of(class); s.Lost != 1 || s.Made != 4 || s.HandedOut != 1 {
				t.Errorf("stats: got %+v", s)
			}
			if got := slices.Sorted(maps.Keys(sentries(t))); !slices.Equal(got, []string{"instance-2", "instance-3", "instance-4"}) {
				t.Errorf("sentries: got %v", got)
			}
		})
	}
}

// BenchmarkTake measures the handing out an instance that waits paused or running,
// and that with a first result, while the pool yields.
func BenchmarkTake(b *testing.B) {
	for _, pause := range []bool{true, false} {
		b.Run(fmt.Sprintf("pause=%t", pause), func(b *testing.B) {
			var busy sync.RWMutex // held while a box is wanted
			p := newPool(b, pool.Config{Size: 1, Pause: pause, Yield: func(context.Context) error {
				busy.RLock() // waits
				defer busy.RUnlock()
				return nil
			}})
			var takes, results []time.Duration
			measure := func() *machine.Machine {
				busy.Lock()
				defer busy.Unlock()
				begun := time.Now()
				m := p.Take(b.Context(), class)
				if m == nil {
					b.Fatalf("Take: got none; %+v", p.Stats())
				}
				takes = append(takes, time.Since(begun))
				run(b, m, "print(1)")
				results = append(results, time.Since(begun))
				return m
			}
			for b.Loop() {
				full(b, p)
				// A new machine has not settled; no caller takes it so soon.
				time.Sleep(100 * time.Millisecond)
				if err := measure().Close(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(0, "ns/op") // most of it is waiting
			for name, all := range map[string][]time.Duration{"take": takes, "result": results} {
				slices.Sort(all)
				b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, name+"-p50-ms")
				b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, name+"-p99-ms")
			}
		})
	}
}
