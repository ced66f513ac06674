package tools

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
)

var update = flag.Bool("update", false, "rewrite the files under testdata/catalog and docs/tools.md")

// listCeiling bounds tools/list, which every conversation pays for, and codeCeiling what
// code mode adds to it.
const (
	listCeiling = 37 << 10
	codeCeiling = 4 << 10
)

func TestCatalog(t *testing.T) {
	total, code := 0, 0
	var files []string
	for _, tool := range All() {
		compact, err := json.Marshal(tool.Def)
		if err != nil {
			t.Fatal(err)
		}
		if tool.code {
			code += len(compact)
		} else {
			total += len(compact)
			code += len(tool.calls)
		}
		got, err := json.MarshalIndent(tool.Def, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, '\n')
		name := tool.Def.Name + ".json"
		files = append(files, name)
		path := filepath.Join("testdata", "catalog", name)
		if *update {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("%s: the definition differs from %s; run go generate ./internal/server/tools and review the change", tool.Def.Name, path)
		}
	}
	entries, err := os.ReadDir(filepath.Join("testdata", "catalog"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !slices.Contains(files, e.Name()) {
			t.Errorf("testdata/catalog/%s is of no tool", e.Name())
		}
	}
	t.Logf("tools/list: %d bytes, %d more in code mode", total, code)
	if total > listCeiling || code > codeCeiling {
		t.Errorf("tools/list has %d bytes and %d more in code mode, want at most %d and %d", total, code, listCeiling, codeCeiling)
	}
}

var toolName = regexp.MustCompile(`^[a-z]+(_[a-z]+)+$`)

func TestLint(t *testing.T) {
	seen := make(map[string]bool)
	for _, tool := range All() {
		d := tool.Def
		if !toolName.MatchString(d.Name) {
			t.Errorf("%s: the name is not a verb in snake case", d.Name)
		}
		if seen[d.Name] {
			t.Errorf("%s: twice in the catalogue", d.Name)
		}
		seen[d.Name] = true
		if len(d.Description) < 60 || !strings.HasSuffix(d.Description, ".") {
			t.Errorf("%s: the description is too short or no sentence: %q", d.Name, d.Description)
		}
		if d.Title == "" || !slices.Contains(Sets(), tool.Set) || tool.Needs != "" && !slices.Contains(Sets(), tool.Needs) {
			t.Errorf("%s: title %q, set %q, needs %q", d.Name, d.Title, tool.Set, tool.Needs)
		}
		// Exactly the tools that may take long have a time-out.
		if limited := strings.Contains(string(d.InputSchema.(json.RawMessage)), `"timeout"`); limited != tool.Long {
			t.Errorf("%s: has a time-out: %v, may become a task: %v", d.Name, limited, tool.Long)
		}
		a := d.Annotations
		if a == nil || a.DestructiveHint == nil || a.OpenWorldHint == nil || *a.OpenWorldHint {
			t.Errorf("%s: annotations are not all set: %+v", d.Name, a)
		} else if a.ReadOnlyHint && (*a.DestructiveHint || !a.IdempotentHint) {
			t.Errorf("%s: a tool that only reads is neither destructive nor not idempotent", d.Name)
		}
		for which, raw := range map[string]any{"input": d.InputSchema, "output": d.OutputSchema} {
			var s jsonschema.Schema
			if err := json.Unmarshal(raw.(json.RawMessage), &s); err != nil {
				t.Fatal(err)
			}
			if s.Type != "object" || len(s.AnyOf)+len(s.OneOf)+len(s.AllOf) > 0 {
				t.Errorf("%s: the %s schema is not a plain object", d.Name, which)
			}
			if _, err := s.Resolve(nil); err != nil {
				t.Errorf("%s: resolve %s schema: %v", d.Name, which, err)
			}
			lintFields(t, d.Name+" "+which, &s)
		}
	}
}

// TestDefault bounds what the tools of a server without settings cost a model in
// every conversation: names, descriptions and input schemas, which are what hosts
// pass on. A token is about four characters of them.
func TestDefault(t *testing.T) {
	checkDefault(t, Offer{Sets: []string{string(Sessions)}}, 5800, // 1,281 tokens of OpenAI's o200k_base when there were 5552 characters
		[]string{"numpy", "no network", "pip install", "session_id", "Variables, imports and files stay", "default 300"})
}

// TestDefault_codeMode is TestDefault for a server with --tools.
func TestDefault_codeMode(t *testing.T) {
	checkDefault(t, Offer{Sets: []string{string(Sessions)}, Code: true}, 8000,
		[]string{"tools.SERVER.TOOL(name=value)", "await tools.SERVER.TOOL({", "glovebox-tool SERVER.TOOL name=value", "search_tools", "describe_tools", "ToolError", "Prefer code", "a direct call is simpler", "await each call", "plain data", "print a sample"})
}

func checkDefault(t *testing.T, o Offer, ceiling int, phrases []string) {
	type shown struct {
		Name        string `json:"name"`
		Description string `json:"description"`
		InputSchema any    `json:"input_schema"`
	}
	var list []shown
	for _, tool := range All() {
		if !tool.In(o) {
			continue
		}
		d := tool.Definition(o)
		list = append(list, shown{d.Name, d.Description, d.InputSchema})
		if strings.Contains(d.Description, "operator") {
			t.Errorf("%s: a model cannot ask the operator: %q", d.Name, d.Description)
		}
	}
	data, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d tools of %d characters", len(list), len(data))
	if n := len(list); n < 7 || n > 9 || len(data) > ceiling {
		t.Errorf("%d tools of %d characters, want 7 to 9 tools of at most %d", n, len(data), ceiling)
	}
	// Descriptions repeat the instructions, which many hosts drop.
	for _, w := range phrases {
		if !strings.Contains(string(data), w) {
			t.Errorf("no description says %q", w)
		}
	}
}

// TestFunctionSchemas: input schemas are within what the APIs of models accept as
// the parameters of a function. OpenAI answers 400 to an object without properties,
// Gemini to types that are arrays and to references; names have at most 64
// characters of the usual ones.
func TestFunctionSchemas(t *testing.T) {
	var check func(t *testing.T, where string, v any)
	check = func(t *testing.T, where string, v any) {
		m, ok := v.(map[string]any)
		if !ok {
			t.Errorf("%s: got %v, want a schema", where, v)
			return
		}
		if _, ok := m["type"].(string); !ok {
			t.Errorf("%s: type is %v", where, m["type"])
		}
		for key := range m {
			switch key {
			case "type", "description", "properties", "required", "additionalProperties", "items", "enum", "default", "minimum", "maximum", "minLength", "maxLength":
			default:
				t.Errorf("%s: has %q", where, key)
			}
		}
		if m["type"] == "object" {
			properties, ok := m["properties"].(map[string]any)
			if !ok || m["additionalProperties"] != false {
				t.Errorf("%s: properties %v, additionalProperties %v", where, m["properties"], m["additionalProperties"])
			}
			for name, p := range properties {
				check(t, where+"."+name, p)
			}
		}
		if m["type"] == "array" {
			check(t, where+"[]", m["items"])
		}
	}
	for _, tool := range All() {
		var schema any
		if err := json.Unmarshal(tool.Def.InputSchema.(json.RawMessage), &schema); err != nil {
			t.Fatal(err)
		}
		check(t, tool.Def.Name, schema)
		if n := len(tool.Def.Name); n > 64 || len(tool.Definition(Offer{Code: true}).Description) > 1024 {
			t.Errorf("%s: a name of %d and a description of %d characters", tool.Def.Name, n, len(tool.Definition(Offer{Code: true}).Description))
		}
	}
}

func lintFields(t *testing.T, where string, s *jsonschema.Schema) {
	t.Helper()
	if s.Type == "object" && s.AdditionalProperties == nil {
		t.Errorf("%s: additionalProperties is not false", where)
	}
	for name, p := range s.Properties {
		if p.Description == "" || p.Type == "" {
			t.Errorf("%s.%s: description %q, type %q", where, name, p.Description, p.Type)
		}
		if p.Items != nil {
			lintFields(t, where+"."+name, p.Items)
		}
	}
}

func TestErrorSpecs_AreComplete(t *testing.T) {
	for code, m := range errorSpecs {
		if m.code == 0 || m.word == "" || m.severity == "" ||
			!slices.Contains([]string{"configuration", "resource", "network", "execution", "session", "system"}, m.category) {
			t.Errorf("%s: %+v is not complete", code, m)
		}
	}
}

func TestDocs(t *testing.T) {
	path := filepath.Join("..", "..", "..", "docs", "tools.md")
	got := markdown()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Error("docs/tools.md differs from the catalogue; run go generate ./internal/server/tools")
	}
}

