package cli

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// reloader applies changed settings to a running server on SIGHUP.
type reloader struct {
	log   *slog.Logger
	level *slog.LevelVar
	load  func() (*config.Config, error)
	now   atomic.Pointer[config.Config]

	// apply applies the limits of boxes, or none of them if it returns an error.
	apply func(*config.Config) error
	// files are reread, independent of settings.
	files []reloadFile
	// tools rereads the tools of code, which have rules of the settings; nil if code calls
	// no tools.
	tools func(*config.Config) error
}

// reloadFile is a file that the server has read or opened.
type reloadFile struct {
	name   string
	reload func() error
}

// run reloads on each request until ctx ends.
func (r *reloader) run(ctx context.Context, requests <-chan struct{}) {
	for {
		select {
		case <-requests:
			r.reload()
		case <-ctx.Done():
			return
		}
	}
}

// reload rereads everything. A part with an error stays unchanged. The tools of code come
// last, with the rules of the new settings: no tool is ever callable by the old rules.
func (r *reloader) reload() {
	for _, f := range r.files {
		r.file(f)
	}
	r.settings()
	if r.tools != nil {
		r.file(reloadFile{"tools of code", func() error { return r.tools(r.now.Load()) }})
	}
}

func (r *reloader) file(f reloadFile) {
	if err := f.reload(); err != nil {
		r.log.Error("reload: file unchanged", logkey.File, f.name, logkey.Error, err)
		return
	}
	r.log.Info("reload: file reloaded", logkey.File, f.name)
}

func (r *reloader) settings() {
	old := r.now.Load()
	next, err := r.load()
	if err != nil {
		r.log.Error("reload: settings unchanged", logkey.Error, err)
		return
	}
	adopted, changes, err := old.Adopt(next)
	if err == nil {
		err = r.apply(adopted)
	}
	if err != nil {
		r.log.Error("reload: settings unchanged", logkey.Error, err)
		return
	}
	if err := r.level.UnmarshalText([]byte(adopted.Level())); err != nil {
		r.log.Error("reload: log level unchanged", logkey.Error, err) // not reached: Load checked it
	}
	r.now.Store(adopted)
	for _, c := range changes {
		if c.Live {
			r.log.Info("reload: setting changed", logkey.Setting, c.Name, logkey.From, c.From, logkey.To, c.To)
		} else {
			r.log.Warn("reload: setting needs a restart", logkey.Setting, c.Name, logkey.From, c.From, logkey.To, c.To)
		}
	}
	if len(changes) == 0 {
		r.log.Info("reload: no setting changed")
	}
}
