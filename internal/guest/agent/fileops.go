package agent

import (
	"context"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// bodyWriter sends written data as the operation's body.
type bodyWriter struct{ o *op }

func (w bodyWriter) Write(p []byte) (int, error) {
	if err := w.o.send(protocol.Body, p, w.o.ctx.Done()); err != nil {
		if w.o.ctx.Err() != nil {
			err = context.Cause(w.o.ctx)
		}
		return 0, err
	}
	return len(p), nil
}

// asUser runs a file operation with the user's rights.
func asUser[R any](o *op, fn func(*settings) (R, error)) (any, error) {
	cfg := o.conn.a.cfg.Load()
	var res R
	err := cfg.user.Do(func() (err error) {
		res, err = fn(cfg)
		return err
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

func readFile(o *op, x protocol.Read) (any, error) {
	return asUser(o, func(cfg *settings) (protocol.FileInfo, error) { return cfg.files.Read(x, bodyWriter{o}) })
}

func writeFile(o *op, x protocol.Write) (any, error) {
	return asUser(o, func(cfg *settings) (protocol.FileInfo, error) { return cfg.files.Write(x, o) })
}

func statFile(o *op, x protocol.Path) (any, error) {
	return asUser(o, func(cfg *settings) (protocol.FileInfo, error) { return cfg.files.Stat(x) })
}

func listFiles(o *op, x protocol.List) (any, error) {
	return asUser(o, func(cfg *settings) (protocol.ListResult, error) { return cfg.files.List(x) })
}

func makeDir(o *op, x protocol.Mkdir) (any, error) {
	return asUser(o, func(cfg *settings) (protocol.FileInfo, error) { return cfg.files.Mkdir(x) })
}

func removeFile(o *op, x protocol.Remove) (any, error) {
	return asUser(o, func(cfg *settings) (any, error) { return nil, cfg.files.Remove(x) })
}

func archive(o *op, x protocol.Path) (any, error) {
	return asUser(o, func(cfg *settings) (any, error) { return nil, cfg.files.Archive(x, bodyWriter{o}) })
}

func extract(o *op, x protocol.Extract) (any, error) {
	return asUser(o, func(cfg *settings) (any, error) { return nil, cfg.files.Extract(x, o) })
}

func backup(o *op, x protocol.Backup) (any, error) {
	return asUser(o, func(cfg *settings) (protocol.BackupResult, error) { return cfg.files.Backup(o.ctx, x, bodyWriter{o}) })
}
