package codemode

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// An error about arguments has the path, what is expected and what was given, and no words of a
// validator.
func TestViolation_plain(t *testing.T) {
	const schema = `{"type":"object","required":["a"],"additionalProperties":false,"$defs":{"point":{"type":"object","required":["x"],"properties":{"x":{"type":"number"}}}},"properties":{
		"a":{"type":"integer","minimum":1,"maximum":9},"s":{"type":"string","minLength":2,"maxLength":3,"pattern":"^[a-z]*$"},"e":{"enum":["r","w",1]},"l":{"type":"array","minItems":1,"maxItems":2,"items":{"type":"string"}},
		"o":{"type":"object","additionalProperties":false,"properties":{"deep":{"type":"object","properties":{"my key":{"type":"boolean"}}}}},
		"u":{"anyOf":[{"type":"string"},{"type":"array","items":{"type":"string"}},{"type":"null"}]},"n":{"type":["integer","null"]},"p":{"$ref":"#/$defs/point"},"c":{"const":"x"},"m":{"type":"number","multipleOf":5},"odd":{"not":{"type":"string"}}}}`
	var parsed *jsonschema.Schema
	if err := json.Unmarshal([]byte(schema), &parsed); err != nil {
		t.Fatal(err)
	}
	validator := resolve(parsed)
	if validator == nil {
		t.Fatal("the schema is not valid")
	}
	for arguments, want := range map[string]string{
		`{}`:                                  "missing a: expected an integer",
		`{"a":"x"}`:                           `a: expected an integer, got "x"`,
		`{"a":1.5}`:                           "a: expected an integer, got 1.5",
		`{"a":0}`:                             "a: expected at least 1, got 0",
		`{"a":10}`:                            "a: expected at most 9, got 10",
		`{"a":1,"s":"x"}`:                     "s: expected at least 2 characters, got 1",
		`{"a":1,"s":"xxxx"}`:                  "s: expected at most 3 characters, got 4",
		`{"a":1,"s":"XY"}`:                    `s: expected text that matches ^[a-z]*$, got "XY"`,
		`{"a":1,"e":"q"}`:                     `e: expected one of "r", "w", 1, got "q"`,
		`{"a":1,"l":[]}`:                      "l: expected at least 1 item, got 0",
		`{"a":1,"l":["x",null]}`:              "l[1]: expected a string, got null",
		`{"a":1,"l":"x"}`:                     `l: expected a list, got "x"`,
		`{"a":1,"o":{"deep":{"my key":"x"}}}`: `o.deep["my key"]: expected true or false, got "x"`,
		`{"a":1,"o":{"dep":1}}`:               `o: there is no "dep"; did you mean deep?`,
		`{"a":1,"u":5}`:                       "u: expected a string or a list or null, got 5",
		`{"a":1,"u":{}}`:                      "u: expected a string or a list or null, got an object",
		`{"a":1,"n":"x"}`:                     `n: expected an integer or null, got "x"`,
		`{"a":1,"p":{}}`:                      "missing p.x: expected a number",
		`{"a":1,"c":"y"}`:                     `c: expected "x", got "y"`,
		`{"a":1,"m":7}`:                       "m: expected a multiple of 5, got 7",
		`{"a":1,"zz":1}`:                      `the tool has no argument "zz"`,
		`{"s":1,"l":["x","y","z"]}`:           `missing a: expected an integer; l: expected at most 2 items, got 3; s: expected a string, got 1`,
		`{"a":1,"odd":"x"}`:                   `the arguments do not fit the schema of the tool: read it with tools.describe(NAME, detail="schema")`,
	} {
		var instance map[string]any
		if err := json.Unmarshal([]byte(arguments), &instance); err != nil {
			t.Fatal(err)
		}
		if validator.Validate(instance) == nil {
			t.Errorf("%s fits", arguments)
		}
		if got := strings.TrimPrefix(violationText(parsed, instance, unknownNames(parsed, instance)), "invalid arguments: "); got != want {
			t.Errorf("%s: got %q, want %q", arguments, got, want)
		}
	}
}

// The work for an error is bounded, also where alternatives are nested and texts are long.
func TestViolation_bounded(t *testing.T) {
	alternatives := `{"type":"string","minLength":5000000,"pattern":"(a*)*b"}`
	for range 6 {
		alternatives = `{"anyOf":[` + strings.TrimSuffix(strings.Repeat(alternatives+",", 4), ",") + `]}`
	}
	var schema *jsonschema.Schema
	if err := json.Unmarshal([]byte(`{"properties":{"x":`+alternatives+`}}`), &schema); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	text := violationText(schema, map[string]any{"x": strings.Repeat("a", 1<<20)}, "")
	if took := time.Since(begun); took > 5*time.Second || len(text) > 2000 {
		t.Errorf("%d bytes after %v", len(text), took)
	}
}

