package remote

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/image"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/engine/process"
	"github.com/glovebox-dev/glovebox/internal/guest/embed/embedtest"
	"github.com/glovebox-dev/glovebox/internal/proctest"
)

func TestMain(m *testing.M) { os.Exit(proctest.Main(m)) }

// maker makes machines of this host's file system, whose image is known by its digest only.
func maker(t *testing.T) *machine.Maker {
	t.Helper()
	e, err := process.Open(process.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return &machine.Maker{
		Engine: e, Agent: embedtest.Program(t), UID: -1, GID: -1, Home: t.TempDir(),
		Root: engine.Root{Key: "host", Tree: &engine.Tree{Dir: "/"}},
	}
}

// TestAsk_FindsWhatAMachineHas asks a real machine, and this host's Python.
func TestAsk_FindsWhatAMachineHas(t *testing.T) {
	old := dirs
	defer func() { dirs = old }()
	python := ""
	for _, dir := range old {
		if _, err := os.Stat(filepath.Join(dir, "python3")); err == nil {
			python = filepath.Join(dir, "python3")
			break
		}
	}
	if python == "" {
		t.Skip("this machine has no python3 in a usual directory; type: apt-get install python3")
	}
	found, err := ask(t.Context(), Config{Maker: maker(t)})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 || found[0].Language != image.Python || found[0].Path != python || !strings.HasPrefix(found[0].Version, "3.") || found[0].Prefix == "" {
		t.Errorf("found %+v, want the Python at %s", found, python)
	}
	dirs = []string{t.TempDir()}
	if found, err = ask(t.Context(), Config{Maker: maker(t)}); err != nil || len(found) != 0 {
		t.Errorf("without interpreters: found %+v, %v", found, err)
	}
}

func TestOpen_UsesTheAnswerThatItKept(t *testing.T) {
	k := maker(t)
	k.Root = engine.Root{Key: "image-0", Image: &engine.Image{Name: "registry.example/box", Digest: "sha256:" + strings.Repeat("0", 64)}}
	machines := 0
	cfg := Config{Maker: k, StateDir: t.TempDir(), Progress: func(string) { machines++ }}
	if img, err := Open(t.Context(), cfg); err == nil || machines != 1 {
		t.Fatalf("an engine without images: got %+v, %v after %d machines; want its error", img, err, machines)
	}
	want := image.Interpreter{Language: image.Python, Path: "/usr/bin/python3", Version: "3.13.1", Prefix: "/usr"}
	if err := cfg.kept().Update(t.Context(), func(d *known) error { *d = known{questionID(), []image.Interpreter{want}}; return nil }); err != nil {
		t.Fatal(err)
	}
	img, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if machines != 1 || img.Interpreters[image.Python].Path != want.Path || img.Root.Image != k.Root.Image || len(img.Notes) != 1 {
		t.Errorf("after %d machines the image is %+v", machines, img)
	}
	cfg.Place = "https://another.example"
	if img, err := Open(t.Context(), cfg); err == nil || machines != 2 {
		t.Errorf("in another place: got %+v, %v after %d machines; want that a machine is asked", img, err, machines)
	}
}

func TestParse_RefusesWhatNoInterpreterSays(t *testing.T) {
	for _, text := range []string{
		"", "{}", "null", "[]", strings.Repeat("{", maxAnswer),
		`{"minor": 7, "version": "3.7.1", "prefix": "/usr"}`,
		`{"minor": 13, "version": "3.13.1\n", "prefix": "/usr"}`,
		`{"minor": 13, "version": "3.13.1", "prefix": "usr"}`,
		`{"minor": 13, "version": "3.13.1", "prefix": "/usr` + "`id`" + `"}`,
	} {
		if i, ok := parsePython("/bin/python3", text); ok {
			t.Errorf("%.60q is taken for %+v", text, i)
		}
	}
	i, ok := parsePython("/bin/python3", `{"minor": 13, "version": "3.13.1", "prefix": "/usr", "libraries": ["pandas", "numpy", "%s"]}`)
	if !ok || i.Version != "3.13.1" || strings.Join(i.Libraries, " ") != "numpy pandas" {
		t.Errorf("got %+v, %t; want only libraries that were asked for", i, ok)
	}
	for text, want := range map[string]string{"v22.1.0\n": "22.1.0", "22.1.0": "", "vx": "", "v1;2": ""} {
		if i, ok := parseNode("/usr/bin/node", text); ok != (want != "") || i.Version != want {
			t.Errorf("node says %q: got %+v, %t", text, i, ok)
		}
	}
}
