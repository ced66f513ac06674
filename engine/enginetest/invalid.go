package enginetest

import (
	"context"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/engine"
)

// tree returns a root with a key that no other test uses.
func tree(dir string) engine.Root { return engine.Root{Key: "other", Tree: &engine.Tree{Dir: dir}} }

// invalidTests creates guests with specs that are invalid in one way each.
func invalidTests() []test {
	var tests []test
	invalid := func(name string, id string, change func(t *tester, s *engine.Spec) *engine.Spec) {
		tests = append(tests, test{"invalid-" + name, func(t *tester) {
			spec := change(t, t.probeSpec("echo"))
			err := t.call("create", func(ctx context.Context) error {
				g, err := t.e.Create(ctx, id, spec)
				if err == nil {
					t.own(g)
				}
				return err
			})
			t.wantErr("create", err, engine.ErrInvalid)
		}})
	}
	same := func(_ *tester, s *engine.Spec) *engine.Spec { return s }
	for name, id := range map[string]string{
		"id-empty": "", "id-too-long": strings.Repeat("a", 65), "id-upper-case": "A", "id-dots": "..",
		"id-slash": "a/b", "id-space": "a b", "id-newline": "a\n", "id-nul": "a\x00", "id-not-ascii": "ä",
	} {
		invalid(name, id, same)
	}
	set := func(name string, f func(s *engine.Spec)) {
		invalid(name, "invalid", func(_ *tester, s *engine.Spec) *engine.Spec { f(s); return s })
	}
	invalid("spec-nil", "invalid", func(*tester, *engine.Spec) *engine.Spec { return nil })
	set("spec-empty", func(s *engine.Spec) { *s = engine.Spec{} })
	set("root-key-empty", func(s *engine.Spec) { s.Root.Key = "" })
	set("root-key-path", func(s *engine.Spec) { s.Root.Key = "../x" })
	set("root-neither-tree-nor-image", func(s *engine.Spec) { s.Root.Tree, s.Root.Image = nil, nil })
	set("root-relative", func(s *engine.Spec) { s.Root = tree("usr") })
	set("root-without-digest", func(s *engine.Spec) {
		s.Root = engine.Root{Key: "other", Image: &engine.Image{Name: "python"}}
	})
	onHost := func(name string, f func(t *tester, s *engine.Spec)) {
		invalid(name, "invalid", func(t *tester, s *engine.Spec) *engine.Spec {
			if s.Root.Tree == nil || s.Agent.Image != nil {
				t.Skip("the guests of the harness use no files of this host")
			}
			f(t, s)
			return s
		})
	}
	set("root-file-relative", func(s *engine.Spec) { s.Root = engine.Root{Key: "other", Tree: &engine.Tree{File: "image.erofs"}} })
	set("root-file-and-directory", func(s *engine.Spec) {
		s.Root = engine.Root{Key: "other", Tree: &engine.Tree{Dir: "/", File: "/image.erofs"}}
	})
	onHost("root-missing", func(_ *tester, s *engine.Spec) { s.Root = tree("/no/such/directory") })
	onHost("root-is-a-file", func(t *tester, s *engine.Spec) { s.Root = tree(t.probe) })
	onHost("agent-missing", func(_ *tester, s *engine.Spec) { s.Agent.Path += "-missing" })
	onHost("agent-is-a-directory", func(_ *tester, s *engine.Spec) { s.Agent.Path = filepath.Dir(s.Agent.Path) })
	set("agent-empty", func(s *engine.Spec) { s.Agent.Path = "" })
	set("agent-relative", func(s *engine.Spec) { s.Agent.Path = "probe" })
	set("agent-without-name", func(s *engine.Spec) { s.Agent.Args = nil })
	set("limit-of-processors-negative", func(s *engine.Spec) { s.Limits.CPUs = -1 })
	set("limit-of-processors-not-a-number", func(s *engine.Spec) { s.Limits.CPUs = math.NaN() })
	set("limit-of-memory-negative", func(s *engine.Spec) { s.Limits.MemoryMB = -1 })
	set("limit-of-disk-negative", func(s *engine.Spec) { s.Limits.DiskMB = -1 })
	set("limit-of-pids-negative", func(s *engine.Spec) { s.Limits.PIDs = -1 })
	set("hostname-too-long", func(s *engine.Spec) { s.Hostname = strings.Repeat("h", 65) })
	mount := func(name string, m engine.Mount) {
		set("mount-"+name, func(s *engine.Spec) { s.Mounts = []engine.Mount{m} })
	}
	mount("of-relative-path", engine.Mount{Host: "tmp", Guest: "/mnt"})
	onHost("mount-of-missing-path", func(_ *tester, s *engine.Spec) {
		s.Mounts = []engine.Mount{{Host: "/no/such/directory", Guest: "/mnt"}}
	})
	mount("at-relative-path", engine.Mount{Host: "/usr", Guest: "mnt"})
	mount("at-unclean-path", engine.Mount{Host: "/usr", Guest: "/mnt/../etc"})
	mount("at-the-root", engine.Mount{Host: "/usr", Guest: "/"})
	slices.SortStableFunc(tests, func(a, b test) int { return strings.Compare(a.name, b.name) })
	return tests
}
