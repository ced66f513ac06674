package cli

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/glovebox-dev/glovebox/internal/config"
)

// reloader takes over, on SIGHUP, what a running server can of its settings.
type reloader struct {
	log   *slog.Logger
	level *slog.LevelVar
	load  func() (*config.Config, error)
	now   atomic.Pointer[config.Config]

	// apply takes the limits of boxes over; the error says that it has not.
	apply func(*config.Config) error
	// files are read again: what each is, and how. They need no new settings.
	files []reloadFile
}

// reloadFile is a file whose content the server holds.
type reloadFile struct {
	name   string
	reload func() error
}

// run reloads when it is asked to, until ctx ends.
func (r *reloader) run(ctx context.Context, asked <-chan struct{}) {
	for {
		select {
		case <-asked:
			r.reload()
		case <-ctx.Done():
			return
		}
	}
}

// reload reads everything again, the log file first, so that it has all of it.
// What cannot be used leaves the part that it belongs to as it was.
func (r *reloader) reload() {
	for _, f := range r.files {
		if err := f.reload(); err != nil {
			r.log.Error("reload: a file stays as it was", "file", f.name, "err", err)
			continue
		}
		r.log.Info("reload: a file was opened again", "file", f.name)
	}
	r.settings()
}

func (r *reloader) settings() {
	old := r.now.Load()
	next, err := r.load()
	if err != nil {
		r.log.Error("reload: the settings stay as they were", "err", err)
		return
	}
	adopted, changes, err := old.Adopt(next)
	if err == nil {
		err = r.apply(adopted)
	}
	if err != nil {
		r.log.Error("reload: the settings stay as they were", "err", err)
		return
	}
	if err := r.level.UnmarshalText([]byte(adopted.Level())); err != nil {
		r.log.Error("reload: the log level stays as it was", "err", err) // not reached: it was checked
	}
	r.now.Store(adopted)
	for _, c := range changes {
		if c.Live {
			r.log.Info("reload: a setting has changed", "setting", c.Name, "from", c.From, "to", c.To)
		} else {
			r.log.Warn("reload: a setting waits for a restart", "setting", c.Name, "from", c.From, "to", c.To)
		}
	}
	if len(changes) == 0 {
		r.log.Info("reload: no setting has changed")
	}
}
