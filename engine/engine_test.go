package engine

import (
	"bufio"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// maxContractLines keeps the contract readable in one sitting.
const maxContractLines = 300

func TestContract_IsShort(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	lines := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			if line := strings.TrimSpace(s.Text()); line != "" && !strings.HasPrefix(line, "//") {
				lines++
			}
		}
	}
	if lines >= maxContractLines {
		t.Errorf("the contract has %d lines of code, want fewer than %d", lines, maxContractLines)
	}
}

// pausing is an engine with one ability.
type pausing struct{ Engine }

func (pausing) Pause(context.Context, string) error  { return nil }
func (pausing) Resume(context.Context, string) error { return nil }

// decorator hides the abilities of an engine unless As unwraps it.
type decorator struct{ Engine }

func (d decorator) Unwrap() Engine { return d.Engine }

// opaque hides them in any case.
type opaque struct{ Engine }

func TestAs_FindsAbilitiesThroughDecorators(t *testing.T) {
	for name, c := range map[string]struct {
		e    Engine
		want bool
	}{
		"the engine":              {pausing{}, true},
		"a decorator":             {decorator{pausing{}}, true},
		"a decorated decorator":   {decorator{decorator{pausing{}}}, true},
		"no engine":               {nil, false},
		"a decorator of nothing":  {decorator{}, false},
		"a wrapper that hides it": {decorator{opaque{pausing{}}}, false},
	} {
		if _, ok := As[Pauser](c.e); ok != c.want {
			t.Errorf("%s: found %t, want %t", name, ok, c.want)
		}
		if _, ok := As[Statser](c.e); ok {
			t.Errorf("%s: found an ability that no engine has", name)
		}
	}
}

func TestRootUnpack_CallsTheImageOnly(t *testing.T) {
	tree := &Tree{Dir: "/tree"}
	broken := errors.New("registry does not answer")
	image := func(tree *Tree, err error) *Image {
		return &Image{Digest: "sha256:" + strings.Repeat("00", 32), Unpack: func(context.Context) (*Tree, error) { return tree, err }}
	}
	for name, c := range map[string]struct {
		root Root
		want error
	}{
		"tree":                        {Root{Tree: tree}, nil},
		"image":                       {Root{Image: image(tree, nil)}, nil},
		"image that fails":            {Root{Image: image(nil, broken)}, broken},
		"image with a malformed tree": {Root{Image: image(&Tree{Dir: "x"}, nil)}, ErrInvalid},
		"image without Unpack":        {Root{Image: &Image{}}, ErrUnsupported},
	} {
		got, err := c.root.Unpack(t.Context())
		if !errors.Is(err, c.want) || (err == nil) != (got == tree) {
			t.Errorf("%s: got %v, %v; want error %v", name, got, err, c.want)
		}
	}
}
