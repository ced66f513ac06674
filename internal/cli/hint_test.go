package cli

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/box/image/oci"
	"github.com/glovebox-dev/glovebox/internal/recipe"
)

// Each problem of a registry has its own remedy; an unknown one has none.
func TestExplainImage_Registries(t *testing.T) {
	for problem, want := range map[oci.Problem]string{
		oci.Denied:      "check the name of the image; for a private one, type: docker login registry.example.org:5000",
		oci.Missing:     "check the name and the tag: registry.example.org:5000 has no such image",
		oci.Unreachable: "check the name registry.example.org:5000, and that this machine reaches it, with HTTPS_PROXY if it needs a proxy",
		oci.Other:       "",
	} {
		err := &oci.RegistryError{Registry: "registry.example.org:5000", Problem: problem, Err: errors.New("no")}
		if got := strings.Join(hints(explainImage(fmt.Errorf("pull image x: %w", err))), "|"); got != want {
			t.Errorf("problem %v: got the hint %q, want %q", problem, got, want)
		}
	}
}

// Only packages of Python have other names than their modules.
func TestSpelling_OnlyOfPython(t *testing.T) {
	if got := spelling(recipe.Python); !strings.Contains(got, "sklearn") {
		t.Errorf("Python: got %q", got)
	}
	if got := spelling(recipe.JavaScript); got != "" {
		t.Errorf("JavaScript: got %q, want nothing", got)
	}
}

// A wrong field of a recipe in flags is an error of the flag.
func TestRecipeErrors_NameTheFlag(t *testing.T) {
	o := &recipeOptions{net: []string{"pipy"}}
	for flag, r := range map[string]*recipe.Recipe{
		"--net: ": {Net: []string{"pipy"}}, "--box-network: ": {Network: []string{"pipy"}}, "--env: ": {Env: map[string]string{"PATH": "x"}},
	} {
		if _, err := o.buildOf("data", r, nil); err == nil || !strings.HasPrefix(err.Error(), flag) {
			t.Errorf("got %v, want %s", err, flag)
		}
	}
}
