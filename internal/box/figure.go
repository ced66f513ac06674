package box

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// figureDir is where images and documents that code displayed are kept, below home, beside
	// the outputs that were too long for a result.
	figureDir = ".outputs"
	// figuresKept is how many of them are kept, the newest.
	figuresKept = 40
	// figureWait bounds the saving of those of one run, which takes a few
	// milliseconds; a box that does not answer must not hold up its result.
	figureWait = 5 * time.Second
)

var figureSuffixes = map[string]string{"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp"}

// saveDisplays writes the images and documents of a run into the box and sets their
// paths, so that code, and a client that is not shown images, can use them. If one
// cannot be written, its path and those of the rest stay empty.
func (b *Box) saveDisplays(ctx context.Context, out *collector) {
	if len(out.images)+len(out.unshown)+len(out.documents) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, figureWait)
	defer cancel()
	last, old := b.figures(ctx)
	if err := b.saveAll(ctx, &last, out); err != nil {
		b.env.log.Debug("display not saved", logkey.Box, b.key.id, logkey.Error, err)
		return
	}
	for n, name := range old {
		if n <= last-figuresKept {
			_ = b.machine.Agent.Remove(ctx, RemoveRequest{Path: path.Join(figureDir, name)}) // the next run tries again
		}
	}
}

func (b *Box) saveAll(ctx context.Context, last *int, out *collector) (err error) {
	for _, images := range [][]Image{out.images, out.unshown} {
		for i := range images {
			img := &images[i]
			if img.Path, err = b.saveDisplay(ctx, last, "figure", figureSuffixes[img.MIME], bytes.NewReader(img.Data)); err != nil {
				return err
			}
		}
	}
	for i := range out.documents {
		doc := &out.documents[i]
		if doc.path, err = b.saveDisplay(ctx, last, "display", doc.suffix, strings.NewReader(doc.data)); err != nil {
			return err
		}
	}
	return nil
}

// saveDisplay writes one file under the first free number above last and returns its
// path.
func (b *Box) saveDisplay(ctx context.Context, last *int, name, suffix string, content io.ReadSeeker) (string, error) {
	const tries = 4 // another run may be saving as well
	var err error
	for range tries {
		*last++
		if _, err := content.Seek(0, io.SeekStart); err != nil {
			return "", err
		}
		var info FileInfo
		info, err = b.machine.Agent.Write(ctx, WriteRequest{
			Path: path.Join(figureDir, fmt.Sprintf("%s-%d%s", name, *last, suffix)),
			Mode: 0o644, Exclusive: true, Parents: true,
		}, content)
		if err == nil {
			return clip(info.Path, 256), nil
		}
		if e, ok := errors.AsType[*protocol.Error](err); !ok || e.Code != protocol.CodeExists {
			break
		}
	}
	return "", err
}

// figures returns the highest number of the images and documents that are kept, and
// their names by number. A directory that cannot be listed has none.
func (b *Box) figures(ctx context.Context) (last int, names map[int]string) {
	names = make(map[int]string)
	res, err := b.machine.Agent.List(ctx, ListRequest{Path: figureDir, Depth: 1})
	if err != nil {
		return 0, names
	}
	for _, f := range res.Entries {
		name := path.Base(f.Name)
		kind, number, ok := strings.Cut(name, "-")
		number, _, dot := strings.Cut(number, ".")
		n, err := strconv.Atoi(number)
		if !ok || kind != "figure" && kind != "display" || !dot || err != nil || n <= 0 || n > 1e9 || f.Type != "file" {
			continue
		}
		names[n] = name
		last = max(last, n)
	}
	return last, names
}
