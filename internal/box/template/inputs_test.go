package template

import (
	"testing"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
)

// TestStore_OthersOfSettings tells templates apart that have the same name and flavor.
func TestStore_OthersOfSettings(t *testing.T) {
	s := &Store{cfg: Config{Maker: &machine.Maker{
		Root: engine.Root{Key: "root"}, Interpreters: map[string]string{"python": "/usr/bin/python3"},
		Volumes: []engine.Mount{{Guest: "/in", ReadOnly: true}},
	}}}
	for want, change := range map[string]func(*inputs){
		"":                     func(*inputs) {},
		"no volumes":           func(in *inputs) { in.Volumes = []string{} },
		"volumes /in,rw /d,ro": func(in *inputs) { in.Volumes = []string{"/in,rw", "/d,ro"} },
		"another image":        func(in *inputs) { in.Root = "other" },
		"other interpreters":   func(in *inputs) { in.Root, in.Interpreters = "other", map[string]string{} },
		"no volumes, another environment": func(in *inputs) {
			in.Volumes, in.Env = []string{}, []string{"A=b"}
		},
	} {
		in := &inputs{Root: "root", Interpreters: map[string]string{"python": "/usr/bin/python3"}, Volumes: []string{"/in,ro"}}
		change(in)
		if got := s.others(in); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
