//go:build linux

package attack

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Attacks on quotas succeed where no volume is measured, or none is frozen, and the judge
// notices.
func TestControl_Quotas(t *testing.T) {
	// Boxes without isolation use the owner's directory itself.
	shared := func(host string) string {
		for dir, mode := range map[string]os.FileMode{host: 0o777, filepath.Dir(host): 0o711} {
			if err := os.Chmod(dir, mode); err != nil {
				t.Fatal(err)
			}
		}
		for dir := filepath.Dir(filepath.Dir(host)); dir != "/" && dir != os.TempDir(); dir = filepath.Dir(dir) {
			if os.Chmod(dir, 0o755) != nil {
				break // not ours
			}
		}
		return host
	}
	for id, c := range map[string]struct {
		weak weakVolumes
		want string
	}{
		"volume/quota-race":   {weakVolumes{shared: shared, quota: 1 << 40, time: 3 * time.Second}, "boxes may still write to it"},
		"volume/quota-hidden": {weakVolumes{shared: shared}, "remove succeeded"},
		"volume/quota-deep":   {weakVolumes{shared: shared}, "create succeeded"},
		"volume/owner-names": {weakVolumes{of: func(parent, owner string) string {
			dir := filepath.Join(parent, strings.ReplaceAll(owner, "\x00", ""), "data")
			if !strings.HasPrefix(dir, filepath.Dir(parent)) || os.MkdirAll(dir, 0o700) != nil {
				return ""
			}
			return dir
		}}, "share a directory"},
	} {
		t.Run(strings.ReplaceAll(id, "/", "-"), func(t *testing.T) {
			cfg := unisolated(t, nil)
			cfg.volumes = c.weak
			expectBroken(t, run(t, cfg, id), c.want)
		})
	}
}
