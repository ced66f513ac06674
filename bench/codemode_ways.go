//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/bench/codemode"
)

// codemodeModule returns the path of a file in an npm package of the tasks.
func (b *bench) codemodeModule(name, file string) string {
	return filepath.Join(b.here, "codemode", "node_modules", name, file)
}

// codemodeServers returns the servers of the tasks with their data in dir.
func (b *bench) codemodeServers(dir string) (map[string]entry, error) {
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		return nil, errors.New("no chromium: scripts/setup bench installs it")
	}
	npm := func(env map[string]string, name, file string, args ...string) entry {
		return entry{Command: b.peers.node(), Args: append([]string{b.codemodeModule(name, file)}, args...), Env: env}
	}
	return map[string]entry{
		"files":      npm(nil, "@modelcontextprotocol/server-filesystem", "dist/index.js", filepath.Join(dir, "files")),
		"memory":     npm(map[string]string{"MEMORY_FILE_PATH": filepath.Join(dir, "memory.jsonl")}, "@modelcontextprotocol/server-memory", "dist/index.js"),
		"everything": npm(nil, "@modelcontextprotocol/server-everything", "dist/index.js"),
		"sql":        npm(nil, "@bytebase/dbhub", "dist/index.js", "--transport", "stdio", "--dsn", "sqlite://"+filepath.Join(dir, "shop.db")),
		"browser": npm(map[string]string{"TMPDIR": b.short}, "@playwright/mcp", "cli.js", "--headless", "--isolated", "--no-sandbox", "--browser", "chromium",
			"--executable-path", chromium, "--output-dir", filepath.Join(dir, "browser")),
	}, nil
}

// directly solves tasks by direct calls.
type directly struct {
	w          *codemode.World
	sessions   map[string]*mcp.ClientSession // by server
	catalogues map[string]string             // by server
	name       func(server, tool string) string
	end        []func() error
}

// openDirect connects the SDK's client to each server.
func openDirect(ctx context.Context, b *bench, w *codemode.World, dir string) (solver, error) {
	servers, err := b.codemodeServers(dir)
	if err != nil {
		return nil, err
	}
	d := &directly{w: w, sessions: make(map[string]*mcp.ClientSession), catalogues: make(map[string]string), name: func(_, tool string) string { return tool }}
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		e := servers[name]
		env := os.Environ()
		for k, v := range e.Env {
			env = append(env, k+"="+v)
		}
		session, _, err := overPatientStdio(ctx, env, append([]string{e.Command}, e.Args...), stopDelay)
		if err != nil {
			return nil, errors.Join(err, d.close())
		}
		d.end = append(d.end, session.Close)
		d.sessions[name] = session
		if d.catalogues[name], err = catalogueOf(ctx, session, nil); err != nil {
			return nil, errors.Join(err, d.close())
		}
	}
	return d, d.warm(ctx)
}

// openGateway connects to glovebox mcp serve, which offers all servers as one.
func openGateway(ctx context.Context, b *bench, w *codemode.World, dir string) (solver, error) {
	all, err := b.codemodeServers(dir)
	if err != nil {
		return nil, err
	}
	servers, env, err := b.trustServers(ctx, dir)
	if err != nil {
		return nil, err
	}
	session, _, err := overPatientStdio(ctx, env, []string{b.binary, "mcp", "--config", servers, "serve"}, stopDelay)
	if err != nil {
		return nil, err
	}
	d := &directly{
		w: w, sessions: map[string]*mcp.ClientSession{"": session}, catalogues: make(map[string]string),
		name: func(server, tool string) string { return server + "__" + tool }, end: []func() error{session.Close},
	}
	if d.catalogues[""], err = catalogueOf(ctx, session, nil); err != nil {
		return nil, errors.Join(err, d.close())
	}
	for server := range all { // the definitions of one server
		if d.catalogues[server], err = catalogueOf(ctx, session, func(tool string) bool { return strings.HasPrefix(tool, server+"__") }); err != nil {
			return nil, errors.Join(err, d.close())
		}
	}
	return d, d.warm(ctx)
}

