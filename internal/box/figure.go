package box

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

const (
	// figureDir is where images that code displayed are kept, below home, beside
	// the outputs that were too long for a result.
	figureDir = ".outputs"
	// figuresKept is how many images are kept, the newest.
	figuresKept = 40
	// figureWait bounds the saving of the images of one run, which takes a few
	// milliseconds; a box that does not answer must not hold up its result.
	figureWait = 5 * time.Second
)

var figureSuffixes = map[string]string{"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp"}

// saveImages writes images into the box and sets their paths, so that code, and a
// client that is not shown images, can use them. An image that cannot be written
// keeps an empty path.
func (s *Box) saveImages(ctx context.Context, images []Image) {
	if len(images) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, figureWait)
	defer cancel()
	last, old := s.figures(ctx)
	for i := range images {
		p, err := s.saveImage(ctx, &last, &images[i])
		if err != nil {
			s.m.log.Debug("figure not saved", "box", s.key.id, "err", err)
			return
		}
		images[i].Path = p
	}
	for n, name := range old {
		if n <= last-figuresKept {
			_ = s.machine.Agent.Remove(ctx, RemoveRequest{Path: path.Join(figureDir, name)}) // the next run tries again
		}
	}
}

// saveImage writes one image under the first free number above last.
func (s *Box) saveImage(ctx context.Context, last *int, img *Image) (string, error) {
	const tries = 4 // another run may be saving as well
	var err error
	for range tries {
		*last++
		var info FileInfo
		info, err = s.machine.Agent.Write(ctx, WriteRequest{
			Path: path.Join(figureDir, fmt.Sprintf("figure-%d%s", *last, figureSuffixes[img.MIME])),
			Mode: 0o644, Exclusive: true, Parents: true,
		}, bytes.NewReader(img.Data))
		if e, ok := errors.AsType[*protocol.Error](err); !ok || e.Code != protocol.CodeExists {
			return clip(info.Path, 256), err
		}
	}
	return "", err
}

// figures returns the highest number of the images that are kept, and their names
// by number. A directory that cannot be listed has none.
func (s *Box) figures(ctx context.Context) (last int, names map[int]string) {
	names = make(map[int]string)
	res, err := s.machine.Agent.List(ctx, ListRequest{Path: figureDir, Depth: 1})
	if err != nil {
		return 0, names
	}
	for _, f := range res.Entries {
		name := path.Base(f.Name)
		number, ok := strings.CutPrefix(name, "figure-")
		number, _, dot := strings.Cut(number, ".")
		n, err := strconv.Atoi(number)
		if !ok || !dot || err != nil || n <= 0 || n > 1e9 || f.Type != "file" {
			continue
		}
		names[n] = name
		last = max(last, n)
	}
	return last, names
}
