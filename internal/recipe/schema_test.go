package recipe

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
)

func TestSchema_FileIsCurrent(t *testing.T) {
	want, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	if have, err := os.ReadFile("../../docs/glovebox.schema.json"); err != nil || !bytes.Equal(have, want) {
		t.Errorf("docs/glovebox.schema.json is not what go generate ./internal/recipe writes: %v", err)
	}
}

// An editor accepts what Parse accepts, and marks the mistakes that a schema can express.
func TestSchema_Validates(t *testing.T) {
	b, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	for text, ok := range map[string]bool{
		`{"template": {"data": {"run": ["x"], "env": {"A": "b"}, "flavor": "small"}}}`: true,
		`{"template": {"data": {}}}`:                 true,
		`{"template": {"data": {"rum": ["x"]}}}`:     false,
		`{"template": {"data": {"run": "x"}}}`:       false,
		`{"template": {"data": {"flavor": "huge"}}}`: false,
		`{"template": {"Data": {}}}`:                 false,
		`{"templates": {}}`:                          false,
	} {
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		if err := r.Validate(v); (err == nil) != ok {
			t.Errorf("%s: %v, want valid: %t", text, err, ok)
		}
	}
}
