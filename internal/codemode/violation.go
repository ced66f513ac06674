package codemode

import (
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/glovebox-dev/glovebox/internal/plural"
)

const (
	// maxViolations bounds the violations in an error, and maxViolationSteps the work to find them:
	// the arguments are refused either way.
	maxViolations, maxViolationSteps = 5, 20_000
	// bytesOfStep is the text that takes about as long to check as another value.
	bytesOfStep = 50
	// maxAlternatives bounds the alternatives in "expected".
	maxAlternatives = 8
)

// violationText says where arguments do not fit a schema which the validator has found them not to
// fit: at which path, what is expected, and what was given. more is known besides.
func violationText(schema *jsonschema.Schema, arguments map[string]any, more string) string {
	f := violations{root: schema, steps: maxViolationSteps}
	f.check(schema, arguments, "")
	switch {
	case len(f.found) > 0:
		return "invalid arguments: " + strings.Join(f.found, "; ") + more
	case more != "":
		return "invalid arguments: " + strings.TrimPrefix(more, "; ")
	}
	return `the arguments do not fit the schema of the tool: read it with tools.describe(NAME, detail="schema")`
}

// violations collects where a value does not fit a schema. It knows the common parts of JSON Schema.
type violations struct {
	root  *jsonschema.Schema
	steps int  // that may still be made
	trial bool // only whether something is found counts
	found []string
}

func (m *violations) add(path, format string, args ...any) {
	if len(m.found) < maxViolations {
		if path == "" {
			path = "the arguments"
		}
		m.found = append(m.found, path+": "+fmt.Sprintf(format, args...))
	}
}

// pathName returns a name as the first part of a path.
func pathName(name string) string { return strings.TrimPrefix(joined("", name), ".") }

// joined appends a name to a path.
func joined(path, name string) string {
	if identifier(name) == name {
		return strings.TrimPrefix(path+"."+name, ".")
	}
	return path + "[" + strconv.Quote(brief(name)) + "]"
}

// fits reports whether a value fits a schema, as far as check knows.
func (m *violations) fits(schema *jsonschema.Schema, value any) bool {
	trial := violations{root: m.root, steps: m.steps, trial: true}
	trial.check(schema, value, "")
	m.steps = trial.steps
	return len(trial.found) == 0
}

// check adds where a value does not fit a schema.
func (m *violations) check(schema *jsonschema.Schema, value any, path string) {
	if m.steps--; schema == nil || m.steps <= 0 || len(m.found) >= maxViolations {
		return
	}
	if schema.Ref != "" {
		m.check(m.definition(schema.Ref), value, path)
	}
	switch alternatives := slices.Concat(schema.AnyOf, schema.OneOf); {
	case !typeFits(schema, value):
		m.add(path, "expected %s, got %s", expected(schema), given(value))
		return
	case len(schema.Enum) > 0 && !contains(schema.Enum, value), schema.Const != nil && !contains([]any{*schema.Const}, value):
		m.add(path, "expected %s, got %s", expected(schema), given(value))
		return
	case len(alternatives) > 0:
		if !slices.ContainsFunc(alternatives, func(one *jsonschema.Schema) bool { return m.fits(one, value) }) {
			m.add(path, "expected %s, got %s", m.anyOf(alternatives), given(value))
			return
		}
	}
	for _, part := range schema.AllOf {
		m.check(part, value, path)
	}
	switch value := value.(type) {
	case string:
		m.checkText(schema, value, path)
	case float64:
		m.checkNumber(schema, value, path)
	case []any:
		m.checkList(schema, value, path)
	case map[string]any:
		m.checkObject(schema, value, path)
	}
}

