//go:build linux

package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestQuickClients has clients over standard input and output that leave before
// templates are built: these are finished, once, and no process stays.
func TestQuickClients(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(t.TempDir(), "state")
	t.Cleanup(func() { // nothing may write to the state while it is removed
		eventually(t, "no process is left", time.Minute, func() bool { return len(finishers(t, state)) == 0 })
	})
	const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"quick","version":"1"}}}` + "\n"
	// The settings of the server are those of the templates.
	settings := []string{"glovebox", "stdio", "--state-dir", state, "--pool-size", "0", "--preload", "json"}
	for range 3 {
		var out, log bytes.Buffer
		cmd := &exec.Cmd{
			Path: exe, Args: settings, Stdin: strings.NewReader(hello), Stdout: &out, Stderr: &log,
			Env: append(os.Environ(), "GLOVEBOX_FINISH_TEMPLATES=true"),
		}
		if err := cmd.Run(); err != nil || !strings.Contains(out.String(), `"serverInfo"`) {
			t.Fatalf("glovebox stdio: %v, answer %q\n%s", err, out.String(), log.String())
		}
	}
	built := func() []string {
		dirs, err := filepath.Glob(filepath.Join(state, "templates", "*", "template.json"))
		if err != nil {
			t.Fatal(err)
		}
		return dirs
	}
	begun := time.Now()
	eventually(t, "a template is built", 2*time.Minute, func() bool { return len(built()) > 0 })
	eventually(t, "the process that built it has ended", time.Minute, func() bool { return len(finishers(t, state)) == 0 })
	t.Logf("%d templates %v after the last client", len(built()), time.Since(begun).Round(time.Millisecond))
	// The server that comes next uses them.
	if out, err := (&exec.Cmd{Path: exe, Args: []string{"glovebox", "template", "build", "--state-dir", state, "--preload", "json"}}).CombinedOutput(); err != nil || strings.Contains(string(out), "building") {
		t.Errorf("glovebox template build: %v\n%s", err, out)
	}
}

// finishers returns the processes that finish templates in a state directory.
func finishers(t *testing.T, state string) (pids []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err == nil && bytes.Contains(b, []byte(state)) && bytes.Contains(b, []byte("--"+onlyTemplates)) {
			pids = append(pids, filepath.Base(filepath.Dir(file)))
		}
	}
	return pids
}
