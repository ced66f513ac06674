package codemode

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/glovebox-dev/glovebox/internal/visible"
)

// A Language is one that programs are written in.
type Language int

// The languages. Shell has signatures; types and declarations are those of Python.
const (
	Python Language = iota
	JavaScript
	Shell
)

// LanguageOf returns the language of a name such as "javascript"; Python for any other.
func LanguageOf(name string) Language {
	switch name {
	case "javascript":
		return JavaScript
	case "shell":
		return Shell
	}
	return Python
}

// comment begins a comment.
func (l Language) comment() string {
	if l == JavaScript {
		return "// "
	}
	return "# "
}

// A parameter is an argument of a tool.
type parameter struct {
	Name        string `json:"name"`
	Type        string `json:"type,omitempty"` // of the schema; "" if it has several or none
	Required    bool   `json:"required,omitempty"`
	Default     any    `json:"default,omitempty"`
	Description string `json:"description,omitempty"`

	schema *jsonschema.Schema
}

// parameters returns the arguments that a schema has, the required ones first; none for
// a nil schema.
func parameters(schema *jsonschema.Schema) (all []parameter) {
	if schema == nil {
		return nil
	}
	required := make(map[string]bool, len(schema.Required))
	for _, name := range schema.Required {
		required[name] = true
	}
	for _, name := range sortedKeys(schema.Properties) {
		s := schema.Properties[name]
		if s == nil {
			s = &jsonschema.Schema{}
		}
		p := parameter{Name: name, Type: s.Type, Required: required[name], Description: s.Description, schema: s}
		if len(s.Default) > 0 && json.Valid(s.Default) {
			p.Default = s.Default
		}
		all = append(all, p)
	}
	slices.SortStableFunc(all, func(a, b parameter) int {
		switch {
		case a.Required == b.Required:
			return 0
		case a.Required:
			return -1
		}
		return 1
	})
	return all
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// Bounds of a signature.
const (
	maxParameters = 50
	maxParameter  = 80  // bytes of a parameter's name
	maxType       = 400 // bytes of a type
	maxDepth      = 3   // nesting of a type
	maxMembers    = 20  // of an object type
	maxUnion      = 10  // alternatives of a type
	maxEnum       = 20  // values of a type
)

// A signatureWriter writes the signatures of tools for a language.
type signatureWriter struct {
	known    *declarations
	language Language
}

// signature returns how a program calls the tool, on one line.
func (s signatureWriter) signature(t Tool) string {
	if s.language == Shell {
		return s.commandLine(t)
	}
	params := s.parameterList(t)
	call := t.path()
	if s.language == JavaScript {
		return "await " + call + "(" + params + "): " + s.returnType(t)
	}
	return call + "(" + params + ") -> " + s.returnType(t)
}

// commandLine returns how the shell calls the tool, on one line.
func (s signatureWriter) commandLine(t Tool) string {
	parts := []string{"glovebox-tool", shellWord(t.dotted())}
	d := s.known.of(t.Tool)
	types := signatureWriter{s.known, Python}
	others := d.unknown
	for _, p := range d.parameters {
		if len(parts) == maxParameters || len(p.Name) > maxParameter || !isIdentifier(p.Name) {
			others = true
			continue
		}
		part := p.Name + "=<" + types.typeName(p.schema, 0) + ">"
		if !p.Required {
			part = "[" + part + "]"
		}
		parts = append(parts, part)
	}
	if others {
		parts = append(parts, "[NAME=VALUE]...")
	}
	return strings.Join(parts, " ")
}

// shellWord quotes a name for the shell if it needs quotes.
func shellWord(name string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_.-", r)
	}
	if strings.IndexFunc(name, func(r rune) bool { return !plain(r) }) < 0 {
		return name
	}
	return "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
}

func (s signatureWriter) parameterList(t Tool) string {
	var parts []string
	d := s.known.of(t.Tool)
	others := d.unknown // arguments that have no name in Python, or do not fit
	for _, p := range d.parameters {
		if len(parts) == maxParameters || len(p.Name) > maxParameter || s.language == Python && !isIdentifier(p.Name) {
			others = true
			continue
		}
		typ := s.typeName(p.schema, 0)
		switch {
		case s.language == JavaScript && p.Required:
			parts = append(parts, propertyName(p.Name)+": "+typ)
		case s.language == JavaScript:
			parts = append(parts, propertyName(p.Name)+"?: "+typ)
		case p.Required:
			parts = append(parts, p.Name+": "+typ)
		default:
			parts = append(parts, p.Name+": "+typ+" = "+defaultValue(p.Default))
		}
	}
	if s.language == JavaScript {
		if others {
			parts = append(parts, "[name: string]: any")
		}
		if len(parts) == 0 {
			return ""
		}
		return "{" + strings.Join(parts, ", ") + "}"
	}
	if len(parts) > 0 {
		parts = append([]string{"*"}, parts...)
	}
	if others {
		parts = append(parts, "**others: Any")
	}
	return strings.Join(parts, ", ")
}

