package cli

import (
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/box/template"
)

// template ls lists built-in templates by name, but rm takes their keys: one name may have
// several.
func TestPickTemplates_NameOfBuiltIn(t *testing.T) {
	list := []template.Info{{Template: template.Template{Key: "0123456789abcdef", Spec: template.Spec{Name: "python", Flavor: "small"}}}}
	for key, want := range map[string]string{"python": "built-in templates are removed by their key", "node": "removed by their key", "words": `no template "words"`} {
		if _, err := pickTemplates(list, []string{key}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got the error %v, want %q in it", key, err, want)
		}
	}
	if got, err := pickTemplates(list, []string{"0123"}); err != nil || len(got) != 1 {
		t.Errorf("by the key: got %v, %v", got, err)
	}
}
