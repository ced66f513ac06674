package switches_test

import (
	"os"
	"os/exec"
	"testing"

	_ "github.com/modelcontextprotocol/go-sdk/mcp"

	_ "github.com/glovebox-dev/glovebox/internal/server/switches"
)

// TestSwitchesAreOff starts a program with a switch that the SDK would not start
// with, had it read it.
func TestSwitchesAreOff(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^$")
	cmd.Env = append(os.Environ(), "MCPGODEBUG=misspelt")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("the SDK has seen the variable: %v\n%.500s", err, out)
	}
}
