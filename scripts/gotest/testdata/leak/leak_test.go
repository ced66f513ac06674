package leak

import (
	"os"
	"os/exec"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/proctest"
	"github.com/glovebox-dev/glovebox/scripts/gotest/testdata/once"
)

func TestMain(m *testing.M) { os.Exit(proctest.Main(m)) }

// TestProcess passes and leaves a process, which the check of the package detects.
func TestProcess(t *testing.T) {
	if !once.First(t) {
		return
	}
	if err := exec.Command("sleep", "60").Start(); err != nil {
		t.Fatal(err)
	}
}

// TestProcessAndFlake fails as well.
func TestProcessAndFlake(t *testing.T) {
	if !once.First(t) {
		return
	}
	t.Error("late")
	if err := exec.Command("sleep", "60").Start(); err != nil {
		t.Fatal(err)
	}
}

// TestFile fails as a check for leaks in a test does.
func TestFile(t *testing.T) {
	if once.First(t) {
		t.Run("part", func(t *testing.T) { t.Error("leak: 1 file is open") })
	}
}
