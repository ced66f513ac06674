//go:build linux && (amd64 || arm64)

package template

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/engine/process"
)

func TestBuild(t *testing.T) {
	l := open(t)
	s := l.another(t, nil)
	w := python()
	w.Preload = []string{"json", "no_such_module", "json"}
	if _, ok := s.Find(w); ok {
		t.Fatal("found before it was built")
	}
	var p progress
	made, err := s.Build(t.Context(), w, p.tell)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(made.Missing) != "[no_such_module]" || fmt.Sprint(made.Spec.Preload) != "[json no_such_module]" || made.Bytes < 1<<20 || time.Since(made.Made) > time.Hour {
		t.Errorf("got %+v", made)
	}
	if want := `^booting
importing json, no_such_module
no_such_module not installed, skipped
writing
verifying \d+ MiB
done in \d+\.\d s$`; !regexp.MustCompile(want).MatchString(p.String()) {
		t.Errorf("got progress\n%s", &p)
	}
	w.Preload = []string{"no_such_module", "json"} // the order does not matter
	if found, ok := s.Find(w); !ok || fmt.Sprint(found) != fmt.Sprint(made) {
		t.Errorf("found %+v, %v", found, ok)
	}
	if again := mustBuild(t, s, w); !again.Made.Equal(made.Made) {
		t.Error("built again")
	}

	m := mustRestore(t, s, made)
	const code = "import sys; 'json' in sys.modules, sorted(n for n in globals() if n[0] != '_'), hasattr(__builtins__, '_'), sys._getframe().f_code.co_filename"
	if got := run(t, m, "python", code).value; got != "(True, ['sys'], False, '<cell 1>')" {
		t.Errorf("got %s", got)
	}

	list, err := s.List()
	if err != nil || len(list) != 1 || list[0].Key != made.Key || list[0].Stale != "" || list[0].Used.Before(made.Made.Add(-time.Second)) {
		t.Errorf("list: %+v, %v", list, err)
	}
}

// TestRestore_MachinesDiffer checks that two machines of one template have different
// identities and randomness.
func TestRestore_MachinesDiffer(t *testing.T) {
	const (
		pythonCode = `
import random, uuid, os, secrets, tempfile, sys
found = [random.random(), uuid.uuid4(), os.urandom(8), secrets.token_hex(), tempfile.mktemp(), __import__('time').time()]
if 'numpy' in sys.modules:
    import numpy
    found += [numpy.random.random(), numpy.random.default_rng().random(), numpy.random.randint(1 << 30)]
for f in found: print(f)`
		nodeCode = `
const c = require('crypto');
for (const f of [Math.random(), c.randomUUID(), crypto.getRandomValues(new Uint8Array(8)).join(), c.randomInt(2 ** 47)]) console.log(f);`
	)
	l := open(t)
	wants := []Spec{pandas(t)}
	if l.maker.Interpreters["javascript"] != "" {
		wants = append(wants, Spec{Name: "node", Language: "javascript", Flavor: "small", Limits: small})
	}
	for _, w := range wants {
		t.Run(w.Name, func(t *testing.T) {
			made := mustBuild(t, l.store, w)
			code := map[string]string{"python": pythonCode, "node": nodeCode}[w.Name]
			seen := make(map[string]bool)
			for range 2 {
				m := mustRestore(t, l.store, made)
				// As the pool does before it counts a machine.
				if err := m.Prove(t.Context(), w.Language, time.Minute); err != nil {
					t.Fatal(err)
				}
				text := run(t, m, w.Language, code).text.String()
				if n := strings.Count(text, "\n"); n < 4 {
					t.Fatalf("printed %q", text)
				}
				for line := range strings.Lines(text) {
					if seen[line] {
						t.Errorf("both draw %q:\n%s", line, text)
					}
					seen[line] = true
				}
			}
		})
	}
}

