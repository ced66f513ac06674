package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A target is a server of the matrix: a URL, or a program that the client starts.
type target struct {
	Name    string            `json:"name"`
	Session string            `json:"session"` // of the client, that it runs code in
	URL     string            `json:"url,omitempty"`
	Command string            `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env"`
}

// A visit is the outcome of one client and one target.
type visit struct {
	Name  string
	Error string
	Tools []struct {
		Name       string
		Properties bool // the input schema has them
	}
	Figures, Failure, Quiet []string // the texts that a model would see
	brief                   bool     // the call that prints nothing was left out
}

const (
	// notApplicable is the error of a client that cannot reach a kind of target.
	notApplicable = "not applicable"
	// ownTest is the error of a client that TestInspector or TestMcporter has use the target.
	ownTest = "has a test of its own"
)

// judge returns the defect of a visit, or "".
func (v *visit) judge() string {
	switch {
	case strings.Contains(v.Error, notApplicable):
		return notApplicable
	case v.Error == ownTest:
		return ownTest
	case v.Error != "":
		return v.Error
	case len(v.Tools) == 0:
		return "no tools"
	}
	for _, t := range v.Tools {
		if !t.Properties {
			return "the input schema of " + t.Name + " has no properties"
		}
	}
	for _, c := range []struct {
		what, want string
		got        []string
	}{{"print(6 * 7)", "42", v.Figures}, {"1 / 0", "ZeroDivisionError", v.Failure}, {"x = 1", "", v.Quiet}} {
		switch {
		case c.want == "" && v.brief:
		case len(c.got) == 0:
			return c.what + ": the model sees no text"
		case slices.ContainsFunc(c.got, func(s string) bool { return strings.TrimSpace(s) == "" }):
			return fmt.Sprintf("%s: a text is empty: %q", c.what, c.got)
		case !strings.Contains(strings.Join(c.got, "\n"), c.want):
			return fmt.Sprintf("%s: the model sees %q, want %s in it", c.what, c.got, c.want)
		}
	}
	return ""
}

// A rider is a client of the matrix.
type rider struct {
	name  string
	visit func(t *testing.T, targets []target) []visit
}

// TestMatrix has every client use every server that the program offers, in every era
// that the client speaks: connect, list the tools, call one that prints, one that
// fails and one that prints nothing, and read what the model would see.
//
// Not among the clients: Mastra's (it wants Node 22 and 155 MB), Cloudflare's agents
// (they run in its workers only) and pages in Chromium, which TestPageInBrowser has.
func TestMatrix(t *testing.T) {
	t.Parallel()
	clients(t)
	targets := matrixTargets(t)
	var riders []rider
	for _, client := range []string{"sdk-v1", "sdk-v2-legacy", "sdk-v2-modern", "sdk-v2-auto", "mcp-remote", "ai-sdk", "openai-agents", "langchain"} {
		riders = append(riders, rider{client, func(t *testing.T, targets []target) []visit {
			return scripted(t, targets, "node", "matrix.mjs", client)
		}})
	}
	for _, era := range []string{"legacy", "modern"} {
		riders = append(riders,
			rider{"inspector-" + era, func(t *testing.T, targets []target) []visit { return commandLineVisits(t, targets, inspectorOf(era)) }},
			rider{"go-sdk-" + era, goVisits(era)})
	}
	riders = append(riders,
		rider{"mcporter", mcporterVisits},
		rider{"bare", func(t *testing.T, targets []target) []visit {
			return scripted(t, targets, "/usr/bin/python3", "matrix.py")
		}})

	var mu sync.Mutex
	verdicts := make(map[string][]string) // by client, in the order of the targets
	t.Run("clients", func(t *testing.T) {
		for _, r := range riders {
			t.Run(r.name, func(t *testing.T) {
				t.Parallel()
				begun := time.Now()
				row, own := make([]string, len(targets)), slices.Clone(targets)
				for i := range own {
					own[i].Session = strings.NewReplacer("/", "-").Replace(r.name + "-" + own[i].Name)
				}
				for i, v := range r.visit(t, own) {
					row[i] = v.judge()
					if row[i] != "" && row[i] != notApplicable && row[i] != ownTest {
						t.Errorf("%s: %s", targets[i].Name, row[i])
					}
				}
				row = append(row, time.Since(begun).Round(100*time.Millisecond).String())
				mu.Lock()
				verdicts[r.name] = row
				mu.Unlock()
			})
		}
	})
	t.Log("\n" + matrixTable(targets, riders, verdicts))
}