func markdown() string {
	var b strings.Builder
	b.WriteString("<!-- Generated by go generate ./internal/server/tools; do not edit. -->\n\n# Tools\n\n")
	b.WriteString("The MCP tools of Glovebox. By default a server offers the sets `sessions` and `files`; `--toolset` selects others, and `all` everything. `language` is `python` or `javascript`; the value `node` is accepted too, and `template` also takes a language. Arguments may be nested under `params`. A `null` argument counts as absent, and so do the words `null`, `none`, `nil` and `undefined` in place of the id of a session or context, unless one has that name. Numbers and booleans may be strings, and an unknown argument is an error.\n")
	for _, set := range Sets() {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n", strings.ToUpper(string(set[:1]))+string(set[1:]), setDocs[set])
		for _, tool := range All() {
			if tool.Set != set {
				continue
			}
			d := tool.Def
			fmt.Fprintf(&b, "\n### %s\n\n%s\n\n", d.Name, d.Description)
			var hints []string
			if d.Annotations.ReadOnlyHint {
				hints = append(hints, "read-only")
			}
			if *d.Annotations.DestructiveHint {
				hints = append(hints, "destructive")
			}
			if d.Annotations.IdempotentHint {
				hints = append(hints, "idempotent")
			}
			if len(hints) > 0 {
				fmt.Fprintf(&b, "Hints: %s.\n\n", strings.Join(hints, ", "))
			}
			if tool.code {
				b.WriteString("Offered in [code mode](code-mode.md).\n\n")
			}
			if tool.calls != "" {
				fmt.Fprintf(&b, "In [code mode](code-mode.md) the description goes on: %s\n\n", tool.calls)
			}
			if tool.Long {
				b.WriteString("May become a [task](#tasks).\n\n")
			}
			if tool.Needs != "" {
				fmt.Fprintf(&b, "Needs the set `%s` as well.\n\n", tool.Needs)
			}
			fields(&b, "Argument", tool.online, d.InputSchema)
			fields(&b, "Result", d.OutputSchema, d.OutputSchema)
		}
	}
	b.WriteString(taskDocs)
	b.WriteString(errorDocs)
	b.WriteString("| code | JSON-RPC | `error_code` | category | severity | text code |\n|---|---|---|---|---|---|\n")
	var codes []string
	for code := range errorSpecs {
		codes = append(codes, string(code))
	}
	slices.Sort(codes)
	for _, code := range codes {
		for c, m := range errorSpecs {
			if string(c) == code {
				text := m.text
				if text == "" {
					text = "the tool's own"
				}
				fmt.Fprintf(&b, "| %s | %d | %s | %s | %s | %s |\n", code, m.code, m.word, m.category, m.severity, text)
			}
		}
	}
	return b.String()
}

