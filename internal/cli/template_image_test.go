package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/config"
)

// A recipe of a file names no file system outside of its directory, also through links; one in
// flags may.
func TestRecipeFrom_IsConfined(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "project")
	for _, d := range []string{"project/root", "priv"} {
		if err := os.MkdirAll(filepath.Join(top, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"project/app.tar", "priv/app.tar"} {
		if err := os.WriteFile(filepath.Join(top, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../priv", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	t.Chdir(top) // paths are those of the file
	file := filepath.Join(dir, "glovebox.toml")
	build := func(from string) (string, error) {
		if err := os.WriteFile(file, []byte("[template.x]\nrun = ['true']\nfrom = '"+from+"'\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		builds, err := (&recipeOptions{file: "project/glovebox.toml"}).builds(&config.Config{}, nil)
		if err != nil {
			return "", err
		}
		return builds[0].recipe.From, nil
	}
	for _, from := range []string{
		"dir:../priv", "dir:" + top + "/priv", "dir:link", "./link/app.tar", "../priv/app.tar", "oci:../priv:1", "docker-archive:link/app.tar:1",
		top + "/priv", "priv", "dir:/nowhere", "dir:../nowhere", "/nowhere",
	} {
		_, err := build(from)
		if err == nil || !strings.Contains(err.Error(), "project/glovebox.toml:3:1: ") || !strings.Contains(err.Error(), "outside of the directory of the recipe") || !strings.Contains(err.Error(), "--from") {
			t.Errorf("from %q: got the error %v, want one that names --from", from, err)
		}
	}
	for from, want := range map[string]string{
		"dir:root": "dir:" + dir + "/root", "dir:" + dir + "/root": "dir:" + dir + "/root", "./app.tar": dir + "/app.tar", "dir:none": "dir:" + dir + "/none",
		"docker-archive:app.tar:1": "docker-archive:" + dir + "/app.tar:1", "python:3.13-slim": "python:3.13-slim", "docker://a.example.org/b": "docker://a.example.org/b", "toolchain": "toolchain",
	} {
		if got, err := build(from); err != nil || got != want {
			t.Errorf("from %q: got %q, %v, want %q", from, got, err, want)
		}
	}
	if _, err := (&recipeOptions{from: "dir:" + top + "/priv", runs: []string{"true"}}).builds(&config.Config{}, []string{"x"}); err != nil {
		t.Errorf("in flags: %v", err)
	}
}

// A directory that contains the state directory is refused before anything is built: boxes of the
// template could not be made.
func TestRecipeFrom_ContainsTheState(t *testing.T) {
	root := t.TempDir()
	state := filepath.Join(root, "state")
	for _, d := range []string{"state", "bin"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	builds, err := (&recipeOptions{from: "dir:" + root, runs: []string{"true"}}).builds(&config.Config{}, []string{"x"})
	if err != nil {
		t.Fatal(err)
	}
	b := builds[0]
	b.app, b.cfg = &app{}, &config.Config{StateDir: state}
	if _, err := b.makerOf(t.Context()); err == nil || !strings.Contains(err.Error(), "contains the state directory") {
		t.Errorf("got the error %v, want that it contains the state directory", err)
	}
}