func (d *directly) warm(ctx context.Context) error {
	if _, _, err := d.solve(ctx, codemode.Warm); err != nil {
		return errors.Join(err, d.close())
	}
	return nil
}

func (d *directly) Name(server, tool string) string { return d.name(server, tool) }

func (d *directly) Call(ctx context.Context, server, tool string, arguments map[string]any) (*mcp.CallToolResult, error) {
	session := d.sessions[server]
	if session == nil {
		session = d.sessions[""]
	}
	return session.CallTool(ctx, &mcp.CallToolParams{Name: d.name(server, tool), Arguments: arguments})
}

func (d *directly) definitions(t *codemode.Task) (own, all string) {
	for _, name := range t.Servers {
		own += d.catalogues[name]
	}
	if whole, ok := d.catalogues[""]; ok {
		return own, whole
	}
	for _, name := range slices.Sorted(maps.Keys(d.catalogues)) {
		all += d.catalogues[name]
	}
	return own, all
}

func (d *directly) solve(ctx context.Context, t *codemode.Task) ([]codemode.Turn, any, error) {
	c := &codemode.Conversation{Caller: d}
	answer, err := t.Direct(ctx, d.w, c)
	return c.Turns, answer, err
}

func (d *directly) close() (err error) {
	for _, end := range d.end {
		err = errors.Join(err, end())
	}
	return err
}

// byCode solves tasks by code in boxes of glovebox stdio.
type byCode struct {
	w         *codemode.World
	language  string
	session   *mcp.ClientSession
	catalogue string
	last      *mcp.CallToolResult
}

// openCode returns the solver for a language.
func openCode(language string) func(context.Context, *bench, *codemode.World, string) (solver, error) {
	return func(ctx context.Context, b *bench, w *codemode.World, dir string) (solver, error) {
		return b.openCode(ctx, w, dir, language)
	}
}

func (b *bench) openCode(ctx context.Context, w *codemode.World, dir, language string) (solver, error) {
	servers, env, err := b.trustServers(ctx, dir)
	if err != nil {
		return nil, err
	}
	env = append(env, "GLOVEBOX_TOOLSETS=sessions,files", "GLOVEBOX_TOOL_RULES=allow files,allow memory,allow everything,allow sql,allow browser")
	// It writes its boxes to disk when it ends.
	session, _, err := overPatientStdio(ctx, env, []string{b.binary, "stdio", "--tools", servers}, stopLimit)
	if err != nil {
		return nil, err
	}
	c := &byCode{w: w, language: language, session: session}
	if c.catalogue, err = catalogueOf(ctx, session, nil); err != nil {
		return nil, errors.Join(err, c.close())
	}
	conversation := &codemode.Conversation{Caller: c}
	for _, language := range []string{"javascript", language} { // and the first box of the language
		if _, err := conversation.Ask(ctx, codemode.Call{Tool: "execute_code", Arguments: map[string]any{"language": language, "code": codemode.Warm.Programs(w, language)[0]}}); err != nil {
			return nil, errors.Join(err, c.close())
		}
	}
	return c, nil
}

func (c *byCode) Name(_, tool string) string { return tool }

func (c *byCode) Call(ctx context.Context, _, tool string, arguments map[string]any) (r *mcp.CallToolResult, err error) {
	r, err = c.session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: arguments})
	c.last = r
	return r, err
}

func (c *byCode) definitions(*codemode.Task) (own, all string) { return c.catalogue, c.catalogue }

