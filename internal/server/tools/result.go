package tools

import (
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/plural"
	"github.com/glovebox-dev/glovebox/internal/truncate"
)

// A figure describes an image that code displayed. The image itself is content of the
// result; clients that drop images get this description.
type figure struct {
	Type string `json:"type" jsonschema:"MIME type"`
	Size int    `json:"size" jsonschema:"bytes"`
	Path string `json:"path,omitempty" jsonschema:"where a copy is in the sandbox, for download_file"`
}

func figures(images []box.Image) []figure {
	var list []figure
	for _, img := range images {
		list = append(list, figure{img.MIME, len(img.Data), img.Path})
	}
	return list
}

// maxAttached bounds the bytes of all images in one result, as maxShown does for
// download_file. Hosts refuse much larger results.
const maxAttached = maxShown

// attach returns the first images up to maxAttached bytes, at least one, and a note on
// the rest, if any.
func attach(images []box.Image) (attached []box.Image, notes []string) {
	size := 0
	for i, img := range images {
		if size += len(img.Data); i > 0 && size > maxAttached {
			return images[:i], []string{fmt.Sprintf("%d of %d figures are not attached, because the answer would be too large. Read them with download_file.", len(images)-i, len(images))}
		}
	}
	return images, nil
}

// status is the last line of a result's text before the notes. It has the facts that
// a model needs if its client passes on nothing but text.
type status []string

func (s *status) add(format string, args ...any) { *s = append(*s, fmt.Sprintf(format, args...)) }

// line returns the line, "" if it is empty.
func (s status) line() string {
	if len(s) == 0 {
		return ""
	}
	return "[" + strings.Join(s, " · ") + "]"
}

// A boxRef names a box.
type boxRef struct {
	kind box.Kind
	id   string
}

func (t target) ref() boxRef { return boxRef{t.Info().Kind, t.ID()} }

// addBox adds the box, with its full id if the call created it.
func (s *status) addBox(b boxRef, created bool) {
	if created {
		s.add("%s %s new", b.kind, b.id)
	} else {
		s.add("%s %s", b.kind, shortID(b.id))
	}
}

// addFigures adds the number of images and the paths of the first ones.
func (s *status) addFigures(list []figure) {
	if len(list) == 0 {
		return
	}
	const most = 3
	text := plural.N(len(list), "figure")
	var paths []string
	for _, f := range list {
		if f.Path != "" {
			paths = append(paths, quoteName(f.Path))
		}
	}
	if len(paths) > most {
		paths = append(paths[:most:most], "…")
	}
	if len(paths) > 1 {
		dir := path.Dir(paths[0])
		for i, p := range paths[1:] {
			if path.Dir(p) == dir {
				paths[i+1] = path.Base(p)
			}
		}
	}
	if len(paths) > 0 {
		text += " in " + strings.Join(paths, ", ")
	}
	s.add("%s", text)
}

func (s *status) addDuration(d time.Duration) {
	switch {
	case d < time.Second:
		s.add("%d ms", d.Milliseconds())
	case d < time.Minute:
		s.add("%.1f s", d.Seconds())
	default:
		s.add("%d s", int(d.Seconds()))
	}
}

// quoteName returns the name of a file for a line of text. Guests choose names: one
// with a line break, an escape sequence or a bidirectional control is quoted, so that
// it cannot imitate a line of ours.
func quoteName(name string) string {
	for _, r := range name {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return strconv.Quote(name)
		}
	}
	return name
}

// shortID shortens an id that the client knows already.
func shortID(id string) string {
	const whole, most = 16, 12
	if len(id) <= whole {
		return id
	}
	return id[:most] + "…"
}

// joined returns standard output, then standard error.
func joined(stdout, stderr string) string { return lines(stdout, stderr) }

// lines joins texts so that each begins a line.
func lines(texts ...string) string {
	var b strings.Builder
	for _, t := range texts {
		if t == "" {
			continue
		}
		if b.Len() > 0 && !strings.HasSuffix(b.String(), "\n") {
			b.WriteByte('\n')
		}
		b.WriteString(t)
	}
	return b.String()
}

// brief shortens a text that a list repeats.
func brief(s string, most int) string { return truncate.Runes(s, most+1) }
