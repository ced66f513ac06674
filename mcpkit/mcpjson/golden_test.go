package mcpjson

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

// show renders a Config for review.
func show(c *Config) string {
	var b strings.Builder
	fmt.Fprintf(&b, "dialect %s\n", c.Dialect)
	if v := c.Client; v.ProtocolVersion != "" || v.Roots != nil {
		fmt.Fprintf(&b, "client %s %s %v\n", v.ProtocolVersion, v.Capabilities, v.Roots)
	}
	for _, in := range c.Inputs {
		fmt.Fprintf(&b, "input %s: %s %q default %q options %q password %v\n", in.ID, in.Type, in.Description, in.Default, in.Options, in.Password)
	}
	for _, s := range c.Servers {
		fmt.Fprintf(&b, "\n%s\n", s.Name)
		for _, f := range s.Explain() {
			fmt.Fprintf(&b, "  %s = %s", f.Path, f.Value)
			if o := f.Origin; o.Line > 0 {
				fmt.Fprintf(&b, "  (%d:%d %s)", o.Line, o.Column, o.Key)
			}
			if f.Origin.Note != "" {
				fmt.Fprintf(&b, " [%s]", f.Origin.Note)
			}
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "  needs %+v\n", s.Needs())
		for _, e := range s.Extra {
			fmt.Fprintf(&b, "  kept %s %s\n", e.Key, e.Value)
		}
	}
	for _, e := range c.Extra {
		fmt.Fprintf(&b, "kept %s %s\n", e.Key, e.Value)
	}
	for _, w := range c.Warnings {
		fmt.Fprintf(&b, "warning: %v\n", w)
	}
	return b.String()
}

// samples are files as written by clients.
func samples(t testing.TB) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(filepath.Join("testdata", "good"), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(path) != ".golden" {
			list = append(list, path)
		}
		return err
	})
	if err != nil || len(list) < 12 {
		t.Fatalf("found %d samples: %v", len(list), err)
	}
	return list
}

// The sample file of every dialect is read as its client reads it.
func TestD2_Samples(t *testing.T) {
	seen := make(map[Dialect]bool)
	for _, path := range samples(t) {
		t.Run(strings.TrimPrefix(filepath.ToSlash(path), "testdata/good/"), func(t *testing.T) {
			c, err := LoadFile(path, Options{})
			if err != nil {
				t.Fatal(err)
			}
			seen[c.Dialect] = true
			got, golden := show(c), path+".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	for _, d := range Dialects {
		if !seen[d] {
			t.Errorf("there is no sample of %s", d)
		}
	}
}