// solve searches for the tools, and runs the programs of the task in a new session.
func (c *byCode) solve(ctx context.Context, t *codemode.Task) ([]codemode.Turn, any, error) {
	conversation := &codemode.Conversation{Caller: c}
	found, err := conversation.Ask(ctx, codemode.Call{Tool: "search_tools", Arguments: map[string]any{"query": t.Search, "language": c.language}})
	if err != nil {
		return nil, nil, err
	}
	if missing := notNamed(t.Tools, found[0]); len(missing) > 0 {
		if _, err := conversation.Ask(ctx, codemode.Call{Tool: "describe_tools", Arguments: map[string]any{"names": missing, "detail": "signatures", "language": c.language}}); err != nil {
			return nil, nil, err
		}
	}
	arguments := map[string]any{"language": c.language}
	var out struct {
		SessionID string `json:"session_id"`
		Stdout    string `json:"stdout"`
	}
	for _, program := range t.Programs(c.w, c.language) {
		arguments["code"] = program
		if _, err := conversation.Ask(ctx, codemode.Call{Tool: "execute_code", Arguments: arguments}); err != nil {
			return nil, nil, err
		}
		facts, err := json.Marshal(c.last.StructuredContent)
		if err == nil {
			err = json.Unmarshal(facts, &out)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read the result of the program: %w", err)
		}
		arguments = map[string]any{"session_id": out.SessionID}
	}
	var answer any
	if err := json.Unmarshal([]byte(out.Stdout), &answer); err != nil {
		return nil, nil, fmt.Errorf("the program printed no answer: %w: %.300q", err, out.Stdout)
	}
	return conversation.Turns, answer, nil
}

func (c *byCode) close() error { return c.session.Close() }

// notNamed returns the tools that a text does not mention. Code may write underscores.
func notNamed(tools []string, text string) []string {
	return slices.DeleteFunc(slices.Clone(tools), func(t string) bool {
		return strings.Contains(text, t) || strings.Contains(text, strings.ReplaceAll(t, "-", "_"))
	})
}

// trustServers writes an mcp.json with the servers and approves them in a state directory
// of its own. It returns the path of the mcp.json and the environment for glovebox.
func (b *bench) trustServers(ctx context.Context, dir string) (servers string, env []string, err error) {
	all, err := b.codemodeServers(dir)
	if err != nil {
		return "", nil, err
	}
	if servers, err = b.writeServers(filepath.Base(dir)+".json", all); err != nil {
		return "", nil, err
	}
	env = b.environment(filepath.Base(dir) + "-state")
	cmd := prepare(ctx, append([]string{b.binary, "mcp", "--config", servers, "trust", "--yes"}, slices.Sorted(maps.Keys(all))...)...)
	cmd.Env = env
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", nil, fmt.Errorf("glovebox mcp trust: %w: %s", err, lastLine(string(text)))
	}
	return servers, env, nil
}

// catalogueOf returns the text by which a model knows the tools of a server; keep, unless
// nil, says of which.
func catalogueOf(ctx context.Context, session *mcp.ClientSession, keep func(tool string) bool) (string, error) {
	var tools []*mcp.Tool
	for tool, err := range session.Tools(ctx, nil) {
		if err != nil {
			return "", fmt.Errorf("list tools: %w", err)
		}
		if keep == nil || keep(tool.Name) {
			tools = append(tools, tool)
		}
	}
	instructions := session.InitializeResult().Instructions
	if keep != nil {
		instructions = ""
	}
	return codemode.Catalogue(instructions, tools)
}

// byUTCP solves tasks by code in UTCP's code mode.
type byUTCP struct {
	w         *codemode.World
	cmd       *exec.Cmd
	in        io.WriteCloser
	out       *bufio.Reader
	log       *tail
	catalogue string
}

func openUTCP(ctx context.Context, b *bench, w *codemode.World, dir string) (solver, error) {
	if _, err := os.Stat(filepath.Join(b.here, "peers", "utcp", "node_modules", "isolated-vm", "package.json")); err != nil {
		return nil, err
	}
	all, err := b.codemodeServers(dir)
	if err != nil {
		return nil, err
	}
	servers, err := b.writeServers(filepath.Base(dir)+".json", all)
	if err != nil {
		return nil, err
	}
	u := &byUTCP{w: w, log: &tail{}}
	// isolated-vm asks for it since Node 20.
	u.cmd = prepare(ctx, b.peers.node(), "--no-node-snapshot", filepath.Join(b.here, "peers", "utcp", "run.mjs"), servers)
	u.cmd.Stderr = u.log
	if u.in, err = u.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := u.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	u.out = bufio.NewReader(out)
	if err := u.cmd.Start(); err != nil {
		return nil, err
	}
	if u.catalogue, err = u.ask("catalogue", nil); err != nil {
		return nil, errors.Join(err, u.close())
	}
	if _, err := u.run(inUTCP(codemode.Warm.Programs(w, "javascript")[0])); err != nil {
		return nil, errors.Join(err, u.close())
	}
	return u, nil
}

