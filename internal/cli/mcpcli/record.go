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

// recorded has a command, which is about one server, record what is said, or play
// the server from a recording.
func (a *app) recorded(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVar(&a.flags.record, "record", "", "record all that is said to this `file`, without secrets")
	cmd.Flags().StringVar(&a.flags.replay, "replay", "", "take the answers from this recording in place of a server; no configuration is read")
	return cmd
}

// replayed is a configuration of nothing but the server of the recording.
func (a *app) replayed() (*mcpjson.Config, error) {
	r, err := cassette.Load(a.flags.replay)
	if err != nil {
		return nil, usage("--record FILE makes a recording", "%w", err)
	}
	a.recording = r
	return &mcpjson.Config{Servers: []*mcpjson.Server{{Name: r.Server}}}, nil
}

// taped changes the options of a manager as the flags say. The function ends the
// recording when the manager is closed.
func (a *app) taped(o *mcpkit.Options) (end func() error, err error) {
	switch {
	case a.recording != nil:
		o.Dial = func(context.Context, *mcpjson.Server) (mcp.Connection, error) {
			return cassette.NewPlayer(a.recording), nil
		}
		o.Eras = nil // it is no server that is met again
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

// kept is a recording that goes on with the next connection.
type kept struct{ io.Writer }

func (kept) Close() error { return nil }
