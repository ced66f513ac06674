package mcpcli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/nearest"
)

// maxArgument bounds a file that is the value of an argument, as messages are bounded.
const maxArgument = 16 << 20

// argument is an argument of the command line.
type argument struct {
	key  string
	text string          // as typed, or read from a file
	json json.RawMessage // of key:=, otherwise nil
}

// arguments parses the command line, without the tool's schema.
func (a *app) arguments(words []string, whole string) (all []argument, err error) {
	if whole != "" {
		text, err := a.atFile(whole)
		if err != nil {
			return nil, err
		}
		var object map[string]json.RawMessage
		if err := json.Unmarshal([]byte(text), &object); err != nil || object == nil {
			return nil, usage("", "--json takes a JSON object: %v", notObject(err))
		}
		for _, key := range slices.Sorted(maps.Keys(object)) {
			all = append(all, argument{key: key, json: object[key]})
		}
	}
	for _, word := range words {
		key, text, ok := strings.Cut(word, "=")
		if !ok || key == "" {
			return nil, usage("write key=value", "invalid argument %q", word)
		}
		if raw, isJSON := strings.CutSuffix(key, ":"); isJSON && raw != "" {
			if text, err = a.atFile(text); err != nil {
				return nil, err
			}
			if !json.Valid([]byte(text)) {
				return nil, usage("quote the value for the shell, or write key=value", "argument %q is not JSON", raw)
			}
			all = append(all, argument{key: raw, json: json.RawMessage(text)})
			continue
		}
		if text, err = a.atFile(text); err != nil {
			return nil, err
		}
		all = append(all, argument{key: key, text: text})
	}
	return all, nil
}

func notObject(err error) error {
	if err == nil {
		return fmt.Errorf("got null")
	}
	return err
}

// atFile replaces @FILE by the text of the file. @@ stands for @.
func (a *app) atFile(text string) (string, error) {
	name, ok := strings.CutPrefix(text, "@")
	if !ok {
		return text, nil
	}
	if strings.HasPrefix(name, "@") {
		return name, nil
	}
	var in io.Reader
	if name == "-" {
		in = a.In
	} else {
		f, err := os.Open(name)
		if err != nil {
			return "", usage("write @@ for a literal @", "read argument: %v", err)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxArgument+1))
	switch {
	case err != nil:
		return "", usage("", "read argument %q: %v", text, err)
	case len(b) > maxArgument:
		return "", usage("", "read argument %q: larger than %d bytes", text, maxArgument)
	}
	return string(b), nil
}

// schema is the part of a JSON schema that decides how values are parsed.
type schema struct {
	Type        any               `json:"type"` // a string or a list of them
	Description string            `json:"description"`
	Properties  map[string]schema `json:"properties"`
	Required    []string          `json:"required"`
	Additional  json.RawMessage   `json:"additionalProperties"`
	Items       *schema           `json:"items"`
	Enum        []any             `json:"enum"`
	AnyOf       []schema          `json:"anyOf"`
	OneOf       []schema          `json:"oneOf"`
	Ref         string            `json:"$ref"`
	Defs        map[string]schema `json:"$defs"`
	Old         map[string]schema `json:"definitions"`

	root *schema
}

// schemaOf returns the schema of a tool's arguments. An invalid schema allows all.
func schemaOf(t *mcp.Tool) *schema {
	s := &schema{}
	b, err := json.Marshal(t.InputSchema)
	if err == nil && json.Unmarshal(b, s) != nil {
		s = &schema{}
	}
	s.root = s
	return s
}

func (s *schema) names() []string { return slices.Sorted(maps.Keys(s.Properties)) }

// property returns the schema of an argument, with references resolved.
func (s *schema) property(name string) *schema {
	p := s.Properties[name]
	p.root = s.root
	return p.resolve()
}

// maxRefs bounds chains of references, which may be circular.
const maxRefs = 16

func (s *schema) resolve() *schema {
	now := s
	for range maxRefs {
		name, ok := strings.CutPrefix(now.Ref, "#/$defs/")
		if !ok {
			name, ok = strings.CutPrefix(now.Ref, "#/definitions/")
		}
		if !ok {
			return now
		}
		next, ok := s.root.Defs[name]
		if !ok {
			if next, ok = s.root.Old[name]; !ok {
				return now
			}
		}
		next.root = s.root
		now = &next
	}
	return &schema{root: s.root}
}