// others returns a note about the arguments that Python cannot write as keywords; "" if
// there are none.
func others(all []parameter) string {
	var names []string
	for _, p := range all {
		if !isIdentifier(p.Name) && len(p.Name) <= maxParameter && len(names) < maxListed {
			names = append(names, quoted(p.Name))
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "to be passed in a dict: " + strings.Join(names, ", ")
}

// isIdentifier reports whether a name is written as it is after a dot or before =.
func isIdentifier(name string) bool { return identifier(name) == name }

func (s signatureWriter) returnType(t Tool) string { return s.typeName(s.known.of(t.Tool).output, 0) }

// propertyName quotes a name that is no identifier.
func propertyName(name string) string {
	if isIdentifier(name) {
		return name
	}
	return quoted(name)
}

// quoted returns s as a literal of JSON, Python and JavaScript, on one line.
func quoted(s string) string {
	b, err := json.Marshal(s) // escapes line separators of JavaScript, too
	if err != nil {
		return `""`
	}
	return string(b)
}

// defaultValue returns a default as Python writes it.
func defaultValue(v any) string {
	if raw, ok := v.(json.RawMessage); ok && len(raw) <= 100 {
		var value any
		if json.Unmarshal(raw, &value) == nil {
			if text, ok := literal(value, Python); ok {
				return text
			}
		}
	}
	return "..."
}

// literal returns a value that is no object and no list as the language writes it.
func literal(v any, l Language) (text string, ok bool) {
	switch v := v.(type) {
	case nil:
		return [2]string{"None", "null"}[l], true
	case bool:
		if l == Python {
			return map[bool]string{true: "True", false: "False"}[v], true
		}
		return fmt.Sprint(v), true
	case string:
		return quoted(v), true
	case float64:
		b, err := json.Marshal(v)
		return string(b), err == nil
	}
	return "", false
}

var typeNames = map[string][2]string{
	"string": {"str", "string"}, "integer": {"int", "number"}, "number": {"float", "number"}, "boolean": {"bool", "boolean"},
	"null": {"None", "null"}, "object": {"dict", "object"}, "array": {"list", "any[]"},
}

// typeName returns a schema as a type, on one line. A type that is too long is replaced
// by a simpler one.
func (s signatureWriter) typeName(schema *jsonschema.Schema, depth int) string {
	l := s.language
	unknown := [2]string{"Any", "any"}[l]
	if schema == nil {
		return unknown
	}
	name := ""
	if depth <= maxDepth || isLeaf(schema) {
		name = s.exactType(schema, depth)
	}
	switch {
	case name != "" && len(name) <= maxType:
		return name
	case typeNames[schema.Type][l] != "":
		return typeNames[schema.Type][l]
	}
	return unknown
}

// exactType returns "" for a schema that allows everything, or cannot be written.
func (s signatureWriter) exactType(schema *jsonschema.Schema, depth int) string {
	l := s.language
	if len(schema.Enum) > 0 && len(schema.Enum) <= maxEnum {
		return enumType(schema.Enum, l)
	}
	if schema.Const != nil {
		if name := enumType([]any{*schema.Const}, l); name != "" {
			return name
		}
	}
	if schema.Type == "array" && schema.Items != nil {
		item := s.typeName(schema.Items, depth+1)
		if l == Python {
			return "list[" + item + "]"
		}
		if strings.Contains(item, "|") {
			item = "(" + item + ")"
		}
		return item + "[]"
	}
	if schema.Type == "object" && len(schema.Properties) > 0 && len(schema.Properties) <= maxMembers {
		var parts []string
		for _, p := range parameters(schema) {
			name, typ := propertyName(p.Name), s.typeName(p.schema, depth+1)
			switch {
			case l == Python && p.Required:
				name = quoted(p.Name)
			case l == Python: // as in a TypedDict
				name, typ = quoted(p.Name), "NotRequired["+typ+"]"
			case !p.Required:
				name += "?"
			}
			parts = append(parts, name+": "+typ)
		}
		return "{" + strings.Join(parts, ", ") + "}"
	}
	if len(schema.AnyOf)+len(schema.OneOf) > maxUnion {
		return ""
	}
	var names []string
	add := func(name string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, any := range append(slices.Clone(schema.AnyOf), schema.OneOf...) {
		add(s.typeName(any, depth+1))
	}
	types := schema.Types
	if schema.Type != "" {
		types = []string{schema.Type}
	}
	for _, typ := range types {
		n, ok := typeNames[typ]
		switch {
		case ok && len(types) > 1 && (typ == "array" || typ == "object"): // with its elements or members
			one := &jsonschema.Schema{Type: typ, Items: schema.Items, Properties: schema.Properties, Required: schema.Required}
			add(s.typeName(one, depth))
		case ok:
			add(n[l])
		}
	}
	return strings.Join(names, " | ")
}

// enumType returns "" if a value has no literal.
func enumType(values []any, l Language) string {
	var parts []string
	for _, v := range values {
		text, ok := literal(v, l)
		if _, number := v.(float64); !ok || l == Python && number && strings.ContainsAny(text, ".e") {
			return "" // Python has no literal types of fractions
		}
		parts = append(parts, text)
	}
	if l == Python {
		return "Literal[" + strings.Join(parts, ", ") + "]"
	}
	return strings.Join(parts, " | ")
}

// oneLine returns text of a server on one line, of at most n bytes and an ellipsis.
func oneLine(s string, n int) string {
	if len(s) > 4*n { // it may begin with blanks
		s = s[:4*n]
	}
	s = visible.Text(strings.Join(strings.Fields(s), " "))
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "") + "…"
	}
	return s
}

// firstSentence returns the first sentence of a description on one line, of at most n
// bytes and an ellipsis.
func firstSentence(s string, n int) string {
	s = oneLine(s, n)
	for at := 0; ; {
		i := strings.Index(s[at:], ". ")
		if i < 0 {
			return s
		}
		word := s[at : at+i]
		at += i + 1
		word = strings.ToLower(word[strings.LastIndexAny(word, " (")+1:])
		if !slices.Contains(abbreviations, word) {
			return s[:at]
		}
	}
}

// abbreviations end in a period that ends no sentence.
var abbreviations = []string{"e.g", "i.e", "etc", "vs", "cf", "approx", "incl", "resp"}
