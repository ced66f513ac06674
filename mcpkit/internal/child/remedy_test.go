//go:build unix

package child

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// npx that was killed while it installed a package leaves a cache with which the package
// never starts again, also by hand. The texts are those of npm 11 and Node.js 20.
func TestExitError_IncompleteCache(t *testing.T) {
	for _, tt := range []struct {
		program, script string
		want            bool
	}{
		{"npx", "echo 'sh: 1: mcp-server-filesystem: not found' >&2; exit 127", true},
		{"npx", `printf "    at ModuleJob._link {\n  code: 'ERR_MODULE_NOT_FOUND'\n}\n\nNode.js v20.20.2\n" >&2; exit 1`, true},
		{"npx", "echo 'npm error enoent Could not read package.json: Error: ENOENT: no such file or directory' >&2; exit 254", true},
		{"npx", "echo 'npm error code ENOTEMPTY' >&2; exit 190", true},
		{"npx", "echo 'error: no token' >&2; exit 1", false},
		{"server", "echo 'config not found' >&2; exit 1", false},
	} {
		path := filepath.Join(t.TempDir(), tt.program)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+tt.script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		c := connect(t, &Command{Name: "srv", Argv: []string{path}})
		_, err := c.Read(t.Context())
		var ended *ExitError
		if !errors.As(err, &ended) || strings.Contains(err.Error(), "/_npx") != tt.want {
			t.Errorf("%s: %s: got %v, want the remedy: %v", tt.program, tt.script, err, tt.want)
		}
	}
}
