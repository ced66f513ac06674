package mcpkit

import (
	"bytes"
	"errors"
	"io"
	"net/url"
	"os"

	"github.com/glovebox-dev/glovebox/mcpkit/internal/partlog"
	"github.com/glovebox-dev/glovebox/mcpkit/internal/stream"
)

// A serverLog is a log of a server's output for one connection. If it cannot be
// written, it warns once and discards the rest: the connection matters more.
type serverLog struct {
	log    *partlog.Log
	failed func(error)
	broken bool
}

// openLog opens a log with a name below a directory. It returns nil if that fails.
func (s *Session) openLog(dir, name string, maxBytes int64, parts int) *serverLog {
	failed := func(err error) {
		s.m.log.Warn("log of mcp server is not written", "server", s.def.Name, "err", err)
	}
	to, err := partlog.Open(dir, name, maxBytes, parts)
	if err != nil {
		failed(err)
		return nil
	}
	return &serverLog{log: to, failed: failed}
}

// Write implements [io.Writer]. It is not safe for concurrent use.
func (l *serverLog) Write(p []byte) (int, error) {
	if !l.broken {
		if _, err := l.log.Write(p); err != nil {
			l.broken = true
			l.failed(err)
		}
	}
	return len(p), nil
}

// Close implements [io.Closer].
func (l *serverLog) Close() error { return l.log.Close() }

// stdoutLog opens the log for which the definition asks; nil without one.
func (s *Session) stdoutLog() *serverLog {
	def := s.def.StdoutLog
	if def == nil {
		return nil
	}
	return s.openLog(s.def.Dir, def.Path, def.MaxBytesPerPart, def.MaxParts)
}

// message logs a received line. It is not called concurrently.
func (l *serverLog) message(d stream.Direction, line []byte) {
	if d != stream.Sent {
		_, _ = l.Write(append(bytes.Clone(line), '\n')) // never fails
	}
}

// openOutputs opens the writers for one kind of output: the log in LogDir and the
// writer of the options. It returns nil if there is neither.
func (s *Session) openOutputs(kind string, option func(server string) io.WriteCloser) io.WriteCloser {
	var all []io.WriteCloser
	if dir := s.m.opts.LogDir; dir != "" {
		// Sessions create it concurrently; openLog reports why it is missing.
		_ = os.MkdirAll(dir, 0o700)
		// The configuration chooses the name; escaped it is a single path element.
		if log := s.openLog(dir, url.PathEscape(s.def.Name)+kind, s.m.opts.Limits.LogPart, s.m.opts.Limits.LogParts); log != nil {
			all = append(all, log)
		}
	}
	if option != nil {
		all = append(all, option(s.def.Name))
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return multiWriter(all)
}

// multiWriter writes to several writers. The error of one does not affect the others.
type multiWriter []io.WriteCloser

func (t multiWriter) Write(p []byte) (int, error) {
	var errs []error
	for _, w := range t {
		_, err := w.Write(p)
		errs = append(errs, err)
	}
	return len(p), errors.Join(errs...)
}

func (t multiWriter) Close() error {
	var errs []error
	for _, w := range t {
		errs = append(errs, w.Close())
	}
	return errors.Join(errs...)
}