var setDocs = map[Set]string{
	Sessions: "A session is a sandbox with an id. The text of a result begins with the output. A line after it names the session, in full if it is new, and says how the call ended; notes follow. `structuredContent` has the same facts as fields. A failure outside the sandbox, such as an invalid argument, is a result with `isError` whose text gives the reason; `_meta[\"glovebox/error\"]` has code and data. With `--tool-errors=protocol` it is a JSON-RPC error instead.\n\n" +
		"`isError` is also set if the program fails: the code raised an error, or the command's exit code is not 0. Stopping a session that does not exist is not an error. The microsandbox MCP server, whose clients these tools support, behaves the same way. Session tools accept the id or unique name of a context too; a session with that id takes precedence.\n\n" +
		"Sessions and contexts belong to a user (an access token or, without tokens, the user of this machine), not to a connection: every connection of the user to this server may use them and lists all of them. A session that another `glovebox stdio` of the user has in memory is listed as *in use by another server* and cannot be used until that server ends or hibernates it.",
	Contexts: "A context is an interpreter in a sandbox of its own. Its tools return JSON as text and as structured content, and errors as `{\"error\", \"code\"}` with `isError`. The tools' own codes are EXECUTION_FAILED, CONTEXT_CREATION_FAILED (INVALID_CONTEXT_NAME for a bad name) and STOP_FAILED.\n\n" +
		"A program that fails sets `success` to false but not `isError`: clients of the server whose tools these are expect `{\"error\", \"code\"}` with `isError`. For the same reason stopping a context that does not exist is an error, CONTEXT_NOT_FOUND. `run_code` and `stop_context` accept the id of a session too.",
	Files: "Files of a session or a context; `context_id` is accepted in place of `session_id`. Errors have the format of the context tools. Move files larger than 23 MB in parts. `~` is the home directory. `upload_file` without an id creates a session.\n\n" +
		"If `download_file` returns a part of a file of at most 4 MiB, the answer also has a content block of type `resource_link` (protocol revision 2025-06-18 and later). `resources/read` of its URI returns the whole file, to programs rather than to the model: `glovebox://session/ID/home/user/data.csv`, or `context` in place of `session`, with the absolute path in the sandbox. The caller must own the session, and needs the scope `read`. `resources/list` lists no files.",
	Snapshots: "Forks of live boxes, and snapshots to restore. Snapshots belong to their owner and stay on disk until they are deleted; `--max-snapshots` limits their number. " +
		"The tools for contexts need the set `contexts` as well, those for sessions need `sessions` or the absence of `contexts`. Errors of `fork_session`, `snapshot_session` and `restore_session` have the format of the session tools. The others have the format of the context tools, with the code SNAPSHOT_FAILED of their own.",
}

