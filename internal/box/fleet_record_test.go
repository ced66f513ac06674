package box

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestNote_ReadersLearnWhatIsDocumented: docs/threat-model.md says what the note at a Pod tells its
// readers, and the note has nothing else.
func TestNote_ReadersLearnWhatIsDocumented(t *testing.T) {
	b, err := os.ReadFile("../../docs/threat-model.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(b), "learns from the notes at the Pods")
	text, end, _ := strings.Cut(text, "Notes have no code, files, output or tokens.")
	if end == "" {
		t.Fatal("the document does not describe the records")
	}
	documented := map[string]string{
		"Owner": "the owner", "Kind": "the kind", "ID": "id", "Name": "name", "Description": "description", "Interpreter": "template",
		"Template": "template", "Flavor": "flavor", "Limits": "the hosts to which its network is limited", "Created": "when it was made", "Ran": "whether code has run", "Refused": "whether it was refused",
	}
	fields := reflect.TypeFor[fleetRecord]()
	for i := range fields.NumField() {
		name := fields.Field(i).Name
		if words := documented[name]; words == "" || !strings.Contains(text, words) {
			t.Errorf("the document says nothing of the record's %s (%q)", name, words)
		}
	}
}