// types returns all types that a value may have.
func (s *schema) types() (types []string) {
	switch t := s.Type.(type) {
	case string:
		types = append(types, t)
	case []any:
		for _, one := range t {
			if text, ok := one.(string); ok {
				types = append(types, text)
			}
		}
	}
	for _, alternatives := range [][]schema{s.AnyOf, s.OneOf} {
		for _, one := range alternatives {
			one.root = s.root
			types = append(types, one.resolve().types()...)
		}
	}
	return types
}

// kind returns the types or choices for the help.
func (s *schema) kind() string {
	if len(s.Enum) > 0 {
		var choices []string
		for _, v := range s.Enum {
			choices = append(choices, fmt.Sprint(v))
		}
		return strings.Join(choices, "|")
	}
	types := s.types()
	if len(types) == 0 {
		return "any"
	}
	return strings.Join(slices.Compact(types), "|")
}

// read converts the arguments of the command line into those of a tool.
func (s *schema) read(server, tool string, given []argument) (map[string]any, error) {
	help := fmt.Sprintf("glovebox mcp tools %s %s shows its arguments", server, tool)
	args := make(map[string]any)
	for _, arg := range given {
		_, known := s.Properties[arg.key]
		// Schemas rarely exclude other properties, but servers rarely accept them. JSON
		// arguments may have any key.
		if !known && (string(s.Additional) == "false" || len(s.Properties) > 0 && len(s.Additional) == 0 && arg.json == nil) {
			return nil, usage(suggestion(arg.key, s.names(), help), "tool %q has no argument %q", tool, arg.key)
		}
		p := s.property(arg.key)
		value, err := p.value(arg)
		if err != nil {
			return nil, usage(help, "argument %q of tool %q: %v", arg.key, tool, err)
		}
		before, again := args[arg.key]
		list, isList := before.([]any)
		switch {
		case !again:
			args[arg.key] = value
		case isList && slices.Contains(p.types(), "array"):
			if more, ok := value.([]any); ok {
				args[arg.key] = append(list, more...)
			} else {
				args[arg.key] = append(list, value)
			}
		default:
			return nil, usage(help, "argument %q of tool %q is given twice", arg.key, tool)
		}
	}
	for _, name := range s.Required {
		if _, ok := args[name]; !ok {
			return nil, usage(help, "tool %q needs the argument %q", tool, name)
		}
	}
	return args, nil
}

// value converts one argument according to the schema.
func (s *schema) value(arg argument) (any, error) {
	if arg.json != nil {
		return decode(arg.json)
	}
	types := s.types()
	may := func(t string) bool { return slices.Contains(types, t) }
	text := arg.text
	if len(s.Enum) > 0 {
		for _, v := range s.Enum {
			if fmt.Sprint(v) == text {
				return v, nil
			}
		}
		choices := strings.Split(s.kind(), "|")
		if near := nearest.Of(text, choices); near != "" {
			return nil, fmt.Errorf("must be one of %s; did you mean %s?", strings.Join(choices, ", "), near)
		}
		return nil, fmt.Errorf("must be one of %s, got %q", strings.Join(choices, ", "), text)
	}
	trimmed := strings.TrimSpace(text)
	if may("boolean") && (trimmed == "true" || trimmed == "false") {
		return trimmed == "true", nil
	}
	if may("null") && trimmed == "null" {
		return nil, nil
	}
	if may("integer") || may("number") {
		if number, err := decode([]byte(trimmed)); err == nil {
			if n, ok := number.(json.Number); ok && (may("number") || whole(n)) {
				return n, nil
			}
		}
	}
	if may("object") && strings.HasPrefix(trimmed, "{") || may("array") && strings.HasPrefix(trimmed, "[") {
		if v, err := decode([]byte(trimmed)); err == nil || !may("string") {
			return v, err
		}
	}
	switch {
	case may("array"):
		items := s.Items
		if items == nil {
			items = &schema{}
		}
		items.root = s.root
		one, err := items.resolve().value(argument{key: arg.key, text: text})
		if err != nil {
			return nil, err
		}
		return []any{one}, nil
	case len(types) == 0, may("string"):
		return text, nil
	}
	for i, t := range types {
		article := "a "
		if t != "" && strings.Contains("aeiou", t[:1]) { // the type may be any text
			article = "an "
		}
		types[i] = article + t
	}
	return nil, fmt.Errorf("%q is not %s", text, strings.Join(types, " or "))
}

func whole(n json.Number) bool {
	_, err := strconv.ParseInt(n.String(), 10, 64)
	return err == nil
}

// decode decodes JSON and keeps the spelling of numbers.
func decode(b []byte) (v any, err error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	if dec.More() {
		return nil, fmt.Errorf("unexpected text after the value")
	}
	return v, nil
}
