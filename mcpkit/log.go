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

// A serverLog is a log of what a server says, for one connection. One that cannot be
// written is not worth the connection: it is told once and left out.
type serverLog struct {
	log    *partlog.Log
	failed func(error)
	broken bool
}

// openLog opens a log with a name below a directory; nil if that fails.
func (s *Session) openLog(dir, name string, maxBytes int64, parts int) *serverLog {
	failed := func(err error) {
		s.m.log.Warn("what the mcp server writes is not kept", "server", s.def.Name, "err", err)
	}
	to, err := partlog.Open(dir, name, maxBytes, parts)
	if err != nil {
		failed(err)
		return nil
	}
	return &serverLog{log: to, failed: failed}
}

// Write implements [io.Writer] and is called by one at a time.
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

// message keeps a line that was received. It is called for one direction at a time.
func (l *serverLog) message(d stream.Direction, line []byte) {
	if d != stream.Sent {
		_, _ = l.Write(append(bytes.Clone(line), '\n')) // never fails
	}
}

// outputs opens what gets one kind of what a server says: its log in LogDir, and what
// the user of the library wants it in. It returns nil if there is neither.
func (s *Session) openOutputs(kind string, wanted func(server string) io.WriteCloser) io.WriteCloser {
	var all []io.WriteCloser
	if dir := s.m.opts.LogDir; dir != "" {
		// Several make it at once, and openLog tells why it is not there.
		_ = os.MkdirAll(dir, 0o700)
		// A name is the configuration's; escaped it is one element of a path.
		if log := s.openLog(dir, url.PathEscape(s.def.Name)+kind, s.m.opts.Limits.LogPart, s.m.opts.Limits.LogParts); log != nil {
			all = append(all, log)
		}
	}
	if wanted != nil {
		all = append(all, wanted(s.def.Name))
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return multiWriter(all)
}

// tee writes to several, of which none is kept from it by the error of another.
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
