//go:build linux && (amd64 || arm64)

package gvisor_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/enginetest"
	"github.com/glovebox-dev/glovebox/internal/box/image"
	"github.com/glovebox-dev/glovebox/internal/engine/gvisor"
	"github.com/glovebox-dev/glovebox/internal/erofs/erofstest"
)

func harness(t testing.TB, root engine.Root) enginetest.Harness {
	stateDir := t.TempDir()
	instances := filepath.Join(stateDir, "gvisor")
	var groups []string // cgroups of all engines that were opened
	return enginetest.Harness{
		Open: func(t testing.TB) engine.Engine {
			e, err := gvisor.Open(t.Context(), gvisor.Config{StateDir: stateDir, DebugDir: os.Getenv("GLOVEBOX_TEST_DEBUG")})
			if err != nil {
				t.Fatal(err)
			}
			return e
		},
		Spec: func(testing.TB) *engine.Spec {
			return &engine.Spec{
				Root:   root,
				Limits: engine.Limits{MemoryMB: 512, DiskMB: 256, PIDs: 256},
			}
		},
		SmallDir: func(t testing.TB) string {
			dir := t.TempDir()
			if err := unix.Mount("small", dir, "tmpfs", 0, "size=8m"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
			return dir
		},
		Held: func(t testing.TB) []string {
			entries, err := os.ReadDir(instances)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			for _, e := range entries {
				if name := "glovebox-" + e.Name(); !slices.Contains(groups, name) {
					groups = append(groups, name)
				}
			}
			held := enginetest.Host{Dirs: []string{stateDir}, Cgroups: groups}.Held(t)
			// Assembled roots are shared by guests and held by a living engine.
			return slices.DeleteFunc(held, func(s string) bool {
				if s == "file "+instances {
					return true
				}
				return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
					return strings.Contains(s, filepath.Join(instances, e.Name(), "roots")+"/")
				})
			})
		},
	}
}

// toolchain returns a root that is a directory.
func toolchain(t testing.TB) engine.Root {
	tools, err := image.Toolchain(t.Context(), image.ToolchainConfig{StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return tools.Root
}

// TestConformance_Directory runs the suite on a root that is a directory.
func TestConformance_Directory(t *testing.T) { enginetest.Run(t, harness(t, toolchain(t))) }

// TestConformance_File runs the suite on a root that is an EROFS image.
func TestConformance_File(t *testing.T) {
	root := engine.Root{Key: "file", Tree: &engine.Tree{File: erofstest.Root(t, nil)}}
	h := harness(t, root)
	h.Known = map[string]string{"snapshot/clocks-go-on": "the date of busybox knows no nanoseconds"}
	enginetest.Run(t, h)
}

func BenchmarkEngine(b *testing.B) { enginetest.Bench(b, harness(b, toolchain(b))) }
