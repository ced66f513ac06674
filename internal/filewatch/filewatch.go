// Package filewatch reports changes of files. It polls file metadata instead of using
// the kernel's notifications: polling works on every file system and through the
// symbolic links of mounted secrets, and needs no limited resource.
package filewatch

import (
	"context"
	"io/fs"
	"os"
	"slices"
	"time"
)

// Every is the polling interval. A change is reported when two polls in a row agree,
// within twice the interval, so that files are rarely read while they are written.
const Every = 500 * time.Millisecond

// A Watch holds the last reported metadata of files.
type Watch struct {
	files    func() []string
	reported []stamp
}

// New reads the metadata of the files. [Watch.Run] reports later changes.
func New(files ...string) *Watch { return NewList(func() []string { return files }) }

// NewList is New for a list of files that can change. A list of another length counts as a
// change of a file. The Watch calls files by itself, one call at a time.
func NewList(files func() []string) *Watch { return &Watch{files, readStamps(files())} }

// Run calls changed, one call at a time, when a file was written, replaced, removed or
// created since the last call, or since New. It returns when ctx ends, and must be
// called once.
func (w *Watch) Run(ctx context.Context, changed func()) {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	last := w.reported
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := readStamps(w.files())
		if slices.Equal(now, last) && !slices.Equal(now, w.reported) {
			w.reported = now
			changed()
		}
		last = now
	}
}

// stamp is the metadata that identifies the contents of a file.
type stamp struct {
	dev, ino uint64
	size     int64
	mode     fs.FileMode
	modified time.Time
	changed  time.Time
}

func readStamps(files []string) []stamp {
	stamps := make([]stamp, len(files))
	for i, name := range files {
		info, err := os.Stat(name)
		if err != nil {
			continue // zero stamp: no file
		}
		stamps[i] = stamp{size: info.Size(), mode: info.Mode(), modified: info.ModTime()}
		stamps[i].identify(info)
	}
	return stamps
}
