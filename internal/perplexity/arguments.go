package perplexity

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/glovebox-dev/glovebox/internal/nearest"
	"github.com/glovebox-dev/glovebox/internal/truncate"
	"github.com/glovebox-dev/glovebox/internal/visible"
)

// maxArguments bounds the arguments of a call, in bytes. A long conversation has a tenth
// of it.
const maxArguments = 1 << 20

func wrong(format string, args ...any) *Error {
	return &Error{Kind: KindArgument, Text: "Invalid parameters: " + fmt.Sprintf(format, args...)}
}

// arguments checks raw against a schema of an object, and decodes it into a struct. It
// returns the checked arguments as JSON that is equal for equal calls: with defaults, and
// with the members in order. hidden are properties that the schema does not show.
func arguments(schema *jsonschema.Schema, hidden map[string]*jsonschema.Schema, raw json.RawMessage, into any) (canonical []byte, err error) {
	if len(raw) > maxArguments {
		return nil, wrong("the arguments have %d bytes, and at most %d are allowed", len(raw), maxArguments)
	}
	var value any = map[string]any{}
	if len(bytes.TrimSpace(raw)) > 0 && string(bytes.TrimSpace(raw)) != "null" {
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.UseNumber()
		if err := dec.Decode(&value); err != nil {
			return nil, wrong("the arguments are no JSON: %v", err)
		}
	}
	all := *schema
	all.Properties = maps.Clone(schema.Properties)
	maps.Copy(all.Properties, hidden)
	checked, err := check(&all, value, "")
	if err != nil {
		return nil, err
	}
	if canonical, err = json.Marshal(checked); err != nil {
		return nil, fmt.Errorf("encode checked arguments: %w", err)
	}
	if err := json.Unmarshal(canonical, into); err != nil {
		return nil, fmt.Errorf("decode checked arguments: %w", err)
	}
	return canonical, nil
}

// check checks a value against those parts of JSON Schema that the tools' schemas use. It
// returns the value with defaults, words of enums in lower case, and numbers and booleans
// that a model wrote as strings. path names the value in errors; "" is the arguments.
func check(s *jsonschema.Schema, v any, path string) (any, error) {
	switch s.Type {
	case "object":
		return checkObject(s, v, path)
	case "array":
		list, ok := v.([]any)
		if !ok {
			return nil, wrongType(path, "an array", v)
		}
		if s.MinItems != nil && len(list) < *s.MinItems {
			return nil, wrong("'%s' must not be empty", path)
		}
		if s.MaxItems != nil && len(list) > *s.MaxItems {
			return nil, wrong("'%s' must have at most %d items, got %d", path, *s.MaxItems, len(list))
		}
		out := make([]any, len(list))
		for i, item := range list {
			var err error
			if out[i], err = check(s.Items, item, fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return nil, err
			}
		}
		return out, nil
	case "integer":
		return checkInteger(s, v, path)
	case "boolean":
		switch v {
		case "true", true:
			return true, nil
		case "false", false:
			return false, nil
		}
		return nil, wrongType(path, "a boolean", v)
	}
	text, ok := v.(string)
	if !ok {
		return nil, wrongType(path, "a string", v)
	}
	if len(s.Enum) > 0 {
		text = strings.ToLower(strings.TrimSpace(text))
		if !slices.Contains(s.Enum, any(text)) {
			return nil, wrong("'%s' must be one of: %s, got %s", path, words(s.Enum), clip(text))
		}
	}
	switch n := utf8.RuneCountInString(text); {
	case s.MinLength != nil && strings.TrimSpace(text) == "":
		return nil, wrong("'%s' must not be empty", path)
	case s.MaxLength != nil && n > *s.MaxLength:
		return nil, wrong("'%s' must have at most %d characters, got %d", path, *s.MaxLength, n)
	case s.MinLength != nil && n < *s.MinLength:
		return nil, wrong("'%s' must have at least %d characters, got %s", path, *s.MinLength, clip(text))
	}
	return text, nil
}

func checkObject(s *jsonschema.Schema, v any, path string) (any, error) {
	object, ok := v.(map[string]any)
	if !ok {
		if path == "" {
			return nil, wrong("the arguments must be an object")
		}
		return nil, wrongType(path, "an object", v)
	}
	at := func(name string) string { return strings.TrimPrefix(path+"."+name, ".") }
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if s.Properties[name] != nil {
			continue
		}
		e := wrong("unknown parameter %s", clip(at(name)))
		if near := nearest.Of(name, s.PropertyOrder); near != "" {
			e.Hint = "Did you mean '" + at(near) + "'?"
		} else {
			e.Hint = "The parameters are: " + strings.Join(s.PropertyOrder, ", ") + "."
		}
		return nil, e
	}
	out := make(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		property, value := s.Properties[name], object[name]
		if value == nil {
			if slices.Contains(s.Required, name) {
				return nil, wrong("missing required parameter '%s'", at(name))
			}
			if value = defaultOf(property); value == nil {
				continue
			}
		}
		var err error
		if out[name], err = check(property, value, at(name)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// defaultOf returns the value of an absent property, or nil. An object's members have
// defaults of their own.
func defaultOf(s *jsonschema.Schema) (value any) {
	if s.Type == "object" {
		return map[string]any{}
	}
	if len(s.Default) > 0 {
		dec := json.NewDecoder(bytes.NewReader(s.Default))
		dec.UseNumber()
		_ = dec.Decode(&value) // a constant
	}
	return value
}

func checkInteger(s *jsonschema.Schema, v any, path string) (any, error) {
	number, ok := v.(json.Number)
	if text, isText := v.(string); isText {
		number, ok = json.Number(text), true
	}
	n, err := number.Float64()
	if !ok || err != nil || n != float64(int32(n)) {
		return nil, wrongType(path, "an integer", v)
	}
	switch {
	case s.Minimum != nil && n < *s.Minimum:
		return nil, wrong("'%s' must be >= %v, got %v", path, *s.Minimum, n)
	case s.Maximum != nil && n > *s.Maximum:
		return nil, wrong("'%s' must be <= %v, got %v", path, *s.Maximum, n)
	}
	return int(n), nil
}

func wrongType(path, want string, v any) *Error {
	got := "an object"
	switch v := v.(type) {
	case nil:
		got = "null"
	case string:
		got = "the string " + clip(v)
	case json.Number:
		got = clip(v.String())
	case bool:
		got = strconv.FormatBool(v)
	case []any:
		got = "an array"
	}
	return wrong("'%s' must be %s, got %s", path, want, got)
}

func words(enum []any) string {
	list := make([]string, len(enum))
	for i, word := range enum {
		list[i] = fmt.Sprint(word)
	}
	return strings.Join(list, ", ")
}

// clip returns a client's text for a message.
func clip(s string) string { return "'" + visible.Line(truncate.Runes(s, 64)) + "'" }
