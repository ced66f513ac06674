// Package kube_test drives the built program with boxes that are Pods of a real cluster,
// as a stock client does. scripts/test-kube runs it.
package kube_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/proctest"
)

func TestMain(m *testing.M) { os.Exit(proctest.Main(m)) }

// program is the built program with the settings of the cluster.
type program struct {
	path    string
	env     []string
	kubectl string
}

func onCluster(t *testing.T) *program {
	t.Helper()
	p := &program{path: os.Getenv("GLOVEBOX_TEST_PROGRAM"), kubectl: os.Getenv("GLOVEBOX_TEST_KUBECTL")}
	box, helper, config := os.Getenv("GLOVEBOX_TEST_BOX_IMAGE"), os.Getenv("GLOVEBOX_TEST_HELPER_IMAGE"), os.Getenv("GLOVEBOX_TEST_KUBECONFIG")
	if p.path == "" || p.kubectl == "" || box == "" || helper == "" || config == "" {
		t.Skip("there is no cluster, or no images for it; run make test-kube")
	}
	p.env = append(os.Environ(), "KUBECONFIG="+config, "GLOVEBOX_ENGINE=kube", "GLOVEBOX_IMAGE="+box, "GLOVEBOX_KUBE_HELPER_IMAGE="+helper,
		"GLOVEBOX_KUBE_NAMESPACE=e2e", "GLOVEBOX_STATE_DIR="+t.TempDir())
	return p
}

// namespace makes the namespace of the boxes, which the test removes.
func (p *program) namespace(t *testing.T) { p.namespaceOf(t, "e2e") }

func (p *program) namespaceOf(t *testing.T, name string) {
	t.Helper()
	p.control(t, "create", "namespace", name)
	t.Cleanup(func() { p.control(t, "delete", "namespace", name, "--wait=false") })
}

