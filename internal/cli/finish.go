package cli

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/template"
	"github.com/glovebox-dev/glovebox/internal/config"
)

const (
	// onlyTemplates is the hidden flag of the process that finishes templates.
	onlyTemplates = "only-templates"
	// finishTimeout bounds that process: building the templates of two languages on
	// a busy machine takes half a minute.
	finishTimeout = 5 * time.Minute
	// finishGrace is how long it may take to clean up afterwards.
	finishGrace = 30 * time.Second
)

// finishTemplates builds the templates that servers begin with, unless another
// process is at it. It ends within finishTimeout.
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
