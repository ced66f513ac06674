//go:build linux

package nsengine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/enginetest"
)

func TestConformance(t *testing.T) {
	factory := Factory()
	for _, f := range factory.Probe(t.Context()) {
		if f.Level == engine.LevelFail {
			t.Skipf("%s: %s; %s", f.Name, f.Detail, f.Fix)
		}
	}
	dir, root := t.TempDir(), t.TempDir()
	t.Cleanup(func() { // after all parts
		if _, err := os.Stat("/opt/glovebox"); err == nil {
			t.Error("/opt/glovebox exists: an agent wrote to the host's file system, or did so earlier")
		}
	})
	// User code needs a way to its home.
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	enginetest.Run(t, enginetest.Harness{
		Open: func(t testing.TB) engine.Engine {
			e, err := factory.Open(t.Context(), engine.Config{StateDir: dir})
			if err != nil {
				t.Fatal(err)
			}
			return e
		},
		Spec: func(testing.TB) *engine.Spec {
			return &engine.Spec{Root: engine.Root{Key: "empty", Tree: &engine.Tree{Dir: root}}}
		},
		User: func(_ engine.Engine, id string) enginetest.User {
			user := enginetest.User{Home: filepath.Join(dir, id), UID: -1, GID: -1}
			if os.Geteuid() == 0 {
				user.UID, user.GID = 65534, 65534
			}
			return user
		},
		Held: enginetest.Host{Dirs: []string{dir}, Cgroups: []string{"glovebox-user", "glovebox-agent"}}.Held,
	})
}
