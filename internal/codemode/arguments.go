package codemode

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/glovebox-dev/glovebox/internal/nearest"
)

// maxValues bounds the values of a call: each takes far more memory decoded than encoded.
const maxValues = 50_000

// checkJSON refuses bytes of a box that would take far more memory than they have.
func checkJSON(b []byte) error {
	if !utf8.Valid(b) {
		return errors.New("the call is not UTF-8")
	}
	if countValues(b) > maxValues {
		return fmt.Errorf("the call has more than %d values: pass large data in parts", maxValues)
	}
	return nil
}

// countValues returns an upper bound of the values in a JSON document, less one.
func countValues(b []byte) (n int) {
	quoted := false
	for i := 0; i < len(b); i++ {
		switch {
		case quoted && b[i] == '\\':
			i++ // the next byte does not end the string
		case b[i] == '"':
			quoted = !quoted
		case !quoted && (b[i] == ',' || b[i] == '[' || b[i] == '{'):
			n++
		}
	}
	return n
}

// errNotJSON reports arguments that no program can mean.
var errNotJSON = errors.New("the arguments are not valid JSON")

// checkNames returns an error if an object in a JSON document has a name twice. Parsers
// disagree about such objects: a person could approve one value, and the server use the
// other.
func checkNames(document []byte) error {
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	var open []map[string]bool // names of each open object; nil for an array
	named := false             // the next token in the innermost object is a value
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return errNotJSON
		}
		inObject := len(open) > 0 && open[len(open)-1] != nil
		switch token := token.(type) {
		case json.Delim:
			switch token {
			case '{':
				open, named = append(open, make(map[string]bool)), false
			case '[':
				open = append(open, nil)
			default:
				open, named = open[:len(open)-1], false
			}
			continue
		case string:
			if inObject && !named {
				if open[len(open)-1][token] {
					return fmt.Errorf("the arguments have the name %q twice in one object", brief(token))
				}
				open[len(open)-1][token], named = true, true
				continue
			}
		}
		named = false
	}
}

// arguments returns the arguments of a call, checked against the tool's schema.
func (b *Broker) arguments(t Tool, in toolCall) (json.RawMessage, error) {
	arguments := bytes.TrimSpace(in.Arguments)
	if len(arguments) == 0 || string(arguments) == "null" {
		arguments = []byte("{}")
	}
	if arguments[0] != '{' {
		return nil, &Error{Code: InvalidArguments, Message: "the arguments are not an object with names and values"}
	}
	if err := checkNames(arguments); err != nil {
		return nil, &Error{Code: InvalidArguments, Message: err.Error()}
	}
	d := b.declarations.of(t.Tool)
	if len(in.Words) > 0 {
		var members map[string]json.RawMessage
		if err := json.Unmarshal(arguments, &members); err != nil {
			return nil, &Error{Code: InvalidArguments, Message: errNotJSON.Error()}
		}
		for name, word := range in.Words {
			value, err := convertWord(d.input, name, word)
			if err != nil {
				return nil, err
			}
			members[name] = value
		}
		encoded, err := json.Marshal(members)
		if err != nil {
			return nil, fmt.Errorf("encode arguments: %w", err)
		}
		if arguments = encoded; countValues(arguments) > maxValues {
			return nil, &Error{Code: InvalidArguments, Message: fmt.Sprintf("the arguments have more than %d values: pass large data in parts", maxValues)}
		}
		if err := checkNames(arguments); err != nil {
			return nil, &Error{Code: InvalidArguments, Message: err.Error()}
		}
	}
	if !d.checkable(arguments) {
		return arguments, missing(d.input, arguments)
	}
	var instance map[string]any
	if err := json.Unmarshal(arguments, &instance); err != nil {
		return nil, &Error{Code: InvalidArguments, Message: errNotJSON.Error()}
	}
	if d.validator.Validate(instance) != nil {
		return nil, &Error{Code: InvalidArguments, Message: safe(violationText(d.input, instance, unknownNames(d.input, instance)+nullNames(d.input, instance)))}
	}
	if name, near := misspelt(d.input, instance); name != "" {
		return nil, &Error{Code: InvalidArguments, Message: fmt.Sprintf("the tool has no argument %q; did you mean %s?", brief(name), near)}
	}
	return arguments, nil
}

