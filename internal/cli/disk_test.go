package cli

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/config"
)

// TestDiskPolicy_ShareOfSnapshots: snapshots may take half of a small disk, and no more
// when they have taken that; on a large one, what their own limit leaves.
func TestDiskPolicy_ShareOfSnapshots(t *testing.T) {
	const mb = 1 << 20
	store, err := snapshot.Open(snapshot.Config{Dir: filepath.Join(t.TempDir(), "snapshots"), MaxBytes: 100 * mb})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	h := &host{diskReserve: 10 * mb}
	h.storeForDisk.Store(store)
	others := h.diskPolicy(&config.Config{DiskGuarantee: 5}).Others
	expect := func(free, want int64) {
		t.Helper()
		if got := others(free * mb); got != want*mb {
			t.Errorf("with %d MB free: %d bytes are left to snapshots, want %d MB", free, got, want)
		}
	}
	expect(1000, 100)
	expect(50, 20)
	expect(5, 0)

	meta := snapshot.Meta{Purpose: snapshot.Box, Owner: "a", Kind: "session", BoxID: "b"}
	c, err := store.Create(meta)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Release()
	err = c.Write(t.Context(), meta, 16*mb, func(_ context.Context, dir string) error {
		return os.WriteFile(filepath.Join(dir, "x"), make([]byte, 16*mb), 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	expect(1000, 84)
	expect(50-16, 20-16) // as before the write
	expect(10, 0)        // more than the half is taken
}
