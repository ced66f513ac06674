package e2e

import (
	"context"
	"os/exec"
	"testing"
)

// TestPython_BarePOSTs uses the server with Python's standard library alone and without a
// handshake, as first-generation clients do.
func TestPython_BarePOSTs(t *testing.T) {
	t.Parallel()
	p := launch(t, state(t))
	ctx, cancel := context.WithTimeout(t.Context(), clientLimit)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "/usr/bin/python3", "bare.py", p.url).CombinedOutput(); err != nil {
		t.Errorf("python3 bare.py: %v\n%s", err, out)
	}
	p.stop(t)
}
