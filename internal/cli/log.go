package cli

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"gopkg.in/natefinch/lumberjack.v2"

	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// openLog returns the log for cfg and a function that closes its file. It never writes
// to standard output, which may carry the protocol. Level and file can change later:
// see app.
func (a *app) openLog(cfg *config.Config, notes []string) (*slog.Logger, func(), error) {
	closeLog := func() {}
	a.level, a.reopenLog = new(slog.LevelVar), func() error { return nil }
	var out io.Writer = io.Discard
	if cfg.LogConsole {
		out = a.Err
	}
	if cfg.LogFile != "" {
		file, err := openLogFile(cfg, cfg.LogFile)
		if err != nil {
			return nil, nil, withHint(fmt.Errorf("open the log file: %w", err), "choose another file with --log-file or MSB_LOG_FILE")
		}
		closeLog = func() { file.Close() }
		a.reopenLog = file.Close // the next line reopens it by name
		out = both(out, file)
	}
	if err := a.level.UnmarshalText([]byte(cfg.Level())); err != nil {
		return nil, nil, fmt.Errorf("set the log level: %w", err)
	}
	options := &slog.HandlerOptions{Level: a.level}
	var handler slog.Handler = slog.NewTextHandler(out, options)
	if cfg.LogFormat == "json" {
		handler = slog.NewJSONHandler(out, options)
	}
	log := slog.New(handler)
	for _, note := range notes {
		log.Debug("setting has no effect", logkey.Note, note)
	}
	return log, closeLog, nil
}

// openLogFile opens a rotated log file. It may be closed at any time: the next line
// reopens it by name.
func openLogFile(cfg *config.Config, path string) (*lumberjack.Logger, error) {
	// lumberjack opens the file at the first line, too late to report an error.
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	f.Close()
	return &lumberjack.Logger{
		Filename:   path,
		MaxSize:    (cfg.LogMaxSize + 1<<20 - 1) >> 20, // lumberjack counts in MiB
		MaxBackups: cfg.LogBackupCount,
	}, nil
}

// both writes to two writers. Unlike io.MultiWriter, it writes to the second if the
// first fails: a closed terminal must not end the log file.
func both(first, second io.Writer) io.Writer {
	if first == io.Discard {
		return second
	}
	return tee{first, second}
}

type tee struct{ first, second io.Writer }

func (t tee) Write(p []byte) (int, error) {
	t.first.Write(p)
	return t.second.Write(p)
}
