package process_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/enginetest"
	"github.com/glovebox-dev/glovebox/internal/engine/process"
)

// harness returns a harness in which every engine goes through wrap.
func harness(t testing.TB, wrap func(engine.Engine) engine.Engine) enginetest.Harness {
	dir, root := t.TempDir(), t.TempDir()
	// The user of guests needs a way to its home.
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	return enginetest.Harness{
		Open: func(t testing.TB) engine.Engine {
			e, err := process.Open(process.Config{Dir: dir})
			if err != nil {
				t.Fatal(err)
			}
			return wrap(e)
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
		Held: enginetest.Host{Dirs: []string{dir}}.Held,
	}
}

func asItIs(e engine.Engine) engine.Engine { return e }

func TestConformance(t *testing.T) { enginetest.Run(t, harness(t, asItIs)) }

func BenchmarkEngine(b *testing.B) { enginetest.Bench(b, harness(b, asItIs)) }
