package secret

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// valueOf returns the value that boxes of the local user use under a name.
func valueOf(s *Secrets, name string) string {
	for _, one := range s.of("").all {
		if one.Name == name {
			return one.value
		}
	}
	return ""
}

// TestReload_RotatedAndBroken: a rotated file gives the new value, and a bad one leaves that
// from before and says why.
func TestReload_RotatedAndBroken(t *testing.T) {
	path := writeSecret(t, "zq9zq9zq9-old")
	d := []Definition{{Name: "api", Hosts: []string{apiHost}, File: path}}
	s, err := Load(d)
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string, mode os.FileMode) {
		t.Helper()
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("zq9zq9zq9-new", 0o600)
	s, changed, kept, err := Reload(d, s)
	if err != nil || valueOf(s, "api") != "zq9zq9zq9-new" || !slices.Equal(changed, []string{"api"}) || len(kept) > 0 {
		t.Fatalf("after the rotation: %v, changed %q, kept %v", err, changed, kept)
	}
	for what, spoil := range map[string]func(){
		"empty":          func() { write("", 0o600) },
		"short":          func() { write("zq9", 0o600) },
		"readable":       func() { write("zq9zq9zq9-other", 0o644) },
		"removed":        func() { os.Remove(path) },
		"two lines":      func() { write("zq9zq9zq9\nzq9zq9zq9", 0o600) },
		"much too large": func() { write(strings.Repeat("zq9", 10_000), 0o600) },
	} {
		spoil()
		s, changed, kept, err = Reload(d, s)
		if err != nil || valueOf(s, "api") != "zq9zq9zq9-new" || len(changed) > 0 || len(kept) != 1 || strings.Contains(kept[0].Error(), "zq9") {
			t.Fatalf("a file that is %s: %v, changed %q, kept %v; want the value from before and a reason without a value", what, err, changed, kept)
		}
	}
	// A secret from another place has no value from before.
	other := []Definition{{Name: "api", Hosts: []string{apiHost}, File: path + ".other"}}
	if _, _, _, err := Reload(other, s); err == nil {
		t.Error("a definition that names another file, which is missing: no error")
	}
	added := append(d, Definition{Name: "b", Hosts: []string{gitHost}, File: path})
	if _, _, _, err := Reload(added, s); err == nil {
		t.Error("a new definition with a bad file: no error")
	}
}

// TestCheck_JudgesDefinitionsOfVariables: what is wrong in a definition is an error also where
// the variable with the value is not there, which is only noted.
func TestCheck_JudgesDefinitionsOfVariables(t *testing.T) {
	d := Definition{Name: "api", Hosts: []string{apiHost}, As: "TOKEN", Env: "GLOVEBOX_TEST_NO_SUCH_VARIABLE"}
	missing, err := Check([]Definition{d})
	if err != nil || len(missing) != 1 || !strings.Contains(missing[0].Error(), d.Env) {
		t.Errorf("a variable that is not set: %v, %v; want a note", missing, err)
	}
	for want, change := range map[string]func(*Definition){
		"is a pattern":        func(d *Definition) { d.Hosts = []string{"*.a.test"} },
		"more than a name":    func(d *Definition) { d.Hosts = []string{"http://a.test"} },
		"has another meaning": func(d *Definition) { d.As = "PATH" },
	} {
		bad := d
		change(&bad)
		if _, err := Check([]Definition{bad}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Check: %v, want an error with %q", err, want)
		}
	}
}