// definition returns the schema that a reference within the schema means; nil if it is elsewhere.
func (m *violations) definition(ref string) *jsonschema.Schema {
	pointer, ok := strings.CutPrefix(ref, "#")
	if !ok {
		return nil
	}
	if plain, err := url.PathUnescape(pointer); err == nil {
		pointer = plain
	}
	at := m.root
	parts := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	for pointer != "" && at != nil && len(parts) > 0 {
		m.steps--
		key := parts[0]
		if parts = parts[1:]; key == "items" && at.Items != nil {
			at = at.Items
			continue
		}
		if len(parts) == 0 {
			return nil
		}
		name := pointerEscapes.Replace(parts[0])
		parts = parts[1:]
		list := map[string][]*jsonschema.Schema{"allOf": at.AllOf, "anyOf": at.AnyOf, "oneOf": at.OneOf, "prefixItems": at.PrefixItems}[key]
		if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(list) {
			at = list[i]
			continue
		}
		at = map[string]map[string]*jsonschema.Schema{"$defs": at.Defs, "definitions": at.Definitions, "properties": at.Properties}[key][name]
	}
	return at
}

func (m *violations) checkText(schema *jsonschema.Schema, value, path string) {
	m.steps -= len(value) / bytesOfStep
	n := utf8.RuneCountInString(value)
	switch {
	case schema.MinLength != nil && n < *schema.MinLength:
		m.add(path, "expected at least %s, got %d", plural.N(*schema.MinLength, "character"), n)
	case schema.MaxLength != nil && n > *schema.MaxLength:
		m.add(path, "expected at most %s, got %d", plural.N(*schema.MaxLength, "character"), n)
	case schema.Pattern != "":
		if re, err := regexp.Compile(schema.Pattern); err == nil && !re.MatchString(value) {
			m.add(path, "expected text that matches %s, got %s", brief(schema.Pattern), given(value))
		}
	}
}

func (m *violations) checkNumber(schema *jsonschema.Schema, value float64, path string) {
	switch {
	case schema.Minimum != nil && value < *schema.Minimum:
		m.add(path, "expected at least %v, got %s", *schema.Minimum, given(value))
	case schema.Maximum != nil && value > *schema.Maximum:
		m.add(path, "expected at most %v, got %s", *schema.Maximum, given(value))
	case schema.ExclusiveMinimum != nil && value <= *schema.ExclusiveMinimum:
		m.add(path, "expected more than %v, got %s", *schema.ExclusiveMinimum, given(value))
	case schema.ExclusiveMaximum != nil && value >= *schema.ExclusiveMaximum:
		m.add(path, "expected less than %v, got %s", *schema.ExclusiveMaximum, given(value))
	case schema.MultipleOf != nil && *schema.MultipleOf > 0 && math.Mod(value, *schema.MultipleOf) != 0:
		m.add(path, "expected a multiple of %v, got %s", *schema.MultipleOf, given(value))
	}
}

func (m *violations) checkList(schema *jsonschema.Schema, value []any, path string) {
	switch {
	case schema.MinItems != nil && len(value) < *schema.MinItems:
		m.add(path, "expected at least %s, got %d", plural.N(*schema.MinItems, "item"), len(value))
	case schema.MaxItems != nil && len(value) > *schema.MaxItems:
		m.add(path, "expected at most %s, got %d", plural.N(*schema.MaxItems, "item"), len(value))
	}
	if schema.UniqueItems { // of few values, see checkable
		if first, again := repeated(value); again > 0 {
			m.add(path, "expected different items, got the same ones at %d and %d", first, again)
		}
	}
	for i, one := range value {
		item := schema.Items
		if i < len(schema.PrefixItems) {
			item = schema.PrefixItems[i]
		}
		if item == nil || m.steps <= 0 {
			break
		}
		m.check(item, one, fmt.Sprintf("%s[%d]", path, i))
	}
}

// repeated returns the places of two equal items; zeroes if there are none.
func repeated(list []any) (first, again int) {
	seen := make(map[string]int, len(list))
	for i, one := range list {
		b, err := json.Marshal(one)
		if err != nil {
			continue
		}
		if at, there := seen[string(b)]; there {
			return at, i
		}
		seen[string(b)] = i
	}
	return 0, 0
}

