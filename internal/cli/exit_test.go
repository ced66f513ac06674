package cli

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/cli/mcpcli"
	"github.com/glovebox-dev/glovebox/internal/config"
)

// The exit codes of glovebox do not depend on those of programs that it ran itself.
func TestExitCode_OfGlovebox(t *testing.T) {
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

// run reports that its command exceeded the memory, and exits with its code.
func TestExitCode_OutOfMemory(t *testing.T) {
	for flavor, hint := range map[box.Flavor]string{"": "--flavor medium", "small": "--flavor medium", "medium": "--flavor large", "large": "the largest box (4096 MB)"} {
		status := stopped(t.Context(), "oom", &job{flavor: flavor}, 137)
		if status == nil || status.code != 137 || !errors.Is(status.err, errMemory) {
			t.Fatalf("flavor %q: got %+v, want 137 and %v", flavor, status, errMemory)
		}
		h, ok := errors.AsType[*hinted](status.err)
		if !ok || !strings.Contains(h.hint, hint) {
			t.Errorf("flavor %q: got %+v, want %q in the hint", flavor, status.err, hint)
		}
	}
}