// TestRestore_Hostname checks that every machine, booted or restored, resolves its own
// hostname.
func TestRestore_Hostname(t *testing.T) {
	const code = `
import socket, subprocess
with socket.create_server((socket.gethostname(), 0)) as server:
    socket.create_connection((socket.gethostname(), server.getsockname()[1])).close()
socket.gethostname(), socket.gethostbyname('localhost'), socket.getfqdn(), subprocess.getoutput('hostname; cat /etc/hostname')`
	const want = `('glovebox', '127.0.0.1', 'glovebox', 'glovebox\nglovebox')`
	l := open(t)
	made := mustBuild(t, l.store, python())
	booted, err := l.maker.Boot(t.Context(), "names-itself", small)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { booted.Close(context.WithoutCancel(t.Context())) })
	if err := booted.Prove(t.Context(), "python", time.Minute); err != nil {
		t.Fatal(err)
	}
	for which, m := range map[string]*machine.Machine{"booted": booted, "restored": mustRestore(t, l.store, made), "restored again": mustRestore(t, l.store, made)} {
		if got := run(t, m, "python", code); got.value != want {
			t.Errorf("%s: got %s %+v, want %s", which, got.value, got, want)
		}
	}
}

// TestBuild_PreloadsPandas checks that preloaded modules are loaded, and add no names
// to the user's.
func TestBuild_PreloadsPandas(t *testing.T) {
	w := pandas(t)
	l := open(t)
	made := mustBuild(t, l.store, w)
	m := mustRestore(t, l.store, made)
	got := run(t, m, "python", "import sys; 'pandas' in sys.modules, [n for n in globals() if n[0] != '_'], __builtins__.__dict__.get('_')")
	if got.value != "(True, ['sys'], None)" || got.text.Len() > 0 {
		t.Errorf("got %s, %q", got.value, got.text.String())
	}
	if got := run(t, m, "python", "import pandas as pd, time; pd.DataFrame({'a': [1, 2]}).a.sum(), abs(time.time() - "+fmt.Sprint(time.Now().Unix())+") < 60").value; got != "(3, True)" && got != "(np.int64(3), True)" {
		t.Errorf("got %s", got)
	}
	if slices.Contains(made.Missing, "matplotlib") {
		return
	}
	// Looking for fonts takes seconds where there are many.
	if got := run(t, m, "python", "'matplotlib.font_manager' in sys.modules, 'matplotlib.pyplot' in sys.modules").value; got != "(True, False)" {
		t.Errorf("fonts, pyplot: got %s", got)
	}
	if got := run(t, m, "python", "pd.DataFrame({'a': [1, 2]}).plot();"); got.figures != 1 {
		t.Errorf("%d figures", got.figures)
	}
}

func TestBuild_InvalidSpec(t *testing.T) {
	l := open(t)
	s := l.another(t, nil)
	w := python()
	w.Language = "cobol"
	if _, err := s.Build(t.Context(), w, nil); !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "build template python (small): ") {
		t.Errorf("got %v", err)
	}
	for _, module := range []string{"", "a b", "a\nb", "../x", "\x00", strings.Repeat("a", 200)} {
		w := python()
		w.Preload = []string{module}
		if _, err := s.Build(t.Context(), w, nil); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%q: got %v", module, err)
		}
	}
	e, err := process.Open(process.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	s = l.another(t, func(cfg *Config) {
		maker := *l.maker
		maker.Engine = e
		cfg.Maker = &maker
	})
	if _, err := s.Build(t.Context(), python(), nil); !errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("an engine without snapshots: %v", err)
	}
}

