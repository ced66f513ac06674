package mcpcli

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/mcpkit"
)

func (a *app) requestCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "request SERVER METHOD [PARAMS]",
		Short:             "Make a request of any method, with params as JSON or @file",
		Args:              between(2, 3),
		ValidArgsFunction: a.completeServers,
		RunE: a.run(func(ctx context.Context, args []string) error {
			params, err := a.params(args)
			if err != nil {
				return err
			}
			return a.with(ctx, args[0], nil, func(s *mcpkit.Session) error {
				res, err := s.Request(ctx, args[1], params)
				if err != nil {
					return err
				}
				return a.json(res)
			})
		}),
	}
}

func (a *app) notifyCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "notify SERVER METHOD [PARAMS]",
		Short:             "Send a notification of any method, with params as JSON or @file",
		Args:              between(2, 3),
		ValidArgsFunction: a.completeServers,
		RunE: a.run(func(ctx context.Context, args []string) error {
			params, err := a.params(args)
			if err != nil {
				return err
			}
			return a.with(ctx, args[0], nil, func(s *mcpkit.Session) error {
				if err := s.Notify(ctx, args[1], params); err != nil {
					return err
				}
				if a.flags.output == "json" {
					return a.json(map[string]bool{"ok": true})
				}
				return nil
			})
		}),
	}
}

// params are the third argument.
func (a *app) params(args []string) (json.RawMessage, error) {
	if len(args) < 3 {
		return nil, nil
	}
	text, err := a.atFile(args[2])
	if err != nil {
		return nil, err
	}
	var object map[string]any
	if err := json.Unmarshal([]byte(text), &object); err != nil || object == nil {
		return nil, usage("", "params must be a JSON object: %v", notObject(err))
	}
	return json.RawMessage(text), nil
}

// between refuses any other number of arguments.
func between(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return usage(cmd.CommandPath()+" --help tells what there is", "%s takes %d to %d arguments, got %d", cmd.CommandPath(), least, most, len(args))
		}
		return nil
	}
}
