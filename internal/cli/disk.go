package cli

import (
	"os"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/hostdisk"
	"github.com/glovebox-dev/glovebox/internal/config"
)

// diskPolicy returns how boxes share the disk of the state directory with snapshots.
// Boxes leave free what snapshots may still take.
func (h *host) diskPolicy(cfg *config.Config) hostdisk.Policy {
	reserve := h.diskReserve
	return hostdisk.Policy{
		Guaranteed: float64(cfg.DiskGuarantee) / 100,
		Reserve:    reserve,
		Others: func(free int64) int64 {
			store := h.storeForDisk.Load()
			if store == nil {
				return 0
			}
			used, unused := store.Space()
			return snapshotShare(free-reserve, used, unused)
		},
		Owners: func() map[string]string {
			if m := h.managerForDisk.Load(); m != nil {
				return m.Owners()
			}
			return nil
		},
	}
}

// defaultReserve is Config.DiskReserveMB if unset, on a disk that is large enough.
const defaultReserve = 512 << 20

// diskReserve returns how many bytes boxes and snapshots leave free on the disk of the
// state directory.
func diskReserve(cfg *config.Config) int64 {
	if cfg.DiskReserveMB > 0 {
		return int64(cfg.DiskReserveMB) << 20
	}
	dir, err := os.Open(cfg.StateDir)
	if err != nil {
		return defaultReserve // the engine reports it
	}
	defer dir.Close()
	free, err := hostdisk.Free(dir)
	if err != nil {
		return defaultReserve
	}
	return min(defaultReserve, free/4)
}

// snapshotShare returns how many more bytes snapshots may take. All of them together may
// take half of the disk, so that on a small disk boxes get their share. free bytes would
// be free if boxes had written nothing, used are taken by snapshots, which may take
// unused more by their own limit.
func snapshotShare(free, used, unused int64) int64 {
	return max(0, min(unused, (free+used)/2-used))
}

// reservedDisk returns the disk space that is reserved for the writes of boxes.
func (h *host) reservedDisk() int64 { return h.diskUse().Reserved }

// diskUse describes the disk that boxes write to; zero if the engine uses none.
func (h *host) diskUse() hostdisk.Use {
	disk, ok := engine.As[hostdisk.Engine](h.engine)
	if !ok {
		return hostdisk.Use{}
	}
	use, err := disk.Disk()
	if err != nil {
		return hostdisk.Use{} // the next start of a box reports it
	}
	return use
}
