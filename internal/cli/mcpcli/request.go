package mcpcli

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/mcpkit"
)

func (a *app) requestCommand() *cobra.Command {
	return a.rawCommand("request", "Send a request of any method", func(ctx context.Context, s *mcpkit.Session, method string, params json.RawMessage) error {
		res, err := s.Request(ctx, method, params)
		if err != nil {
			return err
		}
		return a.json(res)
	})
}

func (a *app) notifyCommand() *cobra.Command {
	return a.rawCommand("notify", "Send a notification of any method", func(ctx context.Context, s *mcpkit.Session, method string, params json.RawMessage) error {
		if err := s.Notify(ctx, method, params); err != nil {
			return err
		}
		if a.flags.output == "json" {
			return a.json(map[string]bool{"ok": true})
		}
		return nil
	})
}

// rawCommand returns a command that sends a message to a server.
func (a *app) rawCommand(name, short string, send func(ctx context.Context, s *mcpkit.Session, method string, params json.RawMessage) error) *cobra.Command {
	return &cobra.Command{
		Use:               name + " SERVER METHOD [PARAMS]",
		Short:             short + ", with params as JSON or @file",
		Args:              between(2, 3),
		ValidArgsFunction: a.completeServers,
		RunE: a.run(func(ctx context.Context, args []string) error {
			params, err := a.params(args)
			if err != nil {
				return err
			}
			return a.with(ctx, args[0], nil, func(s *mcpkit.Session) error {
				return send(ctx, s, args[1], params)
			})
		}),
	}
}

// params parses the third argument.
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

// between requires least to most arguments.
func between(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return usage(cmd.CommandPath()+" --help shows its arguments", "%s takes %d to %d arguments, got %d", cmd.CommandPath(), least, most, len(args))
		}
		return nil
	}
}
