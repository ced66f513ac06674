package engines

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/gvisor"
	"github.com/glovebox-dev/glovebox/internal/engine/kube"
	"github.com/glovebox-dev/glovebox/internal/engine/microsandbox"
)

// factory returns an engine that a host with the findings probes.
func factory(name string, levels ...engine.Level) engine.Factory {
	return engine.Factory{Name: name, Probe: func(context.Context) (list []engine.Finding) {
		for _, l := range levels {
			list = append(list, engine.Finding{Name: "x", Level: l})
		}
		return list
	}}
}

func TestChoose_PrefersTheFirstEngineThatTheHostCanRun(t *testing.T) {
	works := factory("works", engine.LevelOK)
	weaker := factory("weaker", engine.LevelOK, engine.LevelWarn)
	fails := factory("fails", engine.LevelOK, engine.LevelFail)
	unprobed := engine.Factory{Name: "unprobed"} // its Probe would panic
	for name, c := range map[string]struct {
		list    []engine.Factory
		entered string
		want    string
	}{
		"the first":               {[]engine.Factory{works, weaker}, "", "works"},
		"a warning is no failure": {[]engine.Factory{fails, weaker, works}, "", "weaker"},
		"none":                    {[]engine.Factory{fails, fails}, "", "fails"},
		"the only one":            {[]engine.Factory{unprobed}, "", "unprobed"},
		"the one entered":         {[]engine.Factory{works, unprobed}, "unprobed", "unprobed"},
		"an unknown one entered":  {[]engine.Factory{works, fails}, "missing", "works"},
	} {
		if got := choose(t.Context(), c.list, c.entered); got.Name != c.want {
			t.Errorf("%s: got %s, want %s", name, got.Name, c.want)
		}
	}
}

func TestVersion_OfAnUnknownEngine(t *testing.T) {
	if v, _, ok := Version("missing"); ok || v != "" {
		t.Errorf("got %q, %t", v, ok)
	}
}

func TestFactories_AreComplete(t *testing.T) {
	seen := make(map[string]bool)
	for _, f := range all {
		if f.Name == "" || seen[f.Name] || f.Version == nil || f.Probe == nil || f.Open == nil {
			t.Errorf("engine %q has no unique name, or lacks Version, Probe or Open", f.Name)
		}
		seen[f.Name] = true
	}
}

// TestDefault_IsNeverElsewhere: an engine that asks a cluster must be selected.
func TestDefault_IsNeverElsewhere(t *testing.T) {
	if got := Local(); len(got) != 1 || got[0] != "gvisor" {
		t.Errorf("the default is one of %q, want gvisor", got)
	}
	if !slices.Contains(Names(), kube.Name) {
		t.Errorf("the engines are %q, want %s among them", Names(), kube.Name)
	}
}

// TestNoSnapshots_IsTrue: what the command line leaves out is what the engine lacks.
func TestNoSnapshots_IsTrue(t *testing.T) {
	defer func() { selected = "" }()
	for name, e := range map[string]any{
		"gvisor": (*gvisor.Engine)(nil), kube.Name: (*kube.Engine)(nil), microsandbox.Name: (*microsandbox.Engine)(nil),
	} {
		selected = name
		if _, ok := e.(engine.Snapshotter); ok == NoSnapshots() {
			t.Errorf("%s has snapshots: %t, NoSnapshots: %t", name, ok, NoSnapshots())
		}
	}
}

func TestSelect_Microsandbox(t *testing.T) {
	defer func() { selected = "" }()
	if err := Select(microsandbox.Name, Options{}); err != nil {
		t.Fatal(err)
	}
	if BoxesElsewhere() != nil {
		t.Error("its boxes are taken to be on another machine")
	}
	if got := Default().Name; got != microsandbox.Name {
		t.Errorf("the engine is %s", got)
	}
}

func TestSelect_RefusesWhatNodesCannotUse(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("0a", 32)
	for name, c := range map[string]struct {
		engine string
		o      Options
		want   string
	}{
		"unknown":         {"docker", Options{}, `unknown engine "docker"; the engines are: gvisor, kube, microsandbox`},
		"no image":        {"kube", Options{}, "needs the image of boxes"},
		"a tag":           {"kube", Options{Image: "python:3.13-slim"}, "print it with: crane digest python:3.13-slim; then name the image as python@sha256:"},
		"a directory":     {"kube", Options{Image: "./rootfs"}, "nodes need an image of a registry"},
		"a short digest":  {"kube", Options{Image: "python@sha256:0a"}, "64 hexadecimal digits"},
		"helper by tag":   {"kube", Options{Image: "python" + digest, KubeHelperImage: "helper:1"}, "--kube-helper-image: image \"helper:1\" has no digest"},
		"namespace":       {"kube", Options{Image: "python" + digest, KubeNamespace: "../kube-system"}, `namespace "../kube-system" is no name`},
		"runtime class":   {"kube", Options{Image: "python" + digest, KubeRuntimeClass: "a/b"}, `runtime class "a/b" is no name`},
		"image's newline": {"kube", Options{Image: "python\n" + digest}, "nodes need an image of a registry"},
	} {
		if err := Select(c.engine, c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	if selected != "" || elsewhere != nil {
		t.Errorf("after errors %q is selected", selected)
	}
}

func TestSelect_Kube(t *testing.T) {
	defer func() { selected, elsewhere, kubeSettings = "", nil, kube.Settings{} }()
	digest := "sha256:" + strings.Repeat("0a", 32)
	for image, want := range map[string]string{
		"python@" + digest:                               "python",
		"docker://python:3.13-slim@" + digest:            "python",
		"registry.example:5000/team/my_app:v1@" + digest: "registry.example:5000/team/my_app",
		"ghcr.io/team/app@" + digest:                     "ghcr.io/team/app",
	} {
		if err := Select("kube", Options{Image: image}); err != nil {
			t.Errorf("%s: %v", image, err)
			continue
		}
		at := BoxesElsewhere()
		if at.Root.Image.Name != want || at.Root.Image.Digest != digest || at.Agent.Image != at.Root.Image {
			t.Errorf("%s: boxes are %+v with the agent %+v, want the image %s with the agent in it", image, at.Root, at.Agent, want)
		}
		spec := engine.Spec{Root: at.Root, Agent: at.Agent}
		spec.Agent.Args = []string{"agent"}
		if err := spec.Validate(); err != nil {
			t.Errorf("%s: %v", image, err)
		}
	}
}
