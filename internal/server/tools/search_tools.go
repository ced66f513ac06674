package tools

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/codemode"
)

var searchTools = define(info{
	name:  "search_tools",
	title: "Search tools for code",
	description: "Find tools of the user's MCP servers that code can call. The answer has a line for each tool that matches, the best first: how code calls it, and what it does. " +
		"Without a query all tools match. describe_tools returns their documentation.",
	set: Sessions, code: true, family: sessionErrors, readOnly: true, idempotent: true,
}, func(ctx context.Context, c *Call, in searchToolsIn) (toolsOut, error) {
	if c.broker == nil {
		return toolsOut{}, errNoCode()
	}
	language, err := codeLanguage(in.Language)
	if err != nil {
		return toolsOut{}, err
	}
	found, matches := c.broker.Search(ctx, in.Query, in.Limit, language)
	out := toolsOut{Tools: []string{}, Matches: matches}
	switch in.Detail {
	case "full":
		if len(found) == 0 {
			break
		}
		err = out.declare(ctx, c, codemode.NamesOf(found), language)
	default:
		out.list(found, in.Detail)
	}
	if err != nil {
		return toolsOut{}, err
	}
	if matches == 0 && in.Query != "" && c.broker.HasTools(ctx) {
		out.Notes = append(out.Notes, "No tool has one of these words in its name or description: leave out query to list others.")
	}
	if more := matches - len(found); more > 0 {
		if in.Query == "" {
			if by := c.broker.Servers(ctx); by != "" {
				out.Notes = append(out.Notes, by)
			}
		}
		out.Notes = append(out.Notes, fmt.Sprintf("%d more match: narrow the query, or raise limit (to 100).", more))
	}
	out.Notes = append(out.Notes, c.broker.Missing(ctx, in.Query)...)
	return out, nil
})

type searchToolsIn struct {
	Query    string `json:"query,omitempty" jsonschema:"words of names and descriptions" max:"256"`
	Detail   string `json:"detail,omitempty" jsonschema:"full is as in describe_tools" enum:"names,signatures,full" default:"signatures"`
	Limit    int    `json:"limit,omitempty" jsonschema:"the most tools to return" min:"1" max:"100" default:"10"`
	Language string `json:"language,omitempty" jsonschema:"of the code" oneof:"python,javascript,shell" default:"python"`
}

// codeLanguage reads the language of code that calls tools: a name that execute_code knows, or
// that of a shell.
func codeLanguage(name string) (codemode.Language, error) {
	switch strings.ToLower(strings.TrimSpace(name)) {
	case "shell", "bash", "sh":
		return codemode.Shell, nil
	}
	t, err := box.ParseLanguage(name)
	if err != nil {
		return 0, invalid("language", "Unsupported language: %s. Must be 'python', 'javascript' or 'shell'", clip(name))
	}
	return codemode.LanguageOf(t.Language()), nil
}

type toolsOut struct {
	Tools   []string `json:"tools" jsonschema:"a line for each tool, or all declarations"`
	Matches int      `json:"matches" jsonschema:"number of tools that match"`
	Notes   []string `json:"notes,omitempty" jsonschema:"further facts"`
}

// list adds a line for each tool.
func (o *toolsOut) list(found []codemode.Entry, detail string) {
	for _, f := range found {
		if detail == "names" {
			o.Tools = append(o.Tools, f.Named())
		} else {
			o.Tools = append(o.Tools, f.Line)
		}
	}
}

// declare adds the declarations of the tools that names mean, and notes about names that
// mean none.
func (o *toolsOut) declare(ctx context.Context, c *Call, names []string, l codemode.Language) error {
	text, n, notes, err := c.broker.Declarations(ctx, names, l)
	if err != nil {
		return aboutTools(err)
	}
	o.Tools, o.Matches, o.Notes = append(o.Tools, text), max(o.Matches, n), append(o.Notes, notes...)
	return nil
}

func (o toolsOut) present() presentation {
	p := presentation{text: strings.Join(o.Tools, "\n"), notes: o.Notes}
	if o.Matches == 1 {
		p.status.add("1 tool")
	} else {
		p.status.add("%d tools", o.Matches)
	}
	return p
}

// opDescribeTools is the operation of errors about MCP servers, none of whose tools can be
// described.
const opDescribeTools = "describe tools"

// aboutTools converts an error of a broker. Only errors that other names would avoid
// are invalid arguments.
func aboutTools(err error) error {
	e, ok := errors.AsType[*codemode.Error](err)
	if !ok {
		return err
	}
	switch e.Code {
	case codemode.UnknownServer, codemode.UnknownTool, codemode.InvalidArguments:
		return invalid("names", "%s", e.Message)
	}
	return &box.Error{
		Code: box.CodeUnsupported, Op: opDescribeTools, Msg: e.Message,
		Context: map[string]string{"server": e.Server, "code": string(e.Code)},
	}
}

// errNoCode is the error for an owner whose code can call no tools.
func errNoCode() error {
	return invalid("", "Code cannot call tools of MCP servers here: none are configured for this user. The user can start Glovebox with --tools and an mcp.json file")
}
