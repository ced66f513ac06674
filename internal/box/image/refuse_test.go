//go:build linux

package image

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Root, as under sudo, runs no program of another user on PATH, and takes none for boxes.
func TestToolchain_RunsNoProgramOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	mark := filepath.Join(dir, "ran")
	path := func(name string) string { return filepath.Join(dir, name) }
	program := fmt.Sprintf("#!/bin/sh\ntouch %s\nexec /usr/bin/python3 \"$@\"\n", mark)
	for _, name := range []string{"foreign", "writable", "foreign-file", "link", "elsewhere"} {
		if err := os.Mkdir(path(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if name != "link" {
			if err := os.WriteFile(filepath.Join(path(name), "python3"), []byte(program), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	const stranger = 54321
	for _, err := range []error{
		os.Chown(path("foreign"), stranger, stranger), os.Chmod(path("writable"), 0o777), os.Chown(path("foreign-file/python3"), stranger, stranger),
		os.Chown(path("elsewhere"), stranger, stranger), os.Symlink(path("elsewhere/python3"), path("link/python3")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"foreign", "writable", "foreign-file", "link"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PATH", path(name)+":/usr/bin:/bin")
			img, err := Toolchain(t.Context(), ToolchainConfig{StateDir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			if exists(mark) {
				t.Errorf("the program ran as root")
			}
			if got := img.Interpreters[Python].Path; !isWithin(got, "/usr/bin") {
				t.Errorf("boxes use %q", got)
			}
			if got := strings.Join(img.Warnings, "\n"); !strings.Contains(got, dir) || !strings.Contains(got, "--python") {
				t.Errorf("the warning is %q", got)
			}
		})
	}
	t.Run("script of root that starts a foreign one", func(t *testing.T) {
		shim := t.TempDir()
		answer := fmt.Sprintf(`{"executable": %q, "version": "3.99.0", "prefix": %q, "have": [], "paths": []}`, path("foreign/python3"), path("foreign"))
		if err := os.WriteFile(filepath.Join(shim, "python3"), []byte("#!/bin/sh\necho '"+answer+"'\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", shim+":/usr/bin:/bin")
		img, err := Toolchain(t.Context(), ToolchainConfig{StateDir: t.TempDir()})
		if err != nil || !isWithin(img.Interpreters[Python].Path, "/usr/bin") || len(img.Warnings) != 1 {
			t.Errorf("got %+v, %v", img, err)
		}
	})
	t.Run("named", func(t *testing.T) {
		if err := os.Mkdir(path("named"), 0o755); err != nil {
			t.Fatal(err)
		}
		python := path("named/python3")
		answer := fmt.Sprintf(`{"executable": %q, "version": "3.99.0", "prefix": %q, "have": [], "paths": []}`, python, path("named"))
		if err := os.WriteFile(python, []byte("#!/bin/sh\necho '"+answer+"'\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(python, stranger, stranger); err != nil {
			t.Fatal(err)
		}
		img, err := Toolchain(t.Context(), ToolchainConfig{StateDir: t.TempDir(), Python: python})
		if err != nil || img.Interpreters[Python].Path != python {
			t.Fatalf("got %+v, %v", img, err)
		}
		if got := strings.Join(img.Warnings, "\n"); !strings.Contains(got, python) || !strings.Contains(got, "runs as root") {
			t.Errorf("the warning is %q", got)
		}
	})
}
