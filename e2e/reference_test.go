package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	everything = "node_modules/@modelcontextprotocol/server-everything/dist/index.js"
	filesystem = "node_modules/@modelcontextprotocol/server-filesystem/dist/index.js"
)

// reference returns the absolute path of a reference server's program.
func reference(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		lacking(t, "no reference servers: run npm ci in e2e first")
	}
	return path
}

// everythingOverHTTP starts the reference server over Streamable HTTP.
func everythingOverHTTP(t *testing.T) (url string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := ln.Addr().(*net.TCPAddr)
	ln.Close() // it takes the number of a port, and no port
	cmd := exec.Command("node", reference(t, everything), "streamableHttp")
	cmd.Env = append(os.Environ(), fmt.Sprint("PORT=", address.Port))
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("the reference server:\n%s", log.String())
		}
	})
	until(t, "the reference server listens", func() bool {
		conn, err := net.DialTimeout("tcp", address.String(), time.Second)
		if err != nil {
			return false
		}
		conn.Close()
		return true
	})
	return fmt.Sprintf("http://%s/mcp", address)
}

// kit runs "glovebox mcp" commands with one configuration.
type kit struct {
	program, dir string
	env          []string
}

// newKit writes the configuration.
func newKit(t *testing.T, dir string, servers map[string]any) *kit {
	t.Helper()
	k := &kit{program: glovebox(t), dir: t.TempDir(), env: environment(t, dir)}
	text, err := json.Marshal(map[string]any{"mcpServers": servers})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(k.dir, ".mcp.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return k
}

// run runs a command and returns its output and exit code.
func (k *kit) run(t *testing.T, args ...string) (out, stderr string, code int) {
	t.Helper()
	// Node starts slowly on a busy machine.
	cmd := exec.CommandContext(t.Context(), k.program, append([]string{"mcp", "--connect-timeout", "2m", "--timeout", "2m"}, args...)...)
	cmd.Dir, cmd.Env = k.dir, k.env
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	return o.String(), e.String(), code
}

// want runs a command and fails the test unless the output contains the text.
func (k *kit) want(t *testing.T, want string, args ...string) {
	t.Helper()
	if out, stderr, code := k.run(t, args...); code != 0 || !strings.Contains(out, want) {
		t.Errorf("mcp %q: exit code %d, printed %.500q, want %q\n%s", args, code, out, want, stderr)
	}
}

// speaks fails the test unless a server answers in the revision of the request.
func (k *kit) speaks(t *testing.T, server, revision string, flags ...string) {
	t.Helper()
	k.want(t, fmt.Sprintf(`"protocol": %q`, revision), append(flags, "status", server, "-o", "json")...)
}

const (
	legacyRevision = "2025-11-25"
	modernRevision = "2026-07-28"
)

// TestD1_ReferenceServers uses the official servers over standard streams and over
// HTTP with every command, from consent to a recording.
func TestD1_ReferenceServers(t *testing.T) {
	t.Parallel()
	clients(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("some notes\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	k := newKit(t, t.TempDir(), map[string]any{
		"every": map[string]any{"command": "node", "args": []string{reference(t, everything)}},
		"files": map[string]any{"command": "node", "args": []string{reference(t, filesystem), dir}},
		"web":   map[string]any{"type": "http", "url": everythingOverHTTP(t)},
	})
	if _, stderr, code := k.run(t, "call", "every.echo", "message=hi"); code != 3 || !strings.Contains(stderr, "you have not approved it") {
		t.Errorf("before consent: exit code %d, %s", code, stderr)
	}
	for _, server := range []string{"every", "files"} {
		k.want(t, "", "trust", server, "--yes")
	}
	if _, stderr, code := k.run(t, "call", "web.echo", "message=hi"); code != 3 || !strings.Contains(stderr, "refusing to connect") {
		t.Errorf("http to this machine: exit code %d, %s", code, stderr)
	}
	for server, flags := range map[string][]string{"every": nil, "web": {"--allow-http", "--allow-localhost"}} {
		with := func(args ...string) []string { return append(append([]string{}, flags...), args...) }
		k.want(t, "get-sum", with("tools", server)...)
		k.want(t, "Echo: hi", with("call", server+".echo", "message=hi")...)
		k.want(t, "The sum of 2 and 3 is 5", with("call", server+".get-sum", "a=2", "b=3")...)
		k.want(t, "temperature", with("call", server+".get-structured-content", "location=Chicago", "-o", "json")...)
		k.want(t, "demo://resource/static/document/", with("resources", server)...)
		k.want(t, "args-prompt", with("prompts", server)...)
		k.want(t, "Chicago", with("prompt", server, "args-prompt", "city=Chicago")...)
		k.want(t, `"tools"`, with("request", server, "tools/list")...)
		if _, stderr, code := k.run(t, with("call", server+".get-sum", "a=two", "b=3")...); code != 2 {
			t.Errorf("%s: a wrong argument: exit code %d, %s", server, code, stderr)
		}
		saved := t.TempDir()
		k.want(t, "", with("call", server+".get-tiny-image", "--save", saved)...)
		if b, err := os.ReadFile(filepath.Join(saved, server+"-get-tiny-image-1.png")); err != nil || !bytes.HasPrefix(b, []byte("\x89PNG")) {
			t.Errorf("%s: the image that is saved: %.10q, %v", server, b, err)
		}
		tape := filepath.Join(t.TempDir(), "tape")
		k.want(t, "Echo: once", with("call", server+".echo", "message=once", "--record", tape)...)
		k.want(t, "Echo: once", "call", server+".echo", "message=once", "--replay", tape)
	}
	k.want(t, "some notes", "call", "files.read_text_file", "path="+filepath.Join(dir, "notes.txt"))
	if out, stderr, code := k.run(t, "call", "files.read_text_file", "path=/etc/passwd"); code != 5 || !strings.Contains(out, "Access denied") {
		t.Errorf("a tool that fails: exit code %d, %s%s", code, out, stderr)
	}
}

// TestD7_BothEras uses our own server in both eras, over stdio and at one URL, and
// reference servers in the era that they support.
func TestD7_BothEras(t *testing.T) {
	t.Parallel()
	clients(t)
	dir := state(t)
	p := launch(t, dir)
	k := newKit(t, dir, map[string]any{
		"stdio": map[string]any{"command": glovebox(t), "args": []string{"stdio"}, "env": map[string]string{"GLOVEBOX_POOL_SIZE": "0", "GLOVEBOX_STATE_DIR": dir}},
		"http":  map[string]any{"type": "http", "url": p.url},
		"old":   map[string]any{"command": "node", "args": []string{reference(t, everything)}},
		"web":   map[string]any{"type": "http", "url": everythingOverHTTP(t)},
	})
	for _, own := range []string{"stdio", "http"} {
		for era, revision := range map[string]string{"legacy": legacyRevision, "modern": modernRevision, "auto": modernRevision} {
			k.speaks(t, own, revision, "--trust", "--era", era)
			k.want(t, "execute_code", "--trust", "--era", era, "tools", own)
			k.want(t, "[]", "--trust", "--era", era, "call", own+".get_sessions")
		}
	}
	k.want(t, "42", "--trust", "--era", "modern", "call", "http.execute_code", "code=print(6*7)")
	k.want(t, "42", "--trust", "--era", "legacy", "call", "http.execute_code", "code=print(6*7)")
	for _, other := range []string{"old", "web"} {
		k.speaks(t, other, legacyRevision, "--trust")
		k.speaks(t, other, legacyRevision, "--trust") // with the era that is remembered
		k.want(t, "Echo: hi", "--trust", "call", other+".echo", "message=hi")
	}
	p.stop(t)
}