// TestRestore_DamagedTemplates damages a template in many ways. It is rejected and rebuilt.
func TestRestore_DamagedTemplates(t *testing.T) {
	s := open(t).another(t, nil)
	w := python()
	for what, spoil := range map[string]func(dir string) error{
		"a bit":          func(dir string) error { return flip(filepath.Join(dir, imageName, "pages.img")) },
		"an end":         func(dir string) error { return os.Truncate(filepath.Join(dir, imageName, "pages.img"), 4096) },
		"no manifest":    func(dir string) error { return os.Remove(filepath.Join(dir, imageName, "manifest.json")) },
		"no image":       func(dir string) error { return os.RemoveAll(filepath.Join(dir, imageName)) },
		"another engine": func(dir string) error { return flip(filepath.Join(dir, imageName, "manifest.json")) },
	} {
		made := mustBuild(t, s, w)
		if err := spoil(s.path(made.Key)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Restore(t.Context(), made, "damaged"); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%s: got %v", what, err)
		}
		if _, ok := s.Find(w); ok || len(ls(t, s.cfg.Dir)) != 0 {
			t.Errorf("%s: it is still there: %q", what, ls(t, s.cfg.Dir))
		}
		if _, err := s.Restore(t.Context(), made, "damaged"); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: again: got %v", what, err)
		}
	}

	// A template without a record does not count, and does not prevent a build.
	made := mustBuild(t, s, w)
	for what, record := range map[string]string{"empty": "", "other": `{"inputs": {"format": 1}}`} {
		if err := os.WriteFile(s.path(made.Key, recordName), []byte(record), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, ok := s.Find(w); ok {
			t.Errorf("%s record: found", what)
		}
		if list, err := s.List(); err != nil || len(list) != 1 || list[0].Stale == "" {
			t.Errorf("%s record: listed as %+v, %v", what, list, err)
		}
	}
	again := mustBuild(t, s, w)
	if again.Key != made.Key || again.Made.Equal(made.Made) {
		t.Errorf("got %+v after %+v", again, made)
	}
	m := mustRestore(t, s, again)
	if got := run(t, m, "python", "6 * 7").value; got != "42" {
		t.Errorf("got %s", got)
	}
}

// flip changes a bit in the middle of a file.
func flip(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, info.Size()/2); err != nil {
		return err
	}
	b[0] ^= 1
	_, err = f.WriteAt(b, info.Size()/2)
	return err
}

// TestBuild_FailureLeavesNothing makes builds fail.
func TestBuild_FailureLeavesNothing(t *testing.T) {
	l := open(t)
	now := time.Now()
	maker := *l.maker
	maker.Interpreters = map[string]string{"python": "/bin/false"}
	s := l.another(t, func(cfg *Config) {
		cfg.Maker, cfg.Now = &maker, func() time.Time { return now }
	})
	var p progress
	_, err := s.Build(t.Context(), python(), p.tell)
	if err == nil || !strings.Contains(err.Error(), "build template python (small): start the python interpreter: ") || len(ls(t, s.cfg.Dir)) > 0 {
		t.Errorf("got %v, left %q", err, ls(t, s.cfg.Dir))
	}
	booted := strings.Count(p.String(), "booting")
	if _, err := s.Build(t.Context(), python(), p.tell); err == nil || !strings.Contains(err.Error(), "retried after 1m0s") || strings.Count(p.String(), "booting") != booted {
		t.Errorf("soon after: %v\n%s", err, &p)
	}
	now = now.Add(2 * retryAfter)
	if _, err := s.Build(t.Context(), python(), p.tell); err == nil || strings.Contains(err.Error(), "retried after") || strings.Count(p.String(), "booting") != booted+1 {
		t.Errorf("later: %v\n%s", err, &p)
	}

	// A disk without room.
	dir := t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=4m,mode=700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	s = l.another(t, func(cfg *Config) { cfg.Dir = dir })
	if _, err := s.Build(t.Context(), python(), nil); !errors.Is(err, engine.ErrExhausted) || len(ls(t, dir)) > 0 {
		t.Errorf("on a full disk: got %v, left %q", err, ls(t, dir))
	}
}

