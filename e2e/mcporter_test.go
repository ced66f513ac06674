package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// mcporter returns mcporter's command line for one of its servers. mcporter prints the
// structured content only and saves images to files.
func mcporter(env []string, config, server string) commandLine {
	program := []string{"node_modules/mcporter/dist/cli.js", "--config", config}
	with := func(rest ...string) []string { return append(program[:len(program):len(program)], rest...) }
	return commandLine{
		list: func(t *testing.T) (names []string) {
			t.Helper()
			var listed struct{ Tools []struct{ Name string } }
			out := node(t, env, with("list", server, "--json")...)
			if err := json.Unmarshal(out, &listed); err != nil {
				t.Fatalf("list: %v: %s", err, out)
			}
			for _, tool := range listed.Tools {
				names = append(names, tool.Name)
			}
			return names
		},
		call: func(t *testing.T, tool string, args map[string]any) *answer {
			t.Helper()
			text, err := json.Marshal(args)
			if err != nil {
				t.Fatal(err)
			}
			images := t.TempDir()
			// It exits with an error if the tool fails, after printing the result.
			out, failed := tryNode(t, env, with("call", server+"."+tool, "--args", string(text), "--output", "json", "--save-images", images)...)
			a := &answer{Content: []content{{Type: "text", Text: string(out)}}}
			// The standard error of a server that it ended follows the JSON.
			if err := json.NewDecoder(bytes.NewReader(out)).Decode(&a.StructuredContent); err != nil {
				t.Fatalf("%s: %v: %v: %s", tool, err, failed, out)
			}
			saved, err := filepath.Glob(filepath.Join(images, "*.png"))
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range saved {
				data, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				a.Content = append(a.Content, content{Type: "image", MIMEType: "image/png", Data: data})
			}
			return a
		},
	}
}

// TestMcporter uses an HTTP server, and a stdio server that mcporter starts, through
// mcporter's daemon, which keeps both connections. On each, a call times out in the
// client, and the server is restarted.
func TestMcporter(t *testing.T) {
	t.Parallel()
	clients(t)
	p := launchSteady(t, state(t))

	// The path of the daemon's socket must be short.
	home, err := os.MkdirTemp("", "mcporter-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	env := append(environment(t, p.dir), "HOME="+home, "XDG_CONFIG_HOME=", "XDG_STATE_HOME=", "XDG_DATA_HOME=", "XDG_CACHE_HOME=")
	config := filepath.Join(home, "mcporter.json")
	text, err := json.Marshal(map[string]any{
		"imports": []string{},
		"mcpServers": map[string]any{
			"http": map[string]any{"url": p.front.url, "lifecycle": "keep-alive"},
			"stdio": map[string]any{"command": glovebox(t), "args": []string{"stdio"}, "lifecycle": "keep-alive",
				"env": map[string]string{"GLOVEBOX_PAUSE_AFTER": "1"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	program := []string{"node_modules/mcporter/dist/cli.js", "--config", config}
	t.Cleanup(func() {
		cmd := exec.Command("node", append(program, "daemon", "stop")...)
		cmd.Env = env
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("stop mcporter: %v\n%s", err, out)
		}
	})
	for _, s := range []struct {
		name    string
		seconds string // that code runs which the client does not wait for
		ended   bool   // whether it gets to its end
		restart func(t *testing.T)
	}{
		// mcporter does not notify the server, so the call continues.
		{"http", "5", true, func(*testing.T) { p.restart() }},
		// mcporter ends the server and starts another one.
		{"stdio", "25", false, func(t *testing.T) { node(t, env, append(program, "daemon", "stop")...) }},
	} {
		t.Run(s.name, func(t *testing.T) {
			c := mcporter(env, config, s.name)
			id := c.begin(t)
			c.figure(t, id)
			c.fail(t, id)
			c.files(t, id)

			if s.name == "stdio" {
				// mcporter gives a server little time to end: the state has to be on disk
				// before.
				until(t, "the box is on disk", func() bool {
					list, err := json.Marshal(c.call(t, "list_contexts", map[string]any{}).StructuredContent)
					return err == nil && strings.Contains(string(list), `"paused"`)
				})
			}
			args, err := json.Marshal(map[string]any{"context_id": id, "code": sleeper(s.seconds)})
			if err != nil {
				t.Fatal(err)
			}
			out, err := tryNode(t, env, append(program, "call", s.name+".run_code", "--args", string(args), "--timeout", "2000")...)
			if err == nil || !strings.Contains(err.Error(), "timed out") {
				t.Errorf("a call that takes longer than the client waits: got %s, %v", out, err)
			}
			look := map[string]any{"context_id": id, "code": "print(x, globals().get('end') == 'finished')"}
			want := map[bool]string{true: "41 True\n", false: "41 False\n"}[s.ended]
			if got := c.call(t, "run_code", look).str("stdout"); got != want {
				t.Errorf("after the client gave up: got %q, want %q", got, want)
			}
			s.restart(t)
			if got := c.call(t, "run_code", look).str("stdout"); got != want {
				t.Errorf("after a restart: got %q, want %q", got, want)
			}
		})
	}
	p.stop(t)
}
