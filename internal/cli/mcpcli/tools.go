package mcpcli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/internal/truncate"
	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

func (a *app) toolsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "tools SERVER [TOOL…]",
		Short: "List the tools of a server, or describe some of them",
		Args:  atLeast(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return a.completeServers(cmd, args, word)
			}
			return a.completeTools(args[0]), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: a.run(a.tools),
	}
}

func (a *app) tools(ctx context.Context, args []string) error {
	return a.with(ctx, args[0], nil, func(s *mcpkit.Session) error {
		tools, err := s.Tools(ctx)
		if err != nil {
			return err
		}
		a.cacheTools(ctx, s.Definition(), tools)
		changed, err := a.changedTools(ctx, s.Definition(), tools)
		if err != nil {
			return err
		}
		for _, name := range changed {
			a.note("glovebox: warning: the tool %q has changed since it was first used; %s shows it and asks", name, a.reviewCommand(s.Name()))
		}
		if len(args) > 1 {
			picked := make([]*mcp.Tool, 0, len(args)-1)
			for _, name := range args[1:] {
				t, err := a.pick(s.Name(), tools, name)
				if err != nil {
					return err
				}
				picked = append(picked, t)
			}
			tools = picked
		}
		if a.flags.output == "json" {
			return a.json(map[string]any{"tools": tools})
		}
		var list table
		for _, t := range tools {
			if len(args) > 1 {
				showTool(a.Out, t)
			} else {
				list.add(t.Name, described(t))
			}
		}
		return list.show(a)
	})
}

// summary returns the first line of a description, shortened for completion.
func summary(text string) string {
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	if text == "" {
		return ""
	}
	return "  " + oneLine(truncate.Runes(text, 100))
}

// needsTasks marks a tool that cannot be called.
const needsTasks = "(needs tasks, which glovebox mcp does not support yet)"

// described returns the description of a tool, marked if the tool cannot be called.
func described(t *mcp.Tool) string {
	if mcpkit.RequiresTask(t) {
		return needsTasks + " " + t.Description
	}
	return t.Description
}

// pick returns the tool of a name. Case and separators may differ if one tool matches.
func (a *app) pick(server string, tools []*mcp.Tool, name string) (*mcp.Tool, error) {
	names := make([]string, len(tools))
	var same []*mcp.Tool
	for i, t := range tools {
		if t.Name == name {
			return t, nil
		}
		if fold(t.Name) == fold(name) {
			same = append(same, t)
		}
		names[i] = t.Name
	}
	if len(same) == 1 {
		a.note("glovebox: note: %s has no tool %q; using %q", server, name, same[0].Name)
		return same[0], nil
	}
	return nil, usage(suggestion(name, names, fmt.Sprintf("glovebox mcp tools %s lists them", server)), "mcp server %q has no tool %q", server, name)
}

func fold(name string) string {
	return strings.NewReplacer("_", "", "-", "", ".", "").Replace(strings.ToLower(name))
}

// showTool prints a tool with its arguments.
func showTool(w io.Writer, t *mcp.Tool) {
	fmt.Fprintf(w, "%s\n", oneLine(t.Name))
	if mcpkit.RequiresTask(t) {
		fmt.Fprintf(w, "    %s\n", needsTasks)
	}
	for line := range strings.Lines(strings.TrimSpace(t.Description)) {
		fmt.Fprintf(w, "    %s\n", oneLine(strings.TrimRight(line, "\n")))
	}
	s := schemaOf(t)
	for _, name := range s.names() {
		p := s.property(name)
		need := ""
		if slices.Contains(s.Required, name) {
			need = " (required)"
		}
		fmt.Fprintf(w, "  %s=%s%s%s\n", oneLine(name), oneLine(p.kind()), need, after(p.Description))
	}
	fmt.Fprintln(w)
}

// split splits SERVER.TOOL or SERVER TOOL. Both names may contain dots.
func (a *app) split(cfg *mcpjson.Config, args []string) (server, tool string, rest []string, err error) {
	if cfg.Server(args[0]) != nil {
		if len(args) < 2 {
			return "", "", nil, usage(fmt.Sprintf("glovebox mcp tools %s lists them", args[0]), "name the tool of %q to call", args[0])
		}
		return args[0], args[1], args[2:], nil
	}
	for i := len(args[0]) - 1; i > 0; i-- {
		if args[0][i] == '.' && cfg.Server(args[0][:i]) != nil {
			return args[0][:i], args[0][i+1:], args[1:], nil
		}
	}
	server, _, _ = strings.Cut(args[0], ".")
	return "", "", nil, &mcpkit.UnknownServerError{Name: server, Known: serverNames(cfg)}
}
