//go:build unix

package mcpjson

import (
	"path/filepath"
	"syscall"
	"testing"
)

// Load does not wait for the writer of a pipe.
func TestD1_NoPipes(t *testing.T) {
	root := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(root, "mcp.json"), 0o600); err != nil {
		t.Skipf("no pipes here: %v", err)
	}
	_, err := Load(Options{Root: root})
	refused(t, err, "it is a named pipe, not a regular file")
	if _, err := readEnvFile(filepath.Join(root, "mcp.json")); err == nil {
		t.Error("a pipe was read as a file of variables")
	}
}
