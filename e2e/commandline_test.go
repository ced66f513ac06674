package e2e

import (
	"bytes"
	"image/png"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// commandLine is a client that runs as a new process for each action.
type commandLine struct {
	list func(t *testing.T) []string // the names of the tools
	call func(t *testing.T, tool string, args map[string]any) *answer
}

// begin lists the tools and creates a context with x = 41.
func (c commandLine) begin(t *testing.T) (id string) {
	t.Helper()
	listed := c.list(t)
	for _, tool := range []string{"create_context", "run_code", "upload_file", "execute_code"} {
		if !slices.Contains(listed, tool) {
			t.Errorf("%s is not among the tools %q", tool, listed)
		}
	}
	id = c.call(t, "create_context", map[string]any{"name": boxName(t)}).str("context_id")
	if !strings.HasPrefix(id, "ctx-") {
		t.Fatalf("create_context: got id %q", id)
	}
	c.call(t, "run_code", map[string]any{"context_id": id, "code": "x = 41"})
	return id
}

// figure draws in such a context and checks that the client gets the image.
func (c commandLine) figure(t *testing.T, id string) {
	t.Helper()
	a := c.call(t, "run_code", map[string]any{"context_id": id, "code": "import matplotlib.pyplot as plt\n" +
		"plt.figure(figsize=(3, 2), dpi=100)\nplt.plot([1, 4, 2])\nplt.show()\nprint(x + 1)"})
	if got := a.str("stdout"); got != "42\n" {
		t.Errorf("x + 1: got %q, want 42", got)
	}
	for _, part := range a.Content {
		if part.Type != "image" {
			continue
		}
		img, err := png.Decode(bytes.NewReader(part.Data))
		if err != nil || part.MIMEType != "image/png" || img.Bounds().Dx() < 100 || img.Bounds().Dy() < 100 {
			t.Errorf("image of type %q: %v, want a PNG of what was drawn", part.MIMEType, err)
		}
		return
	}
	t.Errorf("no image came back: %s", a.text())
}

// fail checks that the client reports an exception of the code.
func (c commandLine) fail(t *testing.T, id string) {
	t.Helper()
	a := c.call(t, "run_code", map[string]any{"context_id": id, "code": "1/0"})
	if a.IsError || a.StructuredContent["success"] != false || !strings.Contains(a.str("stderr"), "ZeroDivisionError") {
		t.Errorf("failing code: got %s", a.text())
	}
}

// files uploads a file and downloads it.
func (c commandLine) files(t *testing.T, id string) {
	t.Helper()
	const text = "äöü\n"
	c.call(t, "upload_file", map[string]any{"context_id": id, "path": "in.txt", "content": text})
	a := c.call(t, "download_file", map[string]any{"context_id": id, "path": "in.txt"})
	if got := a.str("content"); got != text {
		t.Errorf("downloaded file: got %q, want %q", got, text)
	}
}

// sleeper is code that sleeps and records how it ended. It creates a file when it starts.
func sleeper(seconds string) string {
	return "import time\nend = 'unknown'\ntry:\n    open('begun', 'w').close()\n    time.sleep(" + seconds + ")\n" +
		"    end = 'finished'\nexcept KeyboardInterrupt:\n    end = 'interrupted'\n    raise"
}

// killed starts a client that runs sleeper code in a context of p, and kills it in
// the middle of that, when it waits. It holds that others do not notice, and returns what became
// of the code.
func killed(t *testing.T, p *process, id string, cmd *exec.Cmd, waits func() bool) string {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := time.AfterFunc(clientLimit, func() { cmd.Process.Kill() })
	defer ended.Stop()
	until(t, "the code of "+t.Name()+" runs", func() bool {
		a, err := p.try("download_file", map[string]any{"context_id": id, "path": "begun"})
		return err == nil && !a.IsError
	})
	until(t, "the client of "+t.Name()+" waits for its answer", waits)
	cmd.Process.Signal(os.Kill)
	cmd.Wait()
	if got := p.run(t, p.create(t, boxName(t)+"-other"), "print(6 * 7)"); got != "42" {
		t.Errorf("another context after a client was killed: got %q", got)
	}
	return p.run(t, id, "print(end)")
}

// boxName returns a context name for the test.
func boxName(t *testing.T) string {
	return strings.NewReplacer("/", "-", "_", "-").Replace(t.Name())
}
