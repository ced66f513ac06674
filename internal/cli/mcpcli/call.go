package mcpcli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/mcpkit"
)

func (a *app) callCommand() *cobra.Command {
	var json, save string
	cmd := &cobra.Command{
		Use:   "call SERVER.TOOL [key=value…]",
		Short: "Call a tool",
		Long: `Call calls a tool of a server, given as SERVER.TOOL or SERVER TOOL.

Arguments are key=value, converted to the type in the tool's schema. key=@file reads
the value from a file, key=@- from standard input. key:=JSON passes a JSON value of
any type. Repeat a key to pass a list. --json passes all arguments as a JSON object.`,
		Example: `  glovebox mcp call github.search_issues query="is:open label:bug" perPage=5
  glovebox mcp call files.write_file path=copy.txt content=@notes.txt
  glovebox mcp call box.execute_code --json '{"code": "1 + 1"}'`,
		Args: atLeast(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			return a.completeCall(args, word)
		},
		RunE: a.run(func(ctx context.Context, args []string) error { return a.call(ctx, args, json, save) }),
	}
	cmd.Flags().StringVar(&json, "json", "", "the arguments as a JSON `object`, or @file")
	cmd.Flags().StringVar(&save, "save", "", "save images, audio and files of the result to this `directory`")
	return cmd
}

func (a *app) call(ctx context.Context, args []string, whole, save string) error {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	server, tool, rest, err := a.split(cfg, args)
	if err != nil {
		return err
	}
	// Report invalid arguments before the server starts.
	given, err := a.arguments(rest, whole)
	if err != nil {
		return err
	}
	longer := func(o *mcpkit.Options) { o.Limits.Request = callTimeout }
	return a.withConfig(ctx, cfg, server, longer, func(s *mcpkit.Session) error {
		tools, err := s.Tools(ctx)
		if err != nil {
			return err
		}
		a.cacheTools(ctx, s.Definition(), tools)
		t, err := a.pick(server, tools, tool)
		if err != nil {
			return err
		}
		changed, err := a.changedTools(ctx, s.Definition(), tools)
		if err != nil {
			return err
		}
		if slices.Contains(changed, t.Name) {
			return &Error{Code: ExitRefused, HintTo: a.reviewCommand(server) + " shows it and asks; if the server changes its tools each time, " + a.unpinCommand(server) + " accepts all changes",
				Err: fmt.Errorf("refusing to call tool %q of mcp server %q: it has changed since it was first used", t.Name, server)}
		}
		if mcpkit.RequiresTask(t) {
			return fmt.Errorf("call tool %q of mcp server %q: %w", t.Name, server, mcpkit.ErrTaskRequired)
		}
		arguments, err := schemaOf(t).read(server, t.Name, given)
		if err != nil {
			return err
		}
		params := &mcp.CallToolParams{Name: t.Name, Arguments: arguments}
		if a.showsProgress() {
			params.SetProgressToken("call-" + time.Now().UTC().Format("150405.000000"))
		}
		res, err := s.CallTool(ctx, params)
		if err != nil {
			return err
		}
		if err := a.result(res, server+"-"+t.Name, save); err != nil {
			return err
		}
		if res.IsError {
			return &Error{Code: ExitTool, Err: errors.New("the tool reported a failure"), Silent: true}
		}
		return nil
	})
}
