package tools

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/nearest"
	"github.com/glovebox-dev/glovebox/internal/truncate"
)

// An input decodes the arguments of one tool into a struct, by the same tags that
// its schema is made of.
type input struct {
	schema  json.RawMessage
	offline json.RawMessage // without the arguments for boxes with a network
	rules   []rule
	names   []string
}

// A rule describes one argument.
type rule struct {
	name     string
	aliases  []string // other accepted names, not in the schema
	index    int
	kind     reflect.Kind // of the field: string, int, bool or slice of strings
	required bool
	def      string // "" none
	enum     []string
	oneof    []string
	min, max *int
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

func newRule(f reflect.StructField) rule {
	r := rule{name: jsonName(f), kind: f.Type.Kind(), def: f.Tag.Get("default")}
	_, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
	r.required = !strings.Contains(opts, "omitempty") && !strings.Contains(opts, "omitzero")
	list := func(tag string) []string {
		if v := f.Tag.Get(tag); v != "" {
			return strings.Split(v, ",")
		}
		return nil
	}
	number := func(tag string) *int {
		v, ok := f.Tag.Lookup(tag)
		if !ok {
			return nil
		}
		n, err := strconv.Atoi(v)
		if err != nil {
			panic(fmt.Errorf("field %s: tag %s: %w", f.Name, tag, err))
		}
		return &n
	}
	r.enum, r.oneof, r.aliases = list("enum"), list("oneof"), list("alias")
	r.min, r.max = number("min"), number("max")
	return r
}

// describe adds the rule to a schema.
func (r rule) describe(s *jsonschema.Schema) {
	for _, v := range append(slices.Clone(r.enum), r.oneof...) {
		s.Enum = append(s.Enum, v)
	}
	if r.kind == reflect.String {
		s.MinLength, s.MaxLength = r.min, r.max
	} else {
		float := func(n *int) *float64 {
			if n == nil {
				return nil
			}
			f := float64(*n)
			return &f
		}
		s.Minimum, s.Maximum = float(r.min), float(r.max)
	}
	if r.def != "" {
		s.Default = json.RawMessage(r.def)
		if r.kind == reflect.String {
			s.Default = json.RawMessage(strconv.Quote(r.def))
		}
	}
}

func inputOf[In any](tool string) input {
	in := input{schema: schemaOf[In](tool, nil)}
	t := reflect.TypeFor[In]()
	in.offline = schemaOf[In](tool, func(f reflect.StructField) bool { return f.Tag.Get("online") != "" })
	for i := range t.NumField() {
		r := newRule(t.Field(i))
		r.index = i
		in.rules = append(in.rules, r)
		in.names = append(in.names, r.name)
	}
	return in
}

func invalid(argument, format string, a ...any) *box.Error {
	e := &box.Error{Code: box.CodeInvalid, Op: "read arguments", Msg: fmt.Sprintf(format, a...)}
	if argument != "" {
		e.Context = map[string]string{"parameter": argument}
	}
	return e
}

// decode decodes raw into the struct that into points to. Errors are *box.Error.
func (in *input) decode(raw json.RawMessage, into any) error {
	args, err := object(raw)
	if err != nil {
		return err
	}
	if isNested(args) && !slices.Contains(in.names, "params") {
		if args, err = object(args["params"]); err != nil {
			return err
		}
	}
	if args, err = in.canonical(args); err != nil {
		return err
	}
	for name := range args {
		if !slices.Contains(in.names, name) {
			return in.unknown(name, args)
		}
	}
	v := reflect.ValueOf(into).Elem()
	for i := range in.rules {
		r := &in.rules[i]
		raw := bytes.TrimSpace(args[r.name])
		if len(raw) == 0 || string(raw) == "null" {
			if r.required {
				return invalid(r.name, "Missing required parameter: %s", r.name)
			}
			// Defaults of oneof apply to new boxes only, and package box sets them.
			if r.def != "" && len(r.oneof) == 0 {
				r.set(v.Field(r.index), r.def)
			}
			continue
		}
		if err := r.read(raw, v.Field(r.index)); err != nil {
			return err
		}
	}
	return nil
}

// isNested reports whether the arguments are in an argument "params", as clients of a later
// version of the microsandbox server send them.
func isNested(args map[string]json.RawMessage) bool { return len(args) == 1 && args["params"] != nil }

// CallBox returns the box that the arguments of a call name, as its tool reads them; "" if they
// name none. Other spellings of the arguments' names name none: the tool refuses them.
func CallBox(arguments json.RawMessage) string {
	args, err := object(arguments)
	if err == nil && isNested(args) {
		args, err = object(args["params"])
	}
	if err != nil {
		return ""
	}
	for _, name := range []string{"session_id", "context_id"} {
		var id string
		if json.Unmarshal(args[name], &id) == nil && id != "" {
			return id
		}
	}
	return ""
}

// canonical renames aliases in args. An argument may have several of its names if
// the values are equal.
func (in *input) canonical(args map[string]json.RawMessage) (map[string]json.RawMessage, error) {
	for i := range in.rules {
		r := &in.rules[i]
		for _, alias := range r.aliases {
			value, ok := args[alias]
			if !ok {
				continue
			}
			args = maps.Clone(args)
			delete(args, alias)
			if string(value) == "null" {
				continue
			}
			if other := args[r.name]; len(other) > 0 && string(other) != "null" && !bytes.Equal(other, value) {
				return nil, invalid(alias, "Pass either %s or %s, not both", r.name, alias)
			}
			args[r.name] = value
		}
	}
	return args, nil
}

func object(raw json.RawMessage) (map[string]json.RawMessage, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var args map[string]json.RawMessage
	if json.Unmarshal(raw, &args) != nil {
		return nil, invalid("", "Tool arguments must be an object")
	}
	return args, nil
}

// unknown is the error for an unknown argument. Of several it names the first in
// alphabetical order, so that equal calls get equal answers.
func (in *input) unknown(name string, args map[string]json.RawMessage) error {
	for other := range args {
		if other < name && !slices.Contains(in.names, other) {
			name = other
		}
	}
	e := invalid(clip(name), "Unknown parameter: %s", clip(name))
	if near := in.nearest(name); near != "" {
		e.Hint = "Did you mean '" + near + "'?"
	} else if len(in.names) == 0 {
		e.Hint = "This tool takes no parameters."
	} else {
		e.Hint = "The parameters are: " + strings.Join(in.names, ", ") + "."
	}
	return e
}

// nearest returns the published name of the argument that the client probably meant,
// "" if no name is close.
func (in *input) nearest(name string) string {
	names := slices.Clone(in.names)
	published := make(map[string]string)
	for _, r := range in.rules {
		for _, alias := range r.aliases {
			names = append(names, alias)
			published[alias] = r.name
		}
	}
	near := nearest.Of(name, names)
	return cmp.Or(published[near], near)
}

func (r *rule) set(v reflect.Value, text string) {
	switch r.kind {
	case reflect.String:
		v.SetString(text)
	case reflect.Int:
		n, _ := strconv.Atoi(text)
		v.SetInt(int64(n))
	case reflect.Bool:
		v.SetBool(text == "true")
	}
}

func (r *rule) read(raw []byte, v reflect.Value) error {
	raw = r.unquoted(raw)
	switch r.kind {
	case reflect.String:
		var s string
		if json.Unmarshal(raw, &s) != nil {
			return r.wrongType("a string", raw)
		}
		return r.readString(s, v)
	case reflect.Int:
		f, err := strconv.ParseFloat(string(raw), 64)
		if err != nil || f != math.Trunc(f) {
			return r.wrongType("an integer", raw)
		}
		switch {
		case r.min != nil && f < float64(*r.min):
			return invalid(r.name, "Parameter '%s' must be >= %d, got %s", r.name, *r.min, clip(string(raw)))
		case r.max != nil && f > float64(*r.max):
			return invalid(r.name, "Parameter '%s' must be <= %d, got %s", r.name, *r.max, clip(string(raw)))
		case math.Abs(f) > math.MaxInt32:
			return invalid(r.name, "Parameter '%s' is out of range: %s", r.name, clip(string(raw)))
		}
		v.SetInt(int64(f))
	case reflect.Bool:
		var b bool
		if json.Unmarshal(raw, &b) != nil {
			return r.wrongType("a boolean", raw)
		}
		v.SetBool(b)
	case reflect.Slice:
		var list []*string
		if json.Unmarshal(raw, &list) != nil || slices.Contains(list, nil) {
			return r.wrongType("an array of strings", raw)
		}
		out := make([]string, len(list))
		for i, s := range list {
			out[i] = *s
		}
		v.Set(reflect.ValueOf(out))
	}
	return nil
}

// unquoted returns the number or boolean that raw has in a string, as some models
// write "30" and "true", and anything else as it is.
func (r *rule) unquoted(raw []byte) []byte {
	if len(raw) < 2 || raw[0] != '"' {
		return raw
	}
	inner := raw[1 : len(raw)-1]
	_, err := strconv.Atoi(string(inner))
	switch {
	case r.kind == reflect.Int && err == nil:
		return inner
	case r.kind == reflect.Bool && (string(inner) == "true" || string(inner) == "false"):
		return inner
	}
	return raw
}

func (r *rule) readString(s string, v reflect.Value) error {
	if len(r.enum) > 0 {
		s = strings.ToLower(strings.TrimSpace(s))
		if !slices.Contains(r.enum, s) {
			return invalid(r.name, "Parameter '%s' must be one of: [%s], got %q", r.name, strings.Join(r.enum, ", "), clip(s))
		}
	}
	switch {
	case r.min != nil && *r.min == 1 && strings.TrimSpace(s) == "":
		return invalid(r.name, "Parameter '%s' must not be empty", r.name)
	case r.max != nil && utf8.RuneCountInString(s) > *r.max:
		return invalid(r.name, "Parameter '%s' must have at most %d characters, got %d", r.name, *r.max, utf8.RuneCountInString(s))
	}
	v.SetString(s)
	return nil
}

func (r *rule) wrongType(want string, raw []byte) error {
	got := "a number"
	switch raw[0] {
	case '"':
		got = "the string " + clip(string(raw))
	case '{':
		got = "an object"
	case '[':
		got = "an array"
	case 't', 'f':
		got = "a boolean"
	}
	if r.kind == reflect.Int && got == "a number" {
		got = clip(string(raw))
	}
	if r.kind == reflect.Slice && got == "an array" {
		got = "an array of something else"
	}
	return invalid(r.name, "Parameter '%s' must be %s, got %s", r.name, want, got)
}

// clip shortens a client's value for a message and removes control characters.
func clip(s string) string {
	return truncate.Bytes(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s), 64)
}
