package mcpcli

import (
	"context"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/mcpkit"
)

func (a *app) promptsCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "prompts SERVER",
		Short:             "List the prompts of a server",
		Args:              exactly(1),
		ValidArgsFunction: a.completeServers,
		RunE:              a.run(a.prompts),
	}
}

func (a *app) prompts(ctx context.Context, args []string) error {
	return a.with(ctx, args[0], nil, func(s *mcpkit.Session) error {
		prompts, err := s.Prompts(ctx)
		if err != nil {
			return err
		}
		if a.flags.output == "json" {
			return a.json(map[string]any{"prompts": prompts})
		}
		for _, p := range prompts {
			fmt.Fprintf(a.Out, "%s%s\n", oneLine(p.Name), after(p.Description))
			for _, arg := range p.Arguments {
				need := ""
				if arg.Required {
					need = " (required)"
				}
				fmt.Fprintf(a.Out, "  %s=string%s%s\n", oneLine(arg.Name), need, after(arg.Description))
			}
		}
		return nil
	})
}

func (a *app) promptCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "prompt SERVER PROMPT [key=value…]",
		Short:             "Get a prompt",
		Args:              atLeast(2),
		ValidArgsFunction: a.completeServers,
		RunE:              a.run(a.prompt),
	}
}

func (a *app) prompt(ctx context.Context, args []string) error {
	given, err := a.arguments(args[2:], "")
	if err != nil {
		return err
	}
	values := make(map[string]string)
	for _, arg := range given {
		values[arg.key] = arg.text
		if arg.json != nil {
			values[arg.key] = string(arg.json)
		}
	}
	return a.with(ctx, args[0], nil, func(s *mcpkit.Session) error {
		res, err := s.GetPrompt(ctx, args[1], values)
		if err != nil {
			return err
		}
		if a.flags.output == "json" {
			return a.json(res)
		}
		for _, m := range res.Messages {
			fmt.Fprintf(a.Out, "[%s]\n", oneLine(string(m.Role)))
			if err := a.result(&mcp.CallToolResult{Content: []mcp.Content{m.Content}}, args[0]+"-prompt", ""); err != nil {
				return err
			}
		}
		return nil
	})
}