// TestArguments_unchecked checks that required arguments are asked for although the schema is one
// that is not checked here, since it refers to itself.
func TestArguments_unchecked(t *testing.T) {
	b := New(Options{Servers: noServers{}})
	tool := Tool{Server: "s", Tool: &mcp.Tool{Name: "sum", InputSchema: json.RawMessage(
		`{"type":"object","properties":{"a":{"type":"number"},"b":{"$ref":"#"}},"required":["a","b"]}`)}}
	_, err := b.arguments(tool, toolCall{Arguments: json.RawMessage(`{"c":3}`)})
	const want = `invalid arguments: missing a; missing b; the tool has no argument "c"`
	if e, ok := errors.AsType[*Error](err); !ok || e.Code != InvalidArguments || e.Message != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, err := b.arguments(tool, toolCall{Arguments: json.RawMessage(`{"a":3,"b":{}}`)}); err != nil {
		t.Errorf("got %v", err)
	}
}

// TestHintFor checks that a failure of a tool names the arguments that the tool does not declare.
func TestHintFor(t *testing.T) {
	b := New(Options{Servers: noServers{}})
	tool := Tool{Server: "s", Tool: &mcp.Tool{Name: "find", InputSchema: json.RawMessage(`{"type":"object","properties":{"query":{"type":"string"}}}`)}}
	failed := &Error{Code: ToolFailed, Message: "nothing to search for"}
	for arguments, want := range map[string]string{
		`{"words":"x"}`: `nothing to search for; the tool has no argument "words"`,
		`{"query":"x"}`: "nothing to search for",
		`{}`:            "nothing to search for",
	} {
		if got := b.hintFor(tool, json.RawMessage(arguments), failed); got.Error() != want {
			t.Errorf("%s: got %q, want %q", arguments, got, want)
		}
	}
}

// longNames returns names of 40 bytes that a tool may declare.
func longNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s%05d", strings.Repeat("abcde", 7), i)
	}
	return names
}

// TestMisspelt_ManyNames: a program that gives thousands of names gets no suggestion for each.
func TestMisspelt_ManyNames(t *testing.T) {
	schema := &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{"zoom_level": {}}}
	for _, name := range longNames(99) {
		schema.Properties[name] = &jsonschema.Schema{}
	}
	instance := map[string]any{"zoom_levle": 1}
	if name, near := misspelt(schema, instance); name != "zoom_levle" || near != "zoom_level" {
		t.Errorf("got %q and %q", name, near)
	}
	if text := unknownNames(schema, instance); !strings.Contains(text, "did you mean zoom_level?") {
		t.Errorf("got %q", text)
	}
	for i := range maxCompared / len(schema.Properties) {
		instance[fmt.Sprintf("other%d", i)] = 1
	}
	if name, near := misspelt(schema, instance); name != "" {
		t.Errorf("after %d names: got %q and %q, want no more comparisons", len(instance)-1, name, near)
	}
}

// TestViolation_TrialsSuggestNothing: which of several alternatives a value fits is found without a
// search for the names that it may have meant.
func TestViolation_TrialsSuggestNothing(t *testing.T) {
	closed := &jsonschema.Schema{Not: &jsonschema.Schema{}}
	other := &jsonschema.Schema{Type: "object", AdditionalProperties: closed, Properties: make(map[string]*jsonschema.Schema)}
	for _, name := range longNames(100) {
		other.Properties[name] = &jsonschema.Schema{}
	}
	given := strings.Repeat("xy", 20)
	within := func(s *jsonschema.Schema) *jsonschema.Schema {
		return &jsonschema.Schema{Properties: map[string]*jsonschema.Schema{"o": s}}
	}
	schema := &jsonschema.Schema{Properties: map[string]*jsonschema.Schema{"l": {Items: &jsonschema.Schema{AnyOf: []*jsonschema.Schema{within(other), within(&jsonschema.Schema{})}}}}}
	const items = 1000
	var list []any
	for range items {
		list = append(list, map[string]any{"o": map[string]any{given: 1.0}})
	}
	begun := time.Now()
	suggest(given, sortedKeys(other.Properties))
	one := time.Since(begun)
	begun = time.Now()
	f := violations{root: schema, steps: maxViolationSteps}
	f.check(schema, map[string]any{"l": list}, "")
	if took := time.Since(begun); took > items/4*one || len(f.found) > 0 {
		t.Errorf("found %q in %s; a suggestion takes %s", f.found, took, one)
	}

	// Nor are there more suggestions than the error has room for.
	value := make(map[string]any)
	for i := range items {
		value[given+strconv.Itoa(i)] = 1.0
	}
	begun = time.Now()
	f = violations{root: schema, steps: maxViolationSteps}
	f.check(other, value, "o")
	if took := time.Since(begun); took > items/4*one || len(f.found) != maxViolations {
		t.Errorf("found %q in %s; a suggestion takes %s", f.found, took, one)
	}
}
