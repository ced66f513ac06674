package mcpcli

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/glovebox-dev/glovebox/internal/truncate"
)

const (
	// maxColumn is the widest name that others are aligned with.
	maxColumn = 40
	// minText is what is left of a description in a narrow window.
	minText = 20
)

// table is a list of names and what they are for, a line each.
type table struct {
	rows  [][2]string
	width int
}

// add adds a line. Both texts are a server's.
func (t *table) add(name, text string) {
	name = oneLine(name)
	if n := utf8.RuneCountInString(name); n <= maxColumn {
		t.width = max(t.width, n)
	}
	t.rows = append(t.rows, [2]string{name, words(text)})
}

// words are those of a server's text, in one line.
func words(text string) string { return oneLine(strings.Join(strings.Fields(text), " ")) }

// after is a text as it stands after a name; nothing if there is none.
func after(text string) string {
	if text = words(text); text != "" {
		return "  " + text
	}
	return ""
}

// show writes the lines with the texts aligned. At a terminal a line ends with the
// window; elsewhere, where programs read, nothing is cut.
func (t *table) show(a *app) error {
	window := 0
	if f, ok := a.Out.(interface{ Fd() uintptr }); ok {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil {
			window = columns
		}
	}
	return t.write(a.Out, window)
}

// write writes the lines, which end at the window's width if that is not 0.
func (t *table) write(w io.Writer, window int) error {
	for _, row := range t.rows {
		name, text := row[0], row[1]
		if text == "" {
			if _, err := fmt.Fprintln(w, name); err != nil {
				return err
			}
			continue
		}
		left := max(t.width, utf8.RuneCountInString(name)) + 2
		if window > 0 {
			text = truncate.Runes(text, max(window-left, minText))
		}
		if _, err := fmt.Fprintf(w, "%-*s%s\n", left, name, text); err != nil {
			return err
		}
	}
	return nil
}
