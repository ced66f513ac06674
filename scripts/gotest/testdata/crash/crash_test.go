package crash

import (
	"os"
	"os/exec"
	"testing"
	"testing/synctest"

	"github.com/glovebox-dev/glovebox/scripts/gotest/testdata/once"
)

func TestPanic(t *testing.T) {
	if once.First(t) {
		panic("first run")
	}
}

func TestExit(t *testing.T) {
	if once.First(t) {
		os.Exit(1)
	}
}

func TestKilled(t *testing.T) {
	if once.First(t) {
		t.Error("late")
		p, err := os.FindProcess(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		t.Error(p.Kill())
		select {}
	}
}

// TestChildPanics logs what another program died of.
func TestChildPanics(t *testing.T) {
	if os.Getenv("GOTEST_CHILD") != "" {
		panic("in the child")
	}
	if !once.First(t) {
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestChildPanics$")
	cmd.Env = append(os.Environ(), "GOTEST_CHILD=1")
	out, err := cmd.CombinedOutput()
	t.Errorf("child: %v\n%s", err, out)
}

// TestChildMayPanic logs what another program died of, and passes.
func TestChildMayPanic(t *testing.T) {
	once.First(t)
	t.Log("panic: in the child")
}

func TestLate(t *testing.T) {
	if once.First(t) {
		t.Error("late")
	}
}

// TestGoroutine leaves a goroutine, which testing/synctest detects.
func TestGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if once.First(t) {
			go func() { <-make(chan int) }()
		}
	})
}