func (m *violations) checkObject(schema *jsonschema.Schema, value map[string]any, path string) {
	m.steps -= len(value)
	for _, name := range schema.Required {
		if _, there := value[name]; there {
			continue
		}
		want := ""
		if p := schema.Properties[name]; p != nil {
			want = ": expected " + expected(p)
		}
		if m.steps--; len(m.found) < maxViolations {
			m.found = append(m.found, "missing "+joined(path, name)+want)
		}
	}
	for _, name := range sortedKeys(value) {
		if m.steps <= 0 || len(m.found) >= maxViolations {
			return
		}
		if p := schema.Properties[name]; p != nil {
			m.check(p, value[name], joined(path, name))
		} else if path != "" && falsy(schema.AdditionalProperties) && len(schema.PatternProperties) == 0 {
			near := ""
			if !m.trial { // it takes as long as many steps
				near = suggest(name, sortedKeys(schema.Properties))
			}
			m.add(path, "there is no %q%s", brief(name), near)
		}
	}
}

// falsy reports whether a schema is the one that nothing fits.
func falsy(s *jsonschema.Schema) bool {
	return s != nil && s.Not != nil && reflect.DeepEqual(s.Not, &jsonschema.Schema{})
}

func typesOf(s *jsonschema.Schema) []string {
	if s.Type != "" {
		return []string{s.Type}
	}
	return s.Types
}

// typeFits reports whether a value has one of the types of a schema.
func typeFits(s *jsonschema.Schema, value any) bool {
	types := typesOf(s)
	return len(types) == 0 || slices.ContainsFunc(types, func(t string) bool {
		switch v := value.(type) {
		case nil:
			return t == "null"
		case bool:
			return t == "boolean"
		case string:
			return t == "string"
		case float64:
			return t == "number" || t == "integer" && v == math.Trunc(v)
		case []any:
			return t == "array"
		case map[string]any:
			return t == "object"
		}
		return false
	})
}

func contains(all []any, value any) bool {
	return slices.ContainsFunc(all, func(one any) bool { return reflect.DeepEqual(one, value) })
}

// typeWords are the types of JSON Schema for people.
var typeWords = map[string]string{
	"string": "a string", "integer": "an integer", "number": "a number", "boolean": "true or false",
	"array": "a list", "object": "an object", "null": "null",
}

// expected says what fits a schema.
func expected(s *jsonschema.Schema) string {
	var all []string
	switch {
	case s.Const != nil:
		return given(*s.Const)
	case len(s.Enum) > 0:
		for _, one := range s.Enum {
			all = append(all, given(one))
		}
		return "one of " + either(all, ", ")
	}
	for _, t := range typesOf(s) {
		if word := typeWords[t]; word != "" {
			all = append(all, word)
		}
	}
	if len(all) == 0 {
		return "another value"
	}
	return either(all, " or ")
}

// anyOf says what fits one of several schemas.
func (m *violations) anyOf(all []*jsonschema.Schema) string {
	var words []string
	seen := make(map[string]bool)
	for _, one := range all {
		if d := m.definition(one.Ref); d != nil {
			one = d
		}
		if word := expected(one); !seen[word] {
			seen[word] = true
			words = append(words, word)
		}
	}
	return either(words, " or ")
}

func either(all []string, between string) string {
	if len(all) > maxAlternatives {
		all = append(all[:maxAlternatives:maxAlternatives], "…")
	}
	return strings.Join(all, between)
}

// given says what a program gave.
func given(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case string:
		return strconv.Quote(brief(v))
	case []any:
		return "a list of " + plural.N(len(v), "item")
	case map[string]any:
		return "an object"
	}
	b, err := json.Marshal(value)
	if err != nil {
		return "another value"
	}
	return brief(string(b))
}
