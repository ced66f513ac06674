package cli

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/internal/box/template"
	"github.com/glovebox-dev/glovebox/internal/config"
)

const (
	// onlyTemplates is the hidden flag of the process that finishes templates.
	onlyTemplates = "only-templates"
	// finishTimeout bounds that process. Two templates on a busy machine take half a
	// minute.
	finishTimeout = 5 * time.Minute
	// finishGrace bounds its cleanup.
	finishGrace = 30 * time.Second
)

// finisherArgs returns the command line of that process: that of the server, with the
// flag first, since "--" may end the flags. The value is part of the word, or cobra would
// take the command's name for it.
func finisherArgs(args []string) []string {
	return slices.Insert(slices.Clone(args), 1, "--"+onlyTemplates+"=true")
}

// bindFinish adds the flag to a command that serves over standard input and output.
func bindFinish(cmd *cobra.Command) (only *bool) {
	only = cmd.Flags().Bool(onlyTemplates, false, "build the templates and exit")
	_ = cmd.Flags().MarkHidden(onlyTemplates) // the flag exists
	return only
}

// finishTemplates builds the server's templates, unless another process does. It
// returns within finishTimeout.
func (a *app) finishTemplates(ctx context.Context, cfg *config.Config) error {
	time.AfterFunc(finishTimeout+finishGrace, func() { os.Exit(1) })
	ctx, cancel := context.WithTimeout(ctx, finishTimeout)
	defer cancel()
	return a.withTemplates(ctx, cfg, func(ctx context.Context, h *host, s *template.Store) (err error) {
		release, ok, err := s.Alone(ctx)
		if !ok || err != nil {
			return err
		}
		defer func() { err = errors.Join(err, release()) }()
		return a.buildTemplates(ctx, cfg, h, s, nil, []string{cfg.DefaultFlavor}, false)
	})
}