func (p *program) control(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(p.kubectl, args...)
	cmd.Env = p.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("kubectl %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// pods returns the Pods of boxes, also of those that end.
func (p *program) pods(t *testing.T) []string {
	t.Helper()
	return strings.Fields(p.control(t, "get", "pods", "-n", "e2e", "-l", "app.kubernetes.io/managed-by=glovebox", "-o", "name"))
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// answer has the fields of all tools that the test looks at.
type answer struct {
	SessionID string   `json:"session_id"`
	Success   bool     `json:"success"`
	Stdout    string   `json:"stdout"`
	Stderr    string   `json:"stderr"`
	Content   string   `json:"content"`
	Size      int      `json:"size"`
	Notes     []string `json:"notes"`
}

func call(ctx context.Context, t *testing.T, c *mcp.ClientSession, tool string, args map[string]any) answer {
	t.Helper()
	res, err := c.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		t.Fatalf("%s %v: %v", tool, args, err)
	}
	b, err := json.Marshal(res.StructuredContent)
	var a answer
	if err == nil {
		err = json.Unmarshal(b, &a)
	}
	if err != nil || res.IsError {
		t.Fatalf("%s %v answers %s (error %t, %v)", tool, args, b, res.IsError, err)
	}
	return a
}

// TestProgram_ServesBoxesOfACluster uses a box as a client does, and looks for what is left.
func TestProgram_ServesBoxesOfACluster(t *testing.T) {
	p := onCluster(t)
	p.namespace(t)
	ctx := within(t)
	cmd := exec.Command(p.path, "stdio", "--toolset", "all")
	cmd.Env, cmd.Stderr = p.env, os.Stderr
	c, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).
		Connect(ctx, &mcp.CommandTransport{Command: cmd, TerminateDuration: time.Minute}, nil)
	if err != nil {
		t.Fatal(err)
	}
	closed := false
	defer func() {
		if !closed {
			c.Close()
		}
	}()
	list, err := c.ListTools(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
		if strings.Contains(tool.Name, "snapshot") || strings.HasPrefix(tool.Name, "fork_") || strings.HasPrefix(tool.Name, "restore_") {
			t.Errorf("%s is listed, and Pods have no snapshots", tool.Name)
		}
		for _, text := range []string{"this machine", "on disk", "hibernated"} {
			if strings.Contains(tool.Description, text) {
				t.Errorf("%s speaks of %q, and boxes are Pods of an image: %s", tool.Name, text, tool.Description)
			}
		}
	}
	if !slices.Contains(names, "execute_code") || !slices.Contains(names, "run_code") {
		t.Errorf("the tools are %q", names)
	}

	first := call(ctx, t, c, "execute_code", map[string]any{"code": "x = 6\nopen('of-python', 'w').write('hello')\nx * 7"})
	if !first.Success || strings.TrimSpace(first.Stdout) != "42" || first.SessionID == "" {
		t.Fatalf("the first call answers %+v", first)
	}
	box := first.SessionID
	if again := call(ctx, t, c, "execute_code", map[string]any{"code": "x + 1", "session_id": box}); strings.TrimSpace(again.Stdout) != "7" {
		t.Errorf("the variable is gone: %+v", again)
	}
	call(ctx, t, c, "upload_file", map[string]any{"path": "of-client", "content": "from the client", "session_id": box})
	shell := call(ctx, t, c, "execute_command", map[string]any{"command": "cat of-python of-client; id -u", "session_id": box})
	if !shell.Success || shell.Stdout != "hellofrom the client1000\n" {
		t.Errorf("the shell answers %+v", shell)
	}
	if file := call(ctx, t, c, "download_file", map[string]any{"path": "of-python", "session_id": box}); file.Content != "hello" {
		t.Errorf("the file is %+v", file)
	}
	if pods := p.pods(t); len(pods) == 0 {
		t.Error("there is a session, and no Pod")
	}
	if stopped := call(ctx, t, c, "stop_session", map[string]any{"session_id": box}); !stopped.Success {
		t.Errorf("the stop answers %+v", stopped)
	}
	// A box that its client leaves behind ends with the server.
	call(ctx, t, c, "execute_code", map[string]any{"code": "1"})
	closed = true
	if err := c.Close(); err != nil {
		t.Errorf("the server ends with %v", err)
	}
	if pods := p.pods(t); len(pods) != 0 {
		t.Errorf("the server has left %q", pods)
	}
	if leases := p.control(t, "get", "leases", "-n", "e2e", "-o", "name"); leases != "" {
		t.Errorf("the server has left %s", leases)
	}
}

// run runs the program and returns its exit code and all output.
func (p *program) run(t *testing.T, extra []string, args ...string) (code int, text string) {
	t.Helper()
	cmd := exec.CommandContext(within(t), p.path, args...)
	cmd.Env = append(slices.Clone(p.env), extra...)
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// TestProgram_SaysWhatIsMissing: each error of an operator names the cause and what to type.
func TestProgram_SaysWhatIsMissing(t *testing.T) {
	p := onCluster(t)
	config, err := os.ReadFile(os.Getenv("GLOVEBOX_TEST_KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	// file writes the kubeconfig with a replacement.
	file := func(old, new string) string {
		text := strings.Replace(string(config), old, new, 1)
		if text == string(config) {
			t.Fatalf("the kubeconfig has no %q", old)
		}
		path := t.TempDir() + "/config"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "KUBECONFIG=" + path
	}
	for name, c := range map[string]struct {
		env  []string
		args []string
		code int
		want []string
	}{
		"no kubeconfig":   {[]string{"KUBECONFIG=/nonexistent"}, []string{"doctor"}, 1, []string{"fail +cluster", "no cluster is configured", "export KUBECONFIG="}},
		"wrong context":   {nil, []string{"doctor", "--kube-context", "tset"}, 1, []string{`no context is named "tset": did you mean "test"?`, "kubectl config get-contexts"}},
		"API unreachable": {[]string{file(":6443", ":6444")}, []string{"doctor"}, 1, []string{"connection refused", "check that this machine reaches", "kubectl --context test version"}},
		"credentials":     {[]string{file(`token: "`, `token: "0`)}, []string{"doctor"}, 1, []string{"answers 401", "log in to the cluster again"}},
		"runtime class":   {nil, []string{"doctor", "--kube-runtime-class", "kata"}, 1, []string{`no runtime class "kata"`, "the cluster has gvisor"}},
		"namespace":       {nil, []string{"doctor", "--kube-namespace", "none"}, 1, []string{"kubectl create namespace none"}},
		"tag":             {nil, []string{"serve", "--image", "python:3.13-slim"}, 2, []string{"has no digest", "crane digest python:3.13-slim"}},
		"volume":          {nil, []string{"serve", "--volume", "/srv:/srv"}, 2, []string{"share volume /srv", "do not have this directory"}},
		"snapshots":       {nil, []string{"serve", "--toolset", "snapshots"}, 2, []string{"the engine kube has none"}},
		"processes":       {nil, []string{"doctor", "--box"}, 1, []string{"on another machine"}},
	} {
		t.Run(name, func(t *testing.T) {
			code, text := p.run(t, c.env, c.args...)
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			plain := strings.Join(strings.Fields(text), " ")
			for _, want := range c.want {
				if !strings.Contains(plain, strings.ReplaceAll(want, " +", " ")) {
					t.Errorf("%q is missing", want)
				}
			}
			if t.Failed() {
				t.Log(text)
			}
		})
	}
}
