package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/box/volume"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// parentHint is the remedy for a parent of owners' directories that is not safe.
const parentHint = "make the user that runs the server the owner of the directory, and remove the write permission of others (chmod go-w)"

// openVolumes opens the volumes of the settings, after checkVolumes.
func openVolumes(cfg *config.Config, log *slog.Logger) (*volume.Set, error) {
	var list []volume.Volume
	for _, v := range cfg.Volumes {
		list = append(list, volume.Volume{Host: v.Host, Guest: v.Guest, ReadOnly: v.ReadOnly, PerOwner: v.PerOwner, Quota: v.Quota})
		if v.Defaulted {
			log.Warn("volume is read-only in boxes: it belongs to root", logkey.Volume, v.Host, logkey.Fix, "append :rw to the mapping, or make another user its owner")
		}
	}
	set, err := volume.Open(list, filepath.Join(cfg.StateDir, "volumes", "empty"))
	if err != nil {
		return nil, withHint(err, parentHint)
	}
	return set, nil
}

// mappings returns volumes as --volume takes them. It is never nil.
func mappings(volumes []config.Volume) []string {
	list := []string{}
	for _, v := range volumes {
		text := v.Host
		if v.PerOwner {
			text += "/{owner}"
		}
		text += ":" + v.Guest
		switch {
		case v.ReadOnly:
			text += ":ro"
		case v.Writable:
			text += ":rw"
		}
		if v.Quota > 0 {
			text += fmt.Sprintf(":quota=%dM", v.Quota>>20)
		}
		list = append(list, text)
	}
	return list
}

// ownerVolumes are the volumes of boxes, for the manager.
type ownerVolumes struct{ set *volume.Set }

func (v ownerVolumes) Of(owner box.Owner) ([]engine.Mount, error) {
	list, err := v.set.Of(string(owner))
	if bad, ok := errors.AsType[*volume.UnusableError](err); ok {
		err = &box.VolumeError{Guest: bad.Guest, Why: bad.Public(), Err: err}
	}
	return list, err
}

func (v ownerVolumes) Peek(owner box.Owner) []engine.Mount { return v.set.Peek(string(owner)) }

// watchVolumes measures the volumes with quotas until the returned function is called, and
// has boxes get the volumes that they should have.
func (h *host) watchVolumes() (stop func()) {
	if !h.volumes.HasQuotas() {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		owners := func() []string { return slices.Collect(maps.Values(h.manager.Owners())) }
		h.volumes.Watch(ctx, h.log, owners, func(owner string) { h.manager.ReviseVolumes(box.Owner(owner)) })
	}()
	return func() {
		cancel()
		<-ended
	}
}
