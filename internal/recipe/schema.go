package recipe

import (
	"encoding/json"
	"fmt"

	"github.com/google/jsonschema-go/jsonschema"
)

//go:generate go run ./docgen ../../docs/glovebox.schema.json

// Schema returns the JSON schema of a file with recipes, for editors.
func Schema() ([]byte, error) {
	s, err := jsonschema.For[File](nil)
	if err != nil {
		return nil, fmt.Errorf("describe recipes: %w", err)
	}
	s.Schema = "https://json-schema.org/draft/2020-12/schema"
	s.Title = "Recipes of Glovebox templates"
	of := s.Properties["template"].AdditionalProperties
	of.Types, of.Type = nil, "object" // not null
	s.Properties["template"].PropertyNames = &jsonschema.Schema{Pattern: fmt.Sprintf("^[a-z0-9][a-z0-9._-]{0,%d}$", maxName-1)}
	for name, values := range map[string][]any{"language": {Python, JavaScript}, "flavor": {"small", "medium", "large"}} {
		of.Properties[name].Enum = values
	}
	for _, p := range of.Properties {
		if len(p.Types) > 0 { // null or
			p.Type, p.Types = p.Types[len(p.Types)-1], nil
		}
	}
	b, err := json.MarshalIndent(s, "", "  ")
	return append(b, '\n'), err
}
