package embedtest

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestKeep_SameAgentStays checks that a process which builds the same agent does not
// replace the file that guests of another process run.
func TestKeep_SameAgentStays(t *testing.T) {
	dir := t.TempDir()
	build := func(text string) (string, os.FileInfo) {
		t.Helper()
		tmp := filepath.Join(dir, "build-1")
		if err := os.WriteFile(tmp, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		path, err := keep(tmp)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return path, info
	}
	path, info := build("one")
	other, _ := build("two")
	again, same := build("one")
	if again != path || !os.SameFile(info, same) {
		t.Errorf("the same agent got the file %s, not %s as before", again, path)
	}
	if other == path {
		t.Errorf("two agents got the file %s", path)
	}
	old := time.Now().Add(-2 * maxAge)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	if build("three"); exists(path) || !exists(other) {
		t.Errorf("the old agent exists: %v, the other one: %v; want false, true", exists(path), exists(other))
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
