package box

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"path"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/plural"
)

// imageTypes are the pictures that models take, the preferred ones first.
var imageTypes = [...]string{"image/png", "image/jpeg", "image/webp", "image/gif"}

// Reasons why a display is left out.
const (
	skipNumber = iota
	skipSize
	skipBroken
	skipDocument
	numSkips
)

// image takes the best picture of a display, if it has one, and reports whether it is
// kept: for the result, or for a file in the box.
func (c *collector) image(d protocol.Display) bool {
	for _, mime := range imageTypes {
		data, ok := d.Data[mime]
		if !ok {
			continue
		}
		switch img, err := decodeImage(mime, data, c.maxImageSize); {
		case err != nil:
			c.skipped[skipBroken]++
		case img == nil:
			c.skipped[skipSize]++
		case len(c.images) < c.maxImages:
			c.images = append(c.images, Image{MIME: mime, Data: img})
			return true
		case len(c.unshown) >= protocol.MaxDisplays || c.documentBytes+len(img) > maxDocumentBytes:
			c.skipped[skipNumber]++
		default:
			c.documentBytes += len(img)
			c.unshown = append(c.unshown, Image{MIME: mime, Data: img})
			return true
		}
		return false
	}
	return false
}

// decodeImage returns nil without an error if the image is larger than max.
func decodeImage(mime, data string, max int) ([]byte, error) {
	if base64.StdEncoding.DecodedLen(len(data)) > max+max/32 { // room for line breaks
		return nil, nil
	}
	img, err := base64.StdEncoding.DecodeString(strings.TrimSpace(data)) // ignores line breaks
	if err != nil {
		return nil, err
	}
	if got := http.DetectContentType(img); got != mime {
		return nil, fmt.Errorf("it is %s, not %s", got, mime)
	}
	if len(img) > max {
		return nil, nil
	}
	return img, nil
}

// notes says what was left out. dropped is the agent's count.
func (c *collector) notes(dropped int) []string {
	var notes []string
	add := func(n int, format string, args ...any) {
		if n == 1 {
			notes = append(notes, "1 "+fmt.Sprintf(format, args...))
		} else if n > 1 {
			notes = append(notes, fmt.Sprintf("%d ", n)+strings.Replace(fmt.Sprintf(format, args...), "image was", "images were", 1))
		}
	}
	add(c.skipped[skipNumber], "image was left out: a result has at most %d.", c.maxImages)
	add(c.skipped[skipSize], "image was left out: larger than %d bytes. Save it to a file, or make it smaller.", c.maxImageSize)
	add(c.skipped[skipBroken], "image was left out: its data is not what its type says.")
	if len(c.unshown) > 0 {
		notes = append(notes, c.unshownNote())
	}
	if dropped > 0 {
		notes = append(notes, fmt.Sprintf("%s left out: a call keeps at most %d, of %d MB each. Save figures to files with savefig, or show fewer in one call.",
			plural.N(dropped, "display"), protocol.MaxDisplays, protocol.MaxDisplay>>20))
	}
	return append(notes, c.documentNotes()...)
}

// unshownNote says where the images are that the result has no room for.
func (c *collector) unshownNote() string {
	dir, names := "", []string(nil)
	for _, img := range c.unshown {
		if img.Path != "" {
			dir = path.Dir(img.Path)
			names = append(names, path.Base(img.Path))
		}
	}
	note := fmt.Sprintf("%s not shown: a result has at most %d.", plural.N(len(c.unshown), "image"), c.maxImages)
	if len(names) > 0 {
		note += fmt.Sprintf(" %s in %s: %s.", plural.N(len(names), "file"), dir, strings.Join(names, ", "))
	}
	if lost := len(c.unshown) - len(names); lost > 0 {
		note += fmt.Sprintf(" %d could not be saved.", lost)
	}
	return note
}
