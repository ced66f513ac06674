package e2e

import (
	"context"
	"os/exec"
	"testing"
)

// TestBarePOSTs has Python's standard library alone use the server as the clients
// of the first generation do, which know no handshake.
func TestBarePOSTs(t *testing.T) {
	t.Parallel()
	p := launch(t, state(t))
	ctx, cancel := context.WithTimeout(t.Context(), clientLimit)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "/usr/bin/python3", "bare.py", p.url).CombinedOutput(); err != nil {
		t.Errorf("python3 bare.py: %v\n%s", err, out)
	}
	p.stop(t)
}
