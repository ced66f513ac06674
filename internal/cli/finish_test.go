//go:build linux

package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestFinishTemplates_AfterQuickClients has clients over standard input and output leave
// before the templates are built. One process finishes them and exits, however the server
// was started.
func TestFinishTemplates_AfterQuickClients(t *testing.T) {
	settings := []string{"--pool-size", "0", "--preload", "json"}
	for _, test := range []struct {
		name    string
		command []string
		clients int
		last    []string // arguments
	}{
		{"stdio", []string{"stdio"}, 3, nil},
		{"serve --mode stdio", []string{"serve", "--mode", "stdio"}, 1, nil},
		{"stdio --", []string{"stdio"}, 1, []string{"--"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			state := filepath.Join(t.TempDir(), "state")
			args := slices.Concat([]string{"glovebox"}, test.command, []string{"--state-dir", state}, settings, test.last)
			finishTemplatesAfter(t, state, args, test.clients)
		})
	}
}

// finishTemplatesAfter starts servers for clients that leave at once, and waits for the
// templates.
func finishTemplatesAfter(t *testing.T, state string, args []string, clients int) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // nothing may write to the state while it is removed
		eventually(t, "no process is left", time.Minute, func() bool { return len(finishers(t, state)) == 0 })
	})
	const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"quick","version":"1"}}}` + "\n"
	for range clients {
		var out, log bytes.Buffer
		cmd := &exec.Cmd{
			Path: exe, Args: args, Stdin: strings.NewReader(hello), Stdout: &out, Stderr: &log,
			Env: append(os.Environ(), "GLOVEBOX_FINISH_TEMPLATES=true"),
		}
		if err := cmd.Run(); err != nil || !strings.Contains(out.String(), `"serverInfo"`) {
			t.Fatalf("%q: %v, answer %q\n%s", args, err, out.String(), log.String())
		}
	}
	built := func() bool {
		dirs, err := filepath.Glob(filepath.Join(state, "templates", "*", "template.json"))
		if err != nil {
			t.Fatal(err)
		}
		return len(dirs) > 0
	}
	begun := time.Now()
	eventually(t, "a template is built, or no process builds one", 2*time.Minute, func() bool { return built() || len(finishers(t, state)) == 0 })
	eventually(t, "the process that built it has exited", time.Minute, func() bool { return len(finishers(t, state)) == 0 })
	if !built() {
		t.Fatal("the process that finishes templates has exited without building one")
	}
	t.Logf("a template was built %v after the last client", time.Since(begun).Round(time.Millisecond))
	// The next server finds the templates.
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
