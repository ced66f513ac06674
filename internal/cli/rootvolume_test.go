//go:build linux && (amd64 || arm64)

package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/owned"
)

// TestCheckVolumes_OfRoot: a volume of root is read-only unless :rw was said, and refused
// then if other users can reach it.
func TestCheckVolumes_OfRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("files that boxes of an ordinary user create do not belong to root")
	}
	// Not t.TempDir, which other users cannot reach.
	dir, err := os.MkdirTemp("", "gbvolume")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	volume := filepath.Join(dir, "volume")
	if err := os.Mkdir(volume, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		above, mode os.FileMode
		uid         int
		readOnly    bool
		writable    bool
		refused     bool
		becomes     bool // read-only
	}{
		"open":             {above: 0o755, mode: 0o755, becomes: true},
		"open, writable":   {above: 0o755, mode: 0o755, writable: true, refused: true},
		"open to pass":     {above: 0o711, mode: 0o711, writable: true, refused: true},
		"read-only":        {above: 0o755, mode: 0o755, readOnly: true, becomes: true},
		"of another user":  {above: 0o755, mode: 0o755, uid: 54321},
		"closed":           {above: 0o755, mode: 0o700, becomes: true},
		"closed, writable": {above: 0o755, mode: 0o700, writable: true},
		"in a closed one":  {above: 0o700, mode: 0o755, writable: true},
		"group root alone": {above: 0o755, mode: 0o770, writable: true},
	} {
		if err := os.Chmod(dir, c.above); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(volume, c.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(volume, c.uid, 0); err != nil {
			t.Fatal(err)
		}
		cfg := &config.Config{Volumes: []config.Volume{{Host: volume, Guest: "/v", ReadOnly: c.readOnly, Writable: c.writable}}}
		err := checkVolumes(cfg)
		if c.refused != (err != nil) || err != nil && !strings.Contains(err.Error(), volume) {
			t.Errorf("%s: got %v, want refused: %t", name, err, c.refused)
		}
		if err == nil && cfg.Volumes[0].ReadOnly != c.becomes {
			t.Errorf("%s: read-only: %t, want %t", name, cfg.Volumes[0].ReadOnly, c.becomes)
		}
	}
}

// TestCheckVolumes_NoAccess: an ordinary user gets an error that names the volume, the user
// and a remedy.
func TestCheckVolumes_NoAccess(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root has access to every volume")
	}
	own := filepath.Join(t.TempDir(), "own")
	if err := os.Mkdir(own, 0o300); err != nil {
		t.Fatal(err)
	}
	if err := checkVolumes(&config.Config{Volumes: []config.Volume{{Host: own}, {Host: "/", PerOwner: false, ReadOnly: true}}}); err != nil {
		t.Errorf("volumes that the user may use: %v", err)
	}
	user := fmt.Sprintf("user %d", os.Geteuid())
	if err := checkVolumes(&config.Config{Volumes: []config.Volume{{Host: "/root", ReadOnly: true}}}); err == nil || !strings.Contains(err.Error(), "/root") || !strings.Contains(err.Error(), user) {
		t.Errorf("closed volume: got %v, want the volume and %s", err, user)
	}
	if owned.OnlyUser() { // then a directory of root is as good as one's own
		return
	}
	if err := checkVolumes(&config.Config{Volumes: []config.Volume{{Host: "/usr", PerOwner: true}}}); err == nil || !strings.Contains(err.Error(), "not to "+user) {
		t.Errorf("parent of root: got %v, want %s", err, user)
	}
}
