// Package filewatch tells when a file has another content. It looks at what the
// directory says of the file instead of asking the kernel to be told: that works
// on every file system, through the symbolic links of mounted secrets, and needs
// nothing that can be used up.
package filewatch

import (
	"context"
	"io/fs"
	"os"
	"slices"
	"time"
)

// Every is the time between two looks. A change is told when two looks in a row
// see the same, so that a file is seldom read while it is being written: within
// twice that time.
const Every = 500 * time.Millisecond

// A Watch knows what some files looked like.
type Watch struct {
	files []string
	told  []stamp
}

// New looks at the files. What changes from now on is told by [Watch.Run].
func New(files ...string) *Watch { return &Watch{files, look(files)} }

// Run calls changed, one call at a time, whenever one of the files was written,
// replaced, removed or made since the last call, or since New. It returns when ctx
// ends, and is called once.
func (w *Watch) Run(ctx context.Context, changed func()) {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	last := w.told
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := look(w.files)
		if slices.Equal(now, last) && !slices.Equal(now, w.told) {
			w.told = now
			changed()
		}
		last = now
	}
}

// stamp is what tells one content of a file from another.
type stamp struct {
	dev, ino uint64
	size     int64
	mode     fs.FileMode
	modified time.Time
	changed  time.Time
}

func look(files []string) []stamp {
	stamps := make([]stamp, len(files))
	for i, name := range files {
		info, err := os.Stat(name)
		if err != nil {
			continue // the zero stamp: there is none
		}
		stamps[i] = stamp{size: info.Size(), mode: info.Mode(), modified: info.ModTime()}
		stamps[i].identify(info)
	}
	return stamps
}
