package tools

import (
	"context"

	"github.com/glovebox-dev/glovebox/internal/codemode"
)

var describeTools = define(info{
	name:  "describe_tools",
	title: "Describe tools for code",
	description: "Read the signatures and documentation of tools that code can call: names of search_tools such as github.get_issue, or of servers such as github for all their tools. " +
		"full is like a .pyi file or, for JavaScript, a .d.ts file; schema is the JSON schemas, for what full shortens.",
	set: Sessions, code: true, family: sessionErrors, readOnly: true, idempotent: true,
}, func(ctx context.Context, c *Call, in describeToolsIn) (toolsOut, error) {
	if c.broker == nil {
		return toolsOut{}, errNoCode()
	}
	language, err := codeLanguage(in.Language)
	if err != nil {
		return toolsOut{}, err
	}
	out := toolsOut{Tools: []string{}}
	switch in.Detail {
	case "full":
		if err := out.declare(ctx, c, in.Names, language); err != nil {
			return toolsOut{}, err
		}
		return out, nil
	case codemode.DetailSchema:
		described, notes, err := c.broker.Describe(ctx, in.Names, in.Detail, language)
		if err != nil {
			return toolsOut{}, aboutTools(err)
		}
		for _, d := range described {
			out.Tools = append(out.Tools, d.Text)
			if d.Name != "" { // not the note about those that are missing
				out.Matches++
			}
		}
		out.Notes = notes
		return out, nil
	}
	found, notes, err := c.broker.Lines(ctx, in.Names, language)
	if err != nil {
		return toolsOut{}, aboutTools(err)
	}
	out.Matches, out.Notes = len(found), notes
	out.list(found, in.Detail)
	return out, nil
})

type describeToolsIn struct {
	Names    []string `json:"names" jsonschema:"SERVER.TOOL, or SERVER"`
	Detail   string   `json:"detail,omitempty" jsonschema:"how much to return" enum:"names,signatures,full,schema" default:"full"`
	Language string   `json:"language,omitempty" jsonschema:"of the code" oneof:"python,javascript,shell" default:"python"`
}
