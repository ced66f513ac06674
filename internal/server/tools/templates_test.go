package tools

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// The list of templates in a definition is bounded, and has the descriptions of their authors
// as one line of visible characters.
func TestWithTemplates_TextIsBounded(t *testing.T) {
	list := []Template{{Name: "a", Language: "python", Description: "x\x1b[31m\n\"y\"\u202e " + strings.Repeat("long ", 200)}}
	for i := range 200 {
		list = append(list, Template{Name: fmt.Sprintf("name-%d", i), Language: "javascript"})
	}
	for _, tool := range All() {
		def := WithTemplates(tool.Def, list)
		if changed := def != tool.Def; changed != (tool.Def.Name == "execute_code" || tool.Def.Name == "create_context") {
			t.Errorf("%s: lists the templates: %t", tool.Def.Name, changed)
		} else if !changed {
			continue
		}
		var schema struct {
			Properties map[string]struct{ Description string }
		}
		if err := json.Unmarshal(def.InputSchema.(json.RawMessage), &schema); err != nil {
			t.Fatalf("%s: %v", tool.Def.Name, err)
		}
		got := schema.Properties["template"].Description
		if len(got) > 2*maxListText || strings.ContainsAny(got, "\x1b\n\u202e") || !strings.Contains(got, "…), name-0 (javascript), ") || !strings.HasSuffix(got, " more") {
			t.Errorf("%s: got %q", tool.Def.Name, got)
		}
	}
}