// missing returns an error if arguments that are too costly to check, or whose schema is, lack a
// required one.
func missing(schema *jsonschema.Schema, arguments json.RawMessage) error {
	if schema == nil || len(schema.Required) == 0 {
		return nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(arguments, &members); err != nil {
		return &Error{Code: InvalidArguments, Message: errNotJSON.Error()}
	}
	text := ""
	for _, name := range schema.Required {
		if _, given := members[name]; !given && len(text) < 500 {
			text += "; missing " + pathName(name)
		}
	}
	if text == "" {
		return nil
	}
	given := make(map[string]any, len(members))
	for name := range members {
		given[name] = true
	}
	return &Error{Code: InvalidArguments, Message: safe("invalid arguments: " + strings.TrimPrefix(text, "; ") + unknownNames(schema, given))}
}

// hintFor adds to the error of a tool that ran and failed that it got arguments which it does not
// declare: it has probably ignored them.
func (b *Broker) hintFor(t Tool, arguments json.RawMessage, err error) error {
	e, ok := errors.AsType[*Error](err)
	d := b.declarations.of(t.Tool)
	if !ok || e.Code != ToolFailed || len(d.names) == 0 || d.input.AdditionalProperties != nil || len(d.input.PatternProperties) > 0 {
		return err // the tool takes any names, or says which
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(arguments, &members) != nil {
		return err
	}
	undeclared := make(map[string]any)
	for name := range members {
		if !d.names[name] {
			undeclared[name] = true
		}
	}
	if len(undeclared) == 0 {
		return err
	}
	hinted := *e
	hinted.Message = safe(e.Message) + safe(unknownNames(d.input, undeclared))
	return &hinted
}

// maxCompared bounds the comparisons of names that a program gives with those that a tool or a
// server declares: each takes some microseconds, and both may give thousands.
const maxCompared = 2000

// A speller knows names, and suggests one for a misspelt one. After maxCompared comparisons it
// suggests nothing.
type speller struct {
	known []string
	made  int // comparisons
}

func (s *speller) near(word string) string {
	if s.made >= maxCompared {
		return ""
	}
	s.made += len(s.known)
	return nearest.Of(word, s.known)
}

// misspelt returns an argument that a schema permits without declaring it, and the
// declared argument that it probably stands for. Most servers ignore arguments that they
// do not know, and the program would not notice.
func misspelt(schema *jsonschema.Schema, instance map[string]any) (name, near string) {
	if schema.AdditionalProperties != nil || len(schema.PatternProperties) > 0 || schema.Ref != "" ||
		len(schema.AllOf)+len(schema.AnyOf)+len(schema.OneOf) > 0 || schema.If != nil || len(schema.DependentSchemas) > 0 {
		return "", "" // other arguments are declared
	}
	known := speller{known: sortedKeys(schema.Properties)}
	for _, name := range sortedKeys(instance) {
		if schema.Properties[name] != nil {
			continue
		}
		if near := known.near(name); near != "" {
			if _, given := instance[near]; !given {
				return name, near
			}
		}
	}
	return "", ""
}

// nullNames names the optional arguments that are null and may not be.
func nullNames(schema *jsonschema.Schema, instance map[string]any) string {
	text := ""
	for _, name := range sortedKeys(instance) {
		p := schema.Properties[name]
		if instance[name] != nil || p == nil || slices.Contains(schema.Required, name) || p.Type == "" || p.Type == "null" || len(text) > 500 {
			continue
		}
		text += fmt.Sprintf("; leave out %q instead of passing None or null", brief(name))
	}
	return text
}

// unknownNames names the arguments that the schema does not have, and what they may be
// misspellings of.
func unknownNames(schema *jsonschema.Schema, instance map[string]any) string {
	known := speller{known: sortedKeys(schema.Properties)}
	text := ""
	for _, name := range sortedKeys(instance) {
		if schema.Properties[name] == nil && len(text) < 500 {
			text += fmt.Sprintf("; the tool has no argument %q%s", brief(name), didYouMean(known.near(name)))
		}
	}
	return text
}

// convertWord converts text of the shell to the type that the schema has for it.
func convertWord(schema *jsonschema.Schema, name, word string) (json.RawMessage, error) {
	typ := ""
	if schema != nil && schema.Properties[name] != nil {
		typ = schema.Properties[name].Type
	}
	text, err := json.Marshal(word)
	if err != nil {
		return nil, fmt.Errorf("encode argument: %w", err)
	}
	raw := json.RawMessage(strings.TrimSpace(word))
	switch typ {
	case "string":
		return text, nil
	case "":
		if json.Valid(raw) {
			return raw, nil
		}
		return text, nil
	}
	if !json.Valid(raw) {
		return nil, &Error{Code: InvalidArguments, Message: fmt.Sprintf("%s: expected %s, got %q", pathName(name), typeWords[typ], brief(word))}
	}
	return raw, nil
}
