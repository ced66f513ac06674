package codemode

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestCall_declared checks that the question to a person names the arguments that the tool
// declares, wherever in its schema.
func TestCall_declared(t *testing.T) {
	for name, tc := range map[string]struct{ schema, want string }{
		"properties":       {`{"type":"object","properties":{"path":{},"content":{"properties":{"inner":{}}}}}`, "content path"},
		"none":             {`{"type":"object"}`, ""},
		"alternatives":     {`{"anyOf":[{"properties":{"a":{}}},{"oneOf":[{"properties":{"b":{}}}]}],"allOf":[{"properties":{"c":{}}}]}`, "a b c"},
		"conditions":       {`{"if":{"properties":{"a":{}}},"then":{"properties":{"b":{}}},"else":{"properties":{"c":{}}},"dependentSchemas":{"a":{"properties":{"d":{}}}}}`, "a b c d"},
		"a definition":     {`{"$ref":"#/$defs/x","$defs":{"x":{"properties":{"a":{}}},"y":{"properties":{"b":{}}}}}`, "a"},
		"definitions":      {`{"allOf":[{"$ref":"#/definitions/x"}],"definitions":{"x":{"properties":{"a":{}}}}}`, "a"},
		"recursion":        {`{"properties":{"a":{}},"allOf":[{"$ref":"#"},{"$ref":"#/$defs/x"}],"$defs":{"x":{"anyOf":[{"$ref":"#/$defs/x"},{"properties":{"b":{}}}]}}}`, "a b"},
		"wide definitions": {`{"anyOf":[` + strings.Repeat(`{"$ref":"#/$defs/x"},`, 1000) + `{}],"$defs":{"x":{"anyOf":[` + strings.Repeat(`{"$ref":"#/$defs/y"},`, 1000) + `{}]},"y":{"properties":{"a":{}}}}}`, "a"},
		"a large schema":   {`{"properties":{"a":{"enum":[` + strings.Repeat(`1,`, maxSchemaValues) + `1]}}}`, ""},
	} {
		var asked []Request
		w := offering(t, Options{Policy: Policy{{Decision: Ask}}, Approve: func(_ context.Context, r Request) (bool, error) {
			asked = append(asked, r)
			return true, nil
		}}, tc.schema)
		if _, failure := w.call(t, w.Begin(Identity{}), "s.t", `{"a":1}`); failure != nil || len(asked) != 1 {
			t.Errorf("%s: asked %+v, got %+v", name, asked, failure)
			continue
		}
		got := asked[0].Declared
		if names := strings.Join(slices.Sorted(maps.Keys(got)), " "); names != tc.want || (got == nil) != (tc.want == "") {
			t.Errorf("%s: got %q, want %q", name, names, tc.want)
		}
	}
}
