// Package toolstest gives tests a Manager of boxes that are plain processes:
// the real agent, Python and Node, without isolation.
package toolstest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/engine/process"
	"github.com/glovebox-dev/glovebox/internal/guest/embed/embedtest"
)

// Manager returns a started Manager that ends with the test. All its boxes
// share one home. change may be nil.
func Manager(tb testing.TB, change func(*box.Config)) *box.Manager {
	tb.Helper()
	return ManagerWith(tb, change, nil)
}

// ManagerWith is Manager with other parts. changeParts may be nil.
func ManagerWith(tb testing.TB, change func(*box.Config), changeParts func(*box.Parts)) *box.Manager {
	tb.Helper()
	python, err := exec.LookPath("/usr/bin/python3")
	if err != nil {
		tb.Skipf("no Python: %v", err)
	}
	node, err := exec.LookPath("node")
	if err != nil {
		tb.Skipf("no Node: %v", err)
	}
	dir, err := os.MkdirTemp("", "glovebox")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	e, err := process.Open(process.Config{Dir: filepath.Join(dir, "guests")})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = e.Close() })
	cfg := box.DefaultConfig()
	if change != nil {
		change(&cfg)
	}
	parts := box.Parts{
		Machines: &machine.Maker{
			Engine: e, Agent: embedtest.Program(tb), Root: engine.Root{Key: "host", Tree: &engine.Tree{Dir: "/"}},
			Interpreters: map[string]string{box.Python: python, box.JavaScript: node},
			Home:         filepath.Join(dir, "home"), UID: -1, GID: -1,
		},
	}
	if changeParts != nil {
		changeParts(&parts)
	}
	m := box.New(cfg, parts)
	if err := m.Start(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := m.Close(ctx); err != nil {
			tb.Errorf("close manager: %v", err)
		}
	})
	return m
}
