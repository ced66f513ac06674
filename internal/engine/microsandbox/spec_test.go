//go:build linux

package microsandbox

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/engine"
)

// specOf returns a valid spec and the directory of its agent.
func specOf(t *testing.T) (*engine.Spec, string) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "agent"), []byte("agent"), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &engine.Spec{
		Root:  engine.Root{Key: "k", Tree: &engine.Tree{Dir: dir}},
		Agent: engine.Program{Path: filepath.Join(dir, "agent"), Args: []string{"glovebox-guest", "--flag"}},
	}, dir
}

func TestCreateArgs_OptionsComeBeforeTheImage(t *testing.T) {
	s, dir := specOf(t)
	s.Hostname = "-box"
	s.Limits = engine.Limits{CPUs: 0.5, MemoryMB: 512, DiskMB: 100}
	s.Mounts = []engine.Mount{{Host: dir, Guest: "/mnt/volume"}, {Host: s.Agent.Path, Guest: "/mnt/file", ReadOnly: true}, {Host: dir, Guest: "/mnt/frozen", Frozen: true}}
	args, err := createArgs("gb-x", "id", "image:1", dir, []engine.Mount{{Host: dir, Guest: "/usr"}}, s)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"--name=gb-x", "--hostname=-box", "--memory=576M", "--cpus=1", "--root-disk=256M", "--no-net", "--pull=never",
		"--label=glovebox.managed=1", "--label=glovebox.id=id", "--mount-dir=" + dir + ":/.glovebox:ro",
		"--mount-dir=" + dir + ":/usr:ro", "--mount-dir=" + dir + ":/mnt/volume:uid=1000,gid=1000",
		"--mount-file=" + dir + "/agent:/mnt/file:ro", "--mount-dir=" + dir + ":/mnt/frozen:ro",
	}
	for _, w := range want {
		if !slices.Contains(args, w) {
			t.Errorf("%q is missing in %q", w, args)
		}
	}
	if n := len(args); args[n-2] != "--" || args[n-1] != "image:1" {
		t.Errorf("arguments end with %q", args[n-2:])
	}
	for _, a := range args[1 : len(args)-2] {
		if !strings.HasPrefix(a, "--") {
			t.Errorf("%q is no option", a)
		}
	}
}

func TestCreateArgs_RefusesPathsThatOptionsCannotExpress(t *testing.T) {
	s, dir := specOf(t)
	odd := filepath.Join(dir, "a:b")
	if err := os.Mkdir(odd, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		mount engine.Mount
		want  error
	}{
		{engine.Mount{Host: odd, Guest: "/mnt"}, engine.ErrUnsupported},
		{engine.Mount{Host: dir, Guest: "/mnt:rw"}, engine.ErrUnsupported},
		{engine.Mount{Host: dir, Guest: "/mnt,x"}, engine.ErrUnsupported},
		{engine.Mount{Host: dir, Guest: "/mnt\n"}, engine.ErrUnsupported},
		{engine.Mount{Host: dir, Guest: "/.glovebox/x"}, engine.ErrInvalid},
		{engine.Mount{Host: "/nonexistent", Guest: "/mnt"}, engine.ErrInvalid},
		{engine.Mount{Host: "/dev/null", Guest: "/mnt"}, engine.ErrUnsupported},
	} {
		s.Mounts = []engine.Mount{c.mount}
		if _, err := createArgs("gb-x", "id", "image:1", dir, nil, s); !errors.Is(err, c.want) {
			t.Errorf("%+v: got %v, want %v", c.mount, err, c.want)
		}
	}
}

func TestValidate_RefusesWhatTheEngineLacks(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(s *engine.Spec)
		want  error
	}{
		"agent of an image": {func(s *engine.Spec) { s.Agent.Image = &engine.Image{Digest: "sha256:" + strings.Repeat("a", 64)} }, engine.ErrUnsupported},
		"no agent":          {func(s *engine.Spec) { s.Agent.Path += "x" }, engine.ErrInvalid},
		"agent's directory": {func(s *engine.Spec) { s.Agent.Path = filepath.Dir(s.Agent.Path) }, engine.ErrInvalid},
		"host name":         {func(s *engine.Spec) { s.Hostname = "a b" }, engine.ErrInvalid},
		"platform's volume": {func(s *engine.Spec) { s.Mounts = []engine.Mount{{Volume: "v", Guest: "/mnt"}} }, engine.ErrUnsupported},
		"malformed":         {func(s *engine.Spec) { s.Root.Key = "../x" }, engine.ErrInvalid},
	} {
		s, _ := specOf(t)
		if err := validate(s); err != nil {
			t.Fatal(err)
		}
		c.spoil(s)
		if err := validate(s); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
}

func TestProcessors_AreWholeAndNoMoreThanTheHosts(t *testing.T) {
	have := runtime.NumCPU()
	for limit, want := range map[float64]int{0: have, 0.1: 1, 1: 1, 1e6: have, math.MaxFloat64: have} {
		if got := processors(limit); got != want {
			t.Errorf("%v: got %d, want %d", limit, got, want)
		}
	}
}