const taskDocs = `
## Tasks

To a client that declares the extension ` + "`io.modelcontextprotocol/tasks`" + `, a call that takes longer than half a second returns a task. The client polls it with ` + "`tasks/get`" + `, and can cancel it with ` + "`tasks/cancel`" + `, which interrupts the code. The finished task contains the result of the call. A client that disconnects does not end its task; one that disconnects before it has the task cancels the call. Only the owner of a task can read it.

Tasks expire an hour after their start. An owner has at most 256 tasks, 32 of them running; beyond that, calls return their results directly. A result may have 16 MiB, all results together 128 MiB, and those of one owner 32 MiB. At these limits, results that their clients have read make room, the oldest first. If that does not suffice for the limit of all, the oldest result of the owner with the most does, if that owner has more than the new result's owner would have. Otherwise an error replaces the new result. Tasks end with their server, which waits for running ones when it stops. Afterwards their results are lost, and the error says so; variables and files of the box are kept.

`

const errorDocs = `
## Errors

Every failure has one internal code. The table maps it to the fields that clients see: the text code is in the JSON of context and file tools; the JSON-RPC code and error_code are in _meta of the results of session tools, or in the error itself with --tool-errors=protocol. The structured content of a failed call has the reason as error (of execute_code and execute_command, as the end of stderr) and one of these codes as error_code; required fields of the result that are not known are empty. A program that fails is a result, not an error. The internal code not_found becomes CONTEXT_NOT_FOUND, SESSION_NOT_FOUND or SNAPSHOT_NOT_FOUND. The internal code gone becomes CALL_INTERRUPTED if the box goes on, so that the next call can use it, and cancelled does if the server stops. The output of a program that was cut off so is in stdout and stderr of the result, or of data.context of the JSON-RPC error.

`

// fields writes a table of the properties of a schema. It marks those that the schema offline
// lacks.
func fields(b *strings.Builder, what string, raw, offline any) {
	var s, always jsonschema.Schema
	if json.Unmarshal(raw.(json.RawMessage), &s) != nil || json.Unmarshal(offline.(json.RawMessage), &always) != nil || len(s.Properties) == 0 {
		return
	}
	fmt.Fprintf(b, "| %s | type | |\n|---|---|---|\n", what)
	order := s.PropertyOrder
	if len(order) == 0 {
		for name := range s.Properties {
			order = append(order, name)
		}
		slices.Sort(order)
		slices.SortStableFunc(order, func(a, c string) int {
			return strings.Compare(fmt.Sprint(!slices.Contains(s.Required, a)), fmt.Sprint(!slices.Contains(s.Required, c)))
		})
	}
	for _, name := range order {
		p := s.Properties[name]
		kind := p.Type
		if len(p.Enum) > 0 {
			var values []string
			for _, v := range p.Enum {
				values = append(values, fmt.Sprint(v))
			}
			kind = strings.Join(values, " \\| ")
		}
		switch {
		case p.Minimum != nil && p.Maximum != nil:
			kind += fmt.Sprintf(", %v to %v", int(*p.Minimum), int(*p.Maximum))
		case p.Minimum != nil:
			kind += fmt.Sprintf(", from %v", int(*p.Minimum))
		}
		if len(p.Default) > 0 {
			kind += ", default " + strings.Trim(string(p.Default), `"`)
		}
		mark := ""
		if what == "Argument" && slices.Contains(s.Required, name) {
			mark = " *"
		}
		description := p.Description
		if always.Properties[name] == nil {
			description += " (offered [where boxes may have a network](egress.md))"
		}
		fmt.Fprintf(b, "| `%s`%s | %s | %s |\n", name, mark, kind, description)
	}
	b.WriteString("\n")
}
