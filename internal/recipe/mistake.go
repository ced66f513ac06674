package recipe

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/glovebox-dev/glovebox/internal/nearest"
)

// keys are the keys of a recipe, and kinds their values, in the order of the documents.
var keys = []string{"description", "from", "language", "flavor", "copy", "run", "preload", "net", "network", "env"}

var kinds = map[string]string{
	"description": `a string, such as description = "counts words"`,
	"from":        `a string, such as from = "python:3.13-slim"`,
	"language":    `a string, such as language = "python"`,
	"flavor":      `a string, such as flavor = "small"`,
	"copy":        `a list of strings, such as copy = ["texts", "count.py:tools/"]`,
	"run":         `a list of strings, such as run = ["pip install polars"]`,
	"preload":     `a list of strings, such as preload = ["json"]`,
	"net":         `a list of strings, such as net = ["pypi"]`,
	"network":     `a list of strings, such as network = ["pypi"]`,
	"env":         `a table of strings, such as env = { TZ = "UTC" }`,
}

// undecoded returns an error of the decoder with its position, in the terms of recipes.
func (f *File) undecoded(err error) error {
	e := &Error{File: f.name, Err: errors.New(strings.TrimPrefix(clip(err.Error()), "toml: "))}
	if strict, ok := errors.AsType[*toml.StrictMissingError](err); ok && len(strict.Errors) > 0 {
		e.Line, e.Column = strict.Errors[0].Position()
		e.Err = unknownKey(strict.Errors[0].Key())
	} else if bad, ok := errors.AsType[*toml.DecodeError](err); ok {
		e.Line, e.Column = bad.Position()
		if e.Line == 1 && e.Column == 1 { // the decoder does not know where some lists are
			f.at = positions(f.data)
			if known, ok := errors.AsType[*Error](f.locate(err, bad.Key()...)); ok && known.Line > 0 {
				e.Line, e.Column = known.Line, known.Column
			}
		}
		text := strings.TrimPrefix(bad.Error(), "toml: ")
		if strings.HasPrefix(text, "cannot decode TOML ") || strings.HasPrefix(text, "cannot store a") {
			e.Err = wrongKind(bad.Key())
		}
	}
	return e
}

// unknownKey is the error for a key that no recipe has.
func unknownKey(path []string) error {
	err := fmt.Errorf("unknown key %q", clip(strings.Join(path, ".")))
	if len(path) < 3 { // beside the templates
		return fmt.Errorf("%w: a recipe is in a section [template.NAME]", err)
	}
	if near := nearest.Of(path[2], keys); near != "" {
		return fmt.Errorf("%w; did you mean %s?", err, near)
	}
	return fmt.Errorf("%w; the keys are: %s", err, strings.Join(keys, ", "))
}

// wrongKind is the error for a value of another kind than that of its key.
func wrongKind(path []string) error {
	switch {
	case len(path) < 2:
		return errors.New("template must be sections [template.NAME], each with one recipe")
	case len(path) == 2:
		return fmt.Errorf("%s must be one section, such as [template.words]", clip(strings.Join(path, ".")))
	}
	return fmt.Errorf("%s must be %s", clip(path[2]), kinds[path[2]])
}
