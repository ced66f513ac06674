package mcpjson

import (
	"errors"
	"fmt"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/truncate"
)

// Error is one complaint about one place of a file.
type Error struct {
	File   string // as it was named; may be empty for bytes from elsewhere
	Line   int    // from 1; 0 if the complaint is about the whole file
	Column int    // from 1, in bytes
	Server string // empty if it is about none
	Field  string // in the file's own words; empty if it is about none

	// Msg says what was found and what is allowed. It holds no value of a field
	// that could be a secret.
	Msg string

	// Hint says what to do; may be empty.
	Hint string

	// Err is the cause; may be nil.
	Err error
}

// Error shows all that is known in one line.
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

// place is file:line:column, as far as known.
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

// maxErrors bounds how much is said about one file: who has made more mistakes
// reads the first ones first.
const maxErrors = 20

// join makes one error of many; nil of none.
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

// maxClip is how much of a name from a file goes into a message.
const maxClip = 64

// clip shortens what comes from a file and is shown to people.
func clip(s string) string {
	return truncate.Bytes(s, maxClip)
}
