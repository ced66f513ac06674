package mcpcli

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/mcpkit"
)

func (a *app) resourcesCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "resources SERVER",
		Short:             "List the resources and resource templates of a server",
		Args:              exactly(1),
		ValidArgsFunction: a.completeServers,
		RunE:              a.run(a.resources),
	}
}

func (a *app) resources(ctx context.Context, args []string) error {
	return a.with(ctx, args[0], nil, func(s *mcpkit.Session) error {
		resources, err := s.Resources(ctx)
		if err != nil {
			return err
		}
		templates, err := s.ResourceTemplates(ctx)
		if err != nil {
			a.note("glovebox: note: %v", err) // many servers without templates do not implement the method
		}
		if a.flags.output == "json" {
			return a.json(map[string]any{"resources": resources, "resourceTemplates": templates})
		}
		var list table
		for _, r := range resources {
			list.add(r.URI, title(r.Title, r.Name, r.Description))
		}
		for _, t := range templates {
			list.add(t.URITemplate, title(t.Title, t.Name, t.Description))
		}
		return list.show(a)
	})
}

// title returns title or name, and the description.
func title(title, name, description string) string {
	if title == "" {
		title = name
	}
	if description != "" && description != title {
		title += ": " + description
	}
	return title
}

func (a *app) readCommand() *cobra.Command {
	var save string
	cmd := &cobra.Command{
		Use:               "read SERVER URI",
		Short:             "Read a resource",
		Args:              exactly(2),
		ValidArgsFunction: a.completeServers,
		RunE:              a.run(func(ctx context.Context, args []string) error { return a.read(ctx, args, save) }),
	}
	cmd.Flags().StringVar(&save, "save", "", "save binary contents to this `directory`")
	return cmd
}

func (a *app) read(ctx context.Context, args []string, save string) error {
	return a.with(ctx, args[0], nil, func(s *mcpkit.Session) error {
		res, err := s.ReadResource(ctx, args[1])
		if err != nil {
			return err
		}
		if a.flags.output == "json" && save == "" {
			return a.json(res)
		}
		all := &mcp.CallToolResult{}
		for _, c := range res.Contents {
			all.Content = append(all.Content, &mcp.EmbeddedResource{Resource: c})
		}
		return a.result(all, args[0]+"-resource", save)
	})
}
