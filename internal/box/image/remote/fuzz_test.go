package remote

import (
	"slices"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/box/image"
)

// FuzzAnswers reads what programs of an image print in place of interpreters: it becomes
// paths inside of boxes, and texts that clients see.
func FuzzAnswers(f *testing.F) {
	f.Add(`{"minor":13,"version":"3.13.1","prefix":"/usr","libraries":["numpy"]}`)
	f.Add(`{"minor":13,"version":"3\n","prefix":"/usr/$(id)","libraries":["../x"]}`)
	f.Add("v22.1.0\n")
	f.Add("v\u202e1")
	f.Fuzz(func(t *testing.T, text string) {
		python, isPython := parsePython("/usr/bin/python3", text)
		node, isNode := parseNode("/usr/bin/node", text)
		for _, i := range []image.Interpreter{python, node} {
			if strings.Trim(i.Version, "0123456789.") != "" || len(i.Version) > 20 {
				t.Errorf("version %q", i.Version)
			}
			if strings.ContainsAny(i.Prefix, "\x00\n $\"'\\") || i.Prefix != "" && i.Prefix[0] != '/' {
				t.Errorf("prefix %q", i.Prefix)
			}
			for _, lib := range i.Libraries {
				if !slices.Contains(image.Libraries(), lib) {
					t.Errorf("library %q", lib)
				}
			}
		}
		if isPython && isNode {
			t.Errorf("%q is both an answer of Python and one of Node.js", text)
		}
	})
}
