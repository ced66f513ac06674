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
	// maxColumn bounds the width of the name column.
	maxColumn = 40
	// minText is the minimum width of descriptions in a narrow window.
	minText = 20
)

// table is a list of names with descriptions, one a line.
type table struct {
	rows  [][2]string
	width int
}

// add adds a line. Both texts are untrusted.
func (t *table) add(name, text string) {
	name = oneLine(name)
	if n := utf8.RuneCountInString(name); n <= maxColumn {
		t.width = max(t.width, n)
	}
	t.rows = append(t.rows, [2]string{name, words(text)})
}

// words returns text in one line.
func words(text string) string { return oneLine(strings.Join(strings.Fields(text), " ")) }

// after returns text to print after a name; "" if there is none.
func after(text string) string {
	if text = words(text); text != "" {
		return "  " + text
	}
	return ""
}

// show writes the table. At a terminal, lines are cut at its width; other output is
// complete.
func (t *table) show(a *app) error {
	window := 0
	if f, ok := a.Out.(interface{ Fd() uintptr }); ok {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil {
			window = columns
		}
	}
	return t.write(a.Out, window)
}

// write writes the table, cut at the width of the window if that is not 0.
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