// TestBuild_CallerLeaves cancels the waiting callers of a build, and closes the store.
func TestBuild_CallerLeaves(t *testing.T) {
	l := open(t)
	s := l.another(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := s.Build(ctx, python(), func(line string) {
		if line == "booting" {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	eventually(t, "the build that was left is done", func() bool { _, ok := s.Find(python()); return ok })

	s = l.another(t, nil)
	started := make(chan bool, 1)
	failed := make(chan error, 1)
	go func() {
		_, err := s.Build(context.Background(), python(), func(string) {
			select {
			case started <- true:
			default:
			}
		})
		failed <- err
	}()
	<-started
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-failed; !errors.Is(err, errClosed) || len(ls(t, s.cfg.Dir)) > 0 {
		t.Errorf("closed during a build: got %v, left %q", err, ls(t, s.cfg.Dir))
	}
	if _, err := s.Build(t.Context(), python(), nil); !errors.Is(err, errClosed) {
		t.Errorf("closed: got %v", err)
	}
}

// TestKey_ChangesWithUpgrade changes a library while a template is built from it, and later.
func TestKey_ChangesWithUpgrade(t *testing.T) {
	l := open(t)
	site := t.TempDir()
	library := filepath.Join(site, "json")
	if err := os.Mkdir(library, 0o755); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	s := l.another(t, func(cfg *Config) {
		cfg.Files = map[string][]string{"python": {site}}
		cfg.Now = func() time.Time { return now }
	})
	w := python()
	w.Preload = []string{"json.decoder"}
	upgrades := 0
	upgrade := func() {
		upgrades++
		if err := os.Chtimes(library, time.Time{}, time.Unix(int64(upgrades), 0)); err != nil {
			t.Error(err)
		}
	}
	var p progress
	made, err := s.Build(t.Context(), w, func(line string) {
		p.tell(line)
		if line == "writing" && upgrades == 0 {
			upgrade()
		}
	})
	if err != nil || strings.Count(p.String(), "booting") != 2 || len(ls(t, s.cfg.Dir)) != 1 {
		t.Errorf("got %v, %q\n%s", err, ls(t, s.cfg.Dir), &p)
	}
	if found, ok := s.Find(w); !ok || found.Key != made.Key {
		t.Errorf("found %+v, %v", found, ok)
	}
	upgrade()
	if _, ok := s.Find(w); !ok {
		t.Error("looked at the files again at once")
	}
	now = now.Add(recheck)
	if _, ok := s.Find(w); ok {
		t.Error("found a template of another library")
	}
	if list, err := s.List(); err != nil || len(list) != 1 || list[0].Stale != "changed since: "+library {
		t.Errorf("list: %+v, %v", list, err)
	}
	// A store with Keep leaves a used template for a day.
	cfg := s.cfg
	cfg.Keep = 240 * time.Hour
	if n, _, err := s.prune(t.Context(), staleKeep, cfg.Keep); n != 0 || err != nil {
		t.Errorf("prune at once: %d, %v", n, err)
	}
	cfg.Now = func() time.Time { return now.Add(2 * staleKeep) }
	other, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	eventually(t, "the stale template is swept away", func() bool { return len(ls(t, s.cfg.Dir)) == 0 })
}

// TestKey_DependsOnInputs checks that every input changes the key.
func TestKey_DependsOnInputs(t *testing.T) {
	l := open(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	agent := filepath.Join(dir, "agent")
	for _, f := range []string{file, agent} {
		if err := os.WriteFile(f, []byte("1"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var maker machine.Maker
	var w Spec
	reset := func() {
		maker = *l.maker
		maker.Agent.Path = agent
		maker.Volumes = []engine.Mount{{Host: "/a", Guest: "/mnt/a"}}
		maker.Env = []string{"A=1"}
		w = python()
		w.Preload = []string{"os"}
	}
	reset()
	s := l.another(t, func(cfg *Config) {
		cfg.Maker = &maker
		cfg.Files = map[string][]string{"python": {file, dir}}
	})
	seen := make(map[string]string)
	check := func(what string) {
		t.Helper()
		in, err := s.inputs(w)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if same, ok := seen[in.key()]; ok {
			t.Errorf("%s: the same key as %s", what, same)
		}
		seen[in.key()] = what
	}
	check("first")
	for what, change := range map[string]func(){
		"name":         func() { w.Name = "py" },
		"flavor":       func() { w.Flavor = "large" },
		"CPUs":         func() { w.Limits.CPUs++ },
		"memory":       func() { w.Limits.MemoryMB++ },
		"disk":         func() { w.Limits.DiskMB++ },
		"processes":    func() { w.Limits.PIDs++ },
		"preload":      func() { w.Preload = []string{"sys"} },
		"root":         func() { maker.Root.Key += "x" },
		"interpreter":  func() { maker.Interpreters = map[string]string{"python": "/usr/bin/python4"} },
		"volume":       func() { maker.Volumes = nil },
		"volume's way": func() { maker.Volumes = []engine.Mount{{Host: "/a", Guest: "/mnt/a", ReadOnly: true}} },
		"home":         func() { maker.Home = "/home/other" },
		"user":         func() { maker.UID++ },
		"group":        func() { maker.GID++ },
		"environment":  func() { maker.Env = []string{"A=2"} },
		"arguments":    func() { maker.Agent.Args = []string{"agent", "-x"} },
		"machine":      func() { s.machine += "x" },
	} {
		reset()
		was := s.machine
		change()
		check(what)
		s.machine = was
	}
	reset()
	maker.Volumes = []engine.Mount{{Host: "/elsewhere", Guest: "/mnt/a"}}
	if in, err := s.inputs(w); err != nil || seen[in.key()] != "first" {
		t.Errorf("a volume from elsewhere: %s, %v", seen[in.key()], err)
	}
	reset()
	for _, f := range []string{agent, file} {
		if err := os.WriteFile(f, []byte("22"), 0o644); err != nil {
			t.Fatal(err)
		}
		check("content of " + f)
	}
	if err := os.WriteFile(filepath.Join(dir, "os.py"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	check("module")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	check("a file that is gone")
}

// TestRemove_WaitsForRestores removes templates in use, and prunes unused ones.
func TestRemove_WaitsForRestores(t *testing.T) {
	l := open(t)
	now := time.Now()
	s := l.another(t, func(cfg *Config) { cfg.Now = func() time.Time { return now } })
	other := python()
	other.Name = "other"
	first, second := mustBuild(t, s, python()), mustBuild(t, s, other)
	dir, err := s.openShared(t.Context(), first.Key)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := s.remove(t.Context(), first.Key, nil, 0); !errors.Is(err, ErrInUse) {
		t.Errorf("remove a template in use: %v", err)
	}
	now = now.Add(90 * time.Minute)
	if n, _, err := s.Prune(t.Context(), 2*time.Hour); n != 0 || err != nil {
		t.Errorf("prune too early: %d, %v", n, err)
	}
	if n, _, err := s.Prune(t.Context(), 0); n != 0 || err != nil {
		t.Errorf("prune stale ones only: %d, %v", n, err)
	}
	if n, bytes, err := s.Prune(t.Context(), time.Hour); n != 1 || bytes != second.Bytes || err != nil {
		t.Errorf("prune: %d, %d, %v", n, bytes, err)
	}
	if err := s.Remove(second.Key); !errors.Is(err, ErrNotFound) {
		t.Errorf("remove again: %v", err)
	}
	for _, key := range []string{"", "..", "../x", first.Key[:4], strings.ToUpper(first.Key)} {
		if err := s.Remove(key); !errors.Is(err, ErrNotFound) {
			t.Errorf("remove %q: %v", key, err)
		}
	}
	dir.Close()
	// A restore counts as use.
	mustRestore(t, s, first)
	if n, _, err := s.Prune(t.Context(), time.Minute); n != 0 || err != nil {
		t.Errorf("prune after use: %d, %v", n, err)
	}
	if err := s.Remove(first.Key); err != nil || len(ls(t, s.cfg.Dir)) != 0 {
		t.Errorf("remove: %v, left %q", err, ls(t, s.cfg.Dir))
	}
	if slices.Contains(ls(t, filepath.Dir(s.cfg.Dir)), first.Key) {
		t.Error("moved instead of removed")
	}
}
