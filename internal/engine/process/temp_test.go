package process_test

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/process"
)

// TestDestroy_RemovesTemporaryFiles: a killed agent removes nothing itself.
func TestDestroy_RemovesTemporaryFiles(t *testing.T) {
	e, err := process.Open(process.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	g, err := e.Create(t.Context(), "one", &engine.Spec{
		Root:  engine.Root{Key: "empty", Tree: &engine.Tree{Dir: t.TempDir()}},
		Agent: engine.Program{Path: "/bin/sh", Args: []string{"sh", "-c", `mkdir "$TMPDIR/d" && echo x >"$TMPDIR/d/file" && echo "$TMPDIR" && read line`}},
	})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := g.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stream).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	dir := strings.TrimSuffix(line, "\n")
	if _, err := os.Stat(dir + "/d/file"); err != nil {
		t.Fatal(err)
	}
	if err := g.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory for temporary files: got %v, want that it is gone", err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}