func matrixTable(targets []target, riders []rider, verdicts map[string][]string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "client")
	for _, to := range targets {
		fmt.Fprint(w, "\t", to.Name)
	}
	fmt.Fprintln(w, "\ttook")
	for _, r := range riders {
		fmt.Fprint(w, r.name)
		row := verdicts[r.name]
		for i := range targets {
			mark := "FAILED"
			switch {
			case row == nil:
			case row[i] == "":
				mark = "ok"
			case row[i] == notApplicable:
				mark = "-"
			case row[i] == ownTest:
				mark = "own test"
			}
			fmt.Fprint(w, "\t", mark)
		}
		if row != nil {
			fmt.Fprint(w, "\t", row[len(targets)])
		}
		fmt.Fprintln(w)
	}
	w.Flush()
	return b.String()
}

// matrixTargets starts the HTTP targets and returns the commands of the others. The
// gateways connect to one server, over stdio.
func matrixTargets(t *testing.T) []target {
	dir := state(t)
	env := make(map[string]string)
	for _, v := range environment(t, dir) {
		name, value, _ := strings.Cut(v, "=")
		env[name] = value
	}
	env["GLOVEBOX_TOOLSETS"] = "sessions,files" // as they come
	program := glovebox(t)
	root := t.TempDir()
	text, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"box": map[string]any{"command": program, "args": []string{"stdio"}, "env": env}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "mcp.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	gateway := []string{"mcp", "serve", "--root", root, "--trust"} // the Inspector takes --config for its own
	return []target{
		{Name: "box/stdio", Command: program, Args: []string{"stdio"}, Env: env},
		{Name: "box/http", URL: launch(t, dir, "GLOVEBOX_TOOLSETS=sessions,files").url, Env: env},
		{Name: "gateway/stdio", Command: program, Args: gateway, Env: env},
		{Name: "gateway/http", URL: launchGateway(t, env, gateway), Env: env},
	}
}

// launchGateway starts a gateway over HTTP and returns its URL. The end of the test stops
// it.
func launchGateway(t *testing.T, env map[string]string, args []string) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := ln.Addr().String()
	ln.Close()
	cmd := exec.Command(glovebox(t), append(slices.Clone(args), "--listen", address)...)
	cmd.Env = list(env)
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the gateway: %v\n%s", err, log.String())
		}
	})
	url := "http://" + address
	until(t, "the gateway answers", func() bool {
		res, err := http.Get(url + "/health")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	return url + "/mcp"
}

// list formats an environment as NAME=value entries.
func list(env map[string]string) []string {
	var all []string
	for name, value := range env {
		all = append(all, name+"="+value)
	}
	return all
}

// scripted runs a client that reads the targets and prints the visits as JSON.
func scripted(t *testing.T, targets []target, program string, args ...string) []visit {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), clientLimit)
	defer cancel()
	in, err := json.Marshal(targets)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = list(targets[0].Env)
	cmd.Stdin = bytes.NewReader(in)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var visits []visit
	if err == nil {
		err = json.Unmarshal(out, &visits)
	}
	if err != nil || len(visits) != len(targets) {
		t.Fatalf("%s %q: %v: %.2000s\n%s", program, args, err, out, tail(stderr.String()))
	}
	return visits
}

// tail returns the end of a text.
func tail(s string) string { return s[max(0, len(s)-4000):] }

// goVisits makes the visits with the Go SDK.
func goVisits(era string) func(*testing.T, []target) []visit {
	version := map[string]string{"legacy": "2025-11-25", "modern": ""}[era]
	return func(t *testing.T, targets []target) []visit {
		visits := make([]visit, len(targets))
		for i, to := range targets {
			visits[i].Name = to.Name
			if err := goVisit(t.Context(), to, version, &visits[i]); err != nil {
				visits[i].Error = err.Error()
			}
		}
		return visits
	}
}