func (u *byUTCP) definitions(*codemode.Task) (own, all string) { return u.catalogue, u.catalogue }

// inUTCP writes a program for Glovebox as one for UTCP, where tools.files.read_file is
// files.files_read_file. A result there is the text or, of text that is JSON, its value;
// here it is the structured content, which some servers wrap in another object.
func inUTCP(program string) string {
	program = utcpWrapped.ReplaceAllString(program, "const ${1}${2} = await")
	program = strings.NewReplacer("[{content}, ", "[content, ", "JSON.parse(content)", "content").Replace(program)
	return utcpName.ReplaceAllString(program, "$1.${1}_$2")
}

var (
	utcpName    = regexp.MustCompile(`\btools\.(\w+)\.([\w-]+)`)
	utcpWrapped = regexp.MustCompile(`const \{(?:content: (\w+)|(content|results|relations))\} = await`)
)

func (u *byUTCP) solve(_ context.Context, t *codemode.Task) (turns []codemode.Turn, answer any, err error) {
	turn := func(tool string, arguments map[string]any, result string) {
		request, wrong := codemode.Request(tool, arguments)
		err = errors.Join(err, wrong)
		turns = append(turns, codemode.Turn{Requests: request, Results: result + "\n", Calls: 1})
	}
	found, err := u.ask("search", map[string]any{"query": t.Search})
	if err != nil {
		return nil, nil, err
	}
	turn("search_tools", map[string]any{"task_description": t.Search}, found)
	var names []string
	for _, name := range t.Tools {
		names = append(names, strings.ReplaceAll(inUTCP("tools."+name), "-", "_"))
	}
	if missing := notNamed(names, found); len(missing) > 0 {
		described, err := u.ask("describe", map[string]any{"names": missing})
		if err != nil {
			return nil, nil, err
		}
		turn("tools_info", map[string]any{"tool_names": missing}, described)
	}
	for _, program := range t.Programs(u.w, "javascript") {
		program = inUTCP(program)
		result, err := u.run(program)
		if err != nil {
			return nil, nil, err
		}
		turn("call_tool_chain", map[string]any{"code": program}, result)
		var printed struct{ Logs []string }
		if err := json.Unmarshal([]byte(result), &printed); err != nil {
			return nil, nil, err
		}
		answer = nil
		_ = json.Unmarshal([]byte(strings.Join(printed.Logs, "\n")), &answer) // only the last program prints one
	}
	return turns, answer, err
}

// run runs a program and returns the answer to the model.
func (u *byUTCP) run(program string) (string, error) {
	result, err := u.ask("run", map[string]any{"code": program})
	if err == nil && strings.Contains(result, "[ERROR] Code execution failed") {
		err = fmt.Errorf("the program failed: %.500s", result)
	}
	return result, err
}

// ask sends a request and returns the text of the answer.
func (u *byUTCP) ask(op string, arguments map[string]any) (string, error) {
	request := map[string]any{"op": op}
	maps.Copy(request, arguments)
	line, err := json.Marshal(request)
	if err != nil {
		return "", err
	}
	if _, err := u.in.Write(append(line, '\n')); err != nil {
		return "", fmt.Errorf("ask UTCP: %w: %s", err, u.log)
	}
	text, err := u.out.ReadBytes('\n')
	if err != nil {
		return "", fmt.Errorf("read UTCP's answer: %w: %s", err, u.log)
	}
	var answer struct{ Text, Error string }
	if err := json.Unmarshal(text, &answer); err != nil {
		return "", fmt.Errorf("parse UTCP's answer: %w: %.200q", err, text)
	}
	if answer.Error != "" {
		return "", fmt.Errorf("UTCP: %.500s", answer.Error)
	}
	return answer.Text, nil
}

// close ends the program with its servers.
func (u *byUTCP) close() error {
	u.in.Close()
	timer := time.AfterFunc(stopDelay, func() { syscall.Kill(-u.cmd.Process.Pid, syscall.SIGKILL) })
	defer timer.Stop()
	u.cmd.Wait() // its servers may end it
	return nil
}
