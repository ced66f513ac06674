package cli

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/mcpcli"
)

// mcpCommand is all that is done with other servers.
func (a *app) mcpCommand() *cobra.Command {
	v, _ := buildVersion()
	return mcpcli.Command(mcpcli.Env{
		In: a.In, Out: a.Out, Err: a.Err,
		Lookup:   a.lookup,
		Environ:  os.Environ,
		StateDir: func() (string, error) { return config.StateDir(a.lookup) },
		Until: func(ctx context.Context) (context.Context, func()) {
			return untilSignal(ctx, func() {}, nil)
		},
		Version: v,
	})
}
