package mcpjson

import (
	"errors"
	"fmt"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/truncate"
)

// Error is a problem at one place of a file.
type Error struct {
	File   string // path as given; empty for bytes from elsewhere
	Line   int    // from 1; 0 for the whole file
	Column int    // from 1, in bytes
	Server string // empty if the problem concerns none
	Field  string // as the file names it; empty if the problem concerns none

	// Msg describes the problem and what is allowed. It contains no value that could be
	// a secret.
	Msg string

	// Hint is a remedy; may be empty.
	Hint string

	// Err is the cause; may be nil.
	Err error
}

// Error returns all fields in one line.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("read ")
	b.WriteString(e.place())
	if e.Server != "" {
		fmt.Fprintf(&b, ": server %q", clip(e.Server))
	}
	if e.Field != "" {
		fmt.Fprintf(&b, ": field %q", clip(e.Field))
	}
	b.WriteString(": ")
	b.WriteString(e.Msg)
	if e.Err != nil {
		if e.Msg != "" {
			b.WriteString(": ")
		}
		b.WriteString(e.Err.Error())
	}
	if e.Hint != "" {
		b.WriteString("; ")
		b.WriteString(e.Hint)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// place returns file:line:column, as far as known.
func (e *Error) place() string {
	file := e.File
	if file == "" {
		file = "configuration"
	}
	switch {
	case e.Line == 0:
		return file
	case e.Column == 0:
		return fmt.Sprintf("%s:%d", file, e.Line)
	}
	return fmt.Sprintf("%s:%d:%d", file, e.Line, e.Column)
}

// maxErrors bounds the problems reported for one file.
const maxErrors = 20

// join joins errors; nil if there are none.
func join(list []*Error) error {
	if len(list) == 0 {
		return nil
	}
	var errs []error
	for i, e := range list {
		if i == maxErrors {
			errs = append(errs, fmt.Errorf("and %d more", len(list)-i))
			break
		}
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}

// maxClip bounds a name from a file in a message.
const maxClip = 64

// clip shortens text from a file for a message.
func clip(s string) string {
	return truncate.Bytes(s, maxClip)
}
