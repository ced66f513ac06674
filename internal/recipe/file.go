package recipe

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

const (
	// maxFile bounds a file with recipes, and maxTemplates their number.
	maxFile      = 1 << 20
	maxTemplates = 64
)

// File is the content of a glovebox.toml.
type File struct {
	Template map[string]*Recipe `toml:"template" json:"template,omitempty" jsonschema:"The templates, by name."`

	name string // of the file
	data []byte
	at   map[string]int // as positions returns them
}

// Locate returns an error in a template of the file as an *Error with the position of the
// element index of field or, if index is negative, of the field.
func (f *File) Locate(err error, template, field string, index int) error {
	path := []string{"template", template, field}
	if index >= 0 {
		path = append(path, fmt.Sprint(index))
	}
	return f.locate(fmt.Errorf("template %q: %w", template, err), path...)
}

// locate returns err with the position of the last part of path that the file has.
func (f *File) locate(err error, path ...string) error {
	e := &Error{File: f.name, Err: err}
	for ; len(path) > 0 && e.Line == 0; path = path[:len(path)-1] {
		if offset, ok := f.at[join(path...)]; ok {
			e.Line, e.Column = position(f.data, offset)
		}
	}
	return e
}

// An Error is an error in a file with recipes.
type Error struct {
	File         string
	Line, Column int // from 1; 0: unknown
	Err          error
}

func (e *Error) Error() string {
	switch {
	case e.Line > 0 && e.Column > 0:
		return fmt.Sprintf("%s:%d:%d: %v", e.File, e.Line, e.Column, e.Err)
	case e.Line > 0:
		return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err)
	}
	return fmt.Sprintf("%s: %v", e.File, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Read reads and checks a file with recipes. Errors in its content are an *Error with the
// position.
func Read(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %q: %w", path, err)
	}
	return Parse(path, data)
}

// Parse parses and checks the content of a file with recipes; name is for errors, which
// are an *Error.
func Parse(name string, data []byte) (*File, error) {
	if len(data) > maxFile {
		return nil, &Error{File: name, Err: fmt.Errorf("larger than %d bytes", maxFile)}
	}
	file := &File{name: name, data: data}
	d := toml.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(file); err != nil {
		return nil, file.undecoded(err)
	}
	file.at = positions(data)
	if len(file.Template) > maxTemplates {
		return nil, file.locate(fmt.Errorf("%d templates, at most %d are allowed", len(file.Template), maxTemplates))
	}
	for _, template := range slices.Sorted(maps.Keys(file.Template)) {
		r := file.Template[template]
		if err := CheckName(template); err != nil {
			return nil, file.locate(err, "template", template)
		}
		if err := r.Check(); err != nil {
			f, ok := errors.AsType[*FieldError](err)
			if !ok {
				return nil, file.locate(fmt.Errorf("template %q: %w", template, err), "template", template)
			}
			return nil, file.Locate(err, template, f.Field, f.Index)
		}
	}
	return file, nil
}

// clip bounds a part of a file in a message.
func clip(s string) string {
	if len(s) > 200 {
		s = s[:200] + "…"
	}
	return strings.ToValidUTF8(s, "?")
}

// join is the key of a path in the result of positions. No key of TOML contains NUL.
func join(path ...string) string { return strings.Join(path, "\x00") }

// positions returns the offsets of the tables, keys and elements of lists in valid TOML,
// by their paths.
func positions(data []byte) map[string]int {
	at := make(map[string]int)
	put := func(path []string, offset int) {
		if offset == 0 && len(at) > 0 {
			return // the parser has no offsets of some values
		}
		if _, ok := at[join(path...)]; !ok {
			at[join(path...)] = offset
		}
	}
	var table []string
	var p unstable.Parser
	p.Reset(data)
	for p.NextExpression() {
		x := p.Expression()
		path := slices.Clone(table)
		if x.Kind == unstable.Table || x.Kind == unstable.ArrayTable {
			path = nil
		}
		for it := x.Key(); it.Next(); {
			path = append(path, string(it.Node().Data))
			put(path, int(it.Node().Raw.Offset))
		}
		switch x.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = path
		case unstable.KeyValue:
			place(put, path, x.Value())
		}
	}
	return at
}

// place calls put for the elements of a value that is a list or an inline table.
func place(put func([]string, int), path []string, v *unstable.Node) {
	switch v.Kind {
	case unstable.Array:
		n := 0
		for it := v.Children(); it.Next(); n++ {
			put(append(slices.Clone(path), fmt.Sprint(n)), int(it.Node().Raw.Offset))
		}
	case unstable.InlineTable:
		for it := v.Children(); it.Next(); {
			kv, sub := it.Node(), slices.Clone(path)
			for key := kv.Key(); key.Next(); {
				sub = append(sub, string(key.Node().Data))
				put(sub, int(key.Node().Raw.Offset))
			}
			place(put, sub, kv.Value())
		}
	}
}

// position converts an offset to line and column, from 1.
func position(data []byte, offset int) (line, column int) {
	offset = min(max(offset, 0), len(data))
	before := data[:offset]
	return bytes.Count(before, []byte("\n")) + 1, offset - bytes.LastIndexByte(before, '\n')
}
