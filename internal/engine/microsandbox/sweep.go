//go:build linux

package microsandbox

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// orphanAfter is how long a detached guest waits for an engine that recovers it.
	orphanAfter = time.Hour
	// makingFor is how old a directory without a holder has to be before it is removed:
	// making one takes milliseconds.
	makingFor = 10 * time.Minute
)

// sweep removes the guests of holders whose process has ended, those that nobody has
// recovered in time, and what is left of holders.
func (e *Engine) sweep() error {
	list, err := e.list()
	if err != nil {
		return err
	}
	names := make(map[string]bool)
	for _, s := range list {
		names[s.Name] = true
	}
	entries, err := os.ReadDir(e.dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if isName(entry.Name()) {
			names[entry.Name()] = true
		}
	}
	kept := make(map[string]bool) // holders of guests that could not be removed
	for name := range names {
		e.sweepGuest(name, kept)
	}
	for _, entry := range entries {
		holder, ok := strings.CutPrefix(entry.Name(), holderPrefix)
		if ok && holderPattern().MatchString(holder) && holder != e.holder.name && !kept[holder] && dead(e.dir, holder) {
			os.Remove(filepath.Join(e.dir, entry.Name())) // the next sweep tries again
		}
	}
	return nil
}

// sweepGuest removes a guest if nobody needs it.
func (e *Engine) sweepGuest(name string, kept map[string]bool) {
	had, err := holdingOf(e.dir, name)
	switch {
	case errors.Is(err, fs.ErrNotExist): // its directory is made before it and removed after it
	case errors.Is(err, errUnheld):
		info, err := os.Stat(guestDir(e.dir, name))
		if err != nil || time.Since(info.ModTime()) < makingFor {
			return
		}
	case err != nil:
		e.log.Warn("cannot tell who holds a guest", logkey.Name, name, logkey.Error, err)
		return
	case had.holder == e.holder.name,
		had.holder == "" && time.Since(had.since) < orphanAfter,
		had.holder != "" && !dead(e.dir, had.holder):
		return
	default:
		// Another engine may recover it at the same time.
		if err := takeHold(e.dir, name, had, e.holder.name); err != nil {
			return
		}
	}
	e.log.Info("removing a guest whose process has ended", logkey.Name, name)
	if err := e.removeSandbox(name); err != nil {
		kept[had.holder] = true
		if had.file != "" {
			// The next sweep tries again.
			takeHold(e.dir, name, holding{file: heldPrefix + e.holder.name}, had.holder)
		}
		e.log.Warn("cannot remove a guest whose process has ended", logkey.Name, name, logkey.Error, err)
		return
	}
	if err := os.RemoveAll(guestDir(e.dir, name)); err != nil {
		e.log.Warn("files of a guest not removed", logkey.Name, name, logkey.Error, err)
	}
}

// list returns the sandboxes that are guests, found by their label.
func (e *Engine) list() ([]sandbox, error) {
	out, err := e.msb.brief("list", "--label", labelManaged, "--format", "json")
	if err != nil {
		return nil, unavailable(err)
	}
	return parseList(out)
}

func (e *Engine) sweepEvery(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := e.sweep(); err != nil {
			e.log.Warn("cannot look for guests whose process has ended", logkey.Error, err)
		}
	}
}