func goVisit(ctx context.Context, to target, version string, v *visit) error {
	ctx, cancel := context.WithTimeout(ctx, clientLimit)
	defer cancel()
	var transport mcp.Transport = &mcp.StreamableClientTransport{Endpoint: to.URL}
	if to.URL == "" {
		cmd := exec.Command(to.Command, to.Args...)
		cmd.Env = list(to.Env)
		transport = &mcp.CommandTransport{Command: cmd, TerminateDuration: time.Minute}
	}
	c, err := mcp.NewClient(&mcp.Implementation{Name: "e2e", Version: "1"}, nil).Connect(ctx, transport, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		return err
	}
	defer c.Close()
	listed, err := c.ListTools(ctx, nil)
	if err != nil {
		return err
	}
	name := ""
	for _, tool := range listed.Tools {
		schema, _ := tool.InputSchema.(map[string]any)
		_, properties := schema["properties"].(map[string]any)
		v.Tools = append(v.Tools, struct {
			Name       string
			Properties bool
		}{tool.Name, properties})
		if strings.HasSuffix(tool.Name, "execute_code") {
			name = tool.Name
		}
	}
	for code, texts := range map[string]*[]string{"print(6 * 7)": &v.Figures, "1 / 0": &v.Failure, "x = 1": &v.Quiet} {
		res, err := c.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: map[string]any{"code": code, "session_id": to.Session}})
		if err != nil {
			return err
		}
		for _, part := range res.Content {
			if part, ok := part.(*mcp.TextContent); ok {
				*texts = append(*texts, part.Text)
			}
		}
	}
	return c.Close()
}

// inspectorOf returns the Inspector's command line for a target in one era.
func inspectorOf(era string) func(*testing.T, target) commandLine {
	return func(t *testing.T, to target) commandLine {
		args := []string{to.URL, "--transport", "http"}
		if to.URL == "" {
			args = append([]string{to.Command}, to.Args...)
		}
		c, _ := inspectorAt(t, list(to.Env), append(args, "--protocol-era", era)...)
		return c
	}
}

// commandLineVisits makes the visits to gateways with a command line client. It checks only the names
// of tools, not the schemas, and leaves out the call without output, since each call takes
// a process or two.
func commandLineVisits(t *testing.T, targets []target, of func(*testing.T, target) commandLine) []visit {
	visits := make([]visit, len(targets))
	for i, to := range targets {
		v := &visits[i]
		if strings.HasPrefix(to.Name, "box/") {
			v.Error = ownTest
			continue
		}
		v.brief = true
		c := of(t, to)
		name := ""
		for _, tool := range c.list(t) {
			v.Tools = append(v.Tools, struct {
				Name       string
				Properties bool
			}{tool, true})
			if strings.HasSuffix(tool, "execute_code") {
				name = tool
			}
		}
		for code, texts := range map[string]*[]string{"print(6 * 7)": &v.Figures, "1 / 0": &v.Failure} {
			for _, part := range c.call(t, name, map[string]any{"code": code, "session_id": to.Session}).Content {
				if part.Type == "text" {
					*texts = append(*texts, part.Text)
				}
			}
		}
	}
	return visits
}

// mcporterVisits makes the visits with mcporter, without its daemon.
func mcporterVisits(t *testing.T, targets []target) []visit {
	servers := make(map[string]any)
	for _, to := range targets {
		entry := map[string]any{"url": to.URL, "lifecycle": "ephemeral"}
		if to.URL == "" {
			entry = map[string]any{"command": to.Command, "args": to.Args, "env": to.Env, "lifecycle": "ephemeral"}
		}
		servers[strings.ReplaceAll(to.Name, "/", "-")] = entry
	}
	text, err := json.Marshal(map[string]any{"imports": []string{}, "mcpServers": servers})
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "mcporter.json")
	if err := os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return commandLineVisits(t, targets, func(t *testing.T, to target) commandLine {
		return mcporter(list(to.Env), config, strings.ReplaceAll(to.Name, "/", "-"))
	})
}
