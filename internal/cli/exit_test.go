package cli

import (
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/mcpcli"
)

// Exit codes are ours, whatever the code of a program that we ran.
func TestExitCode(t *testing.T) {
	ran := exec.Command("sh", "-c", "exit 7").Run()
	for _, test := range []struct {
		err  error
		want int
	}{
		{nil, ExitOK},
		{errors.New("x"), ExitFailure},
		{fmt.Errorf("ask the interpreter: %w", ran), ExitFailure},
		{errors.Join(&config.Error{Text: "x"}), ExitUsage},
		{&usageError{err: errors.New("x")}, ExitUsage},
		{&mcpcli.Error{Code: 4}, 4},
		{&exitStatus{code: 124}, 124},
		{fmt.Errorf("x: %w", &signalled{syscall.SIGTERM}), 143},
		{&signalled{syscall.SIGINT}, ExitInterrupted},
	} {
		if got := exitCode(test.err); got != test.want {
			t.Errorf("%v: got %d, want %d", test.err, got, test.want)
		}
	}
}

// A command of run that ended for want of memory says so, beside its code.
func TestCommandOutOfMemory(t *testing.T) {
	status := stopped(t.Context(), "oom", 0, 137)
	if status == nil || status.code != 137 || !errors.Is(status.err, errMemory) {
		t.Errorf("got %+v, want 137 and %v", status, errMemory)
	}
}
