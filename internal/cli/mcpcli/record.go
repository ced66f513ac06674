package mcpcli

import (
	"context"
	"io"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/cassette"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// recorded adds flags to a command about one server, to record the conversation or to
// replay one.
func (a *app) recorded(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVar(&a.flags.record, "record", "", "record the conversation to this `file`, without secrets")
	cmd.Flags().StringVar(&a.flags.replay, "replay", "", "take the answers from this recording instead of a server, without a configuration")
	return cmd
}

// replayed returns a configuration with only the server of the recording.
func (a *app) replayed() (*mcpjson.Config, error) {
	r, err := cassette.Load(a.flags.replay)
	if err != nil {
		return nil, usage("record one with --record FILE", "%w", err)
	}
	a.recording = r
	return &mcpjson.Config{Servers: []*mcpjson.Server{{Name: r.Server}}}, nil
}

// taped changes the options of a manager for recording or replay. end closes the
// recording after the manager is closed.
func (a *app) taped(o *mcpkit.Options) (end func() error, err error) {
	switch {
	case a.recording != nil:
		o.Dial = func(context.Context, *mcpjson.Server) (mcp.Connection, error) {
			return cassette.NewPlayer(a.recording), nil
		}
		o.Eras = nil // no real server
	case a.flags.record != "":
		f, err := cassette.Create(a.flags.record)
		if err != nil {
			return nil, usage("", "%w", err)
		}
		o.Trace = func(string) io.WriteCloser { return kept{f} }
		return f.Close, nil
	}
	return func() error { return nil }, nil
}

// kept is a recording that stays open between connections.
type kept struct{ io.Writer }

func (kept) Close() error { return nil }
