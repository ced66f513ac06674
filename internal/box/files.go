package box

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

var errCallTimeout = errors.New("it took too long")

// call runs one short operation on the agent connection beside the kernels, within
// Config.MaxTimeout.
func (b *Box) call(ctx context.Context, op string, do func(context.Context) error) error {
	end, err := b.slot(ctx, op)
	if err != nil {
		return err
	}
	defer end()
	ctx, cancel := context.WithTimeoutCause(ctx, b.env.cfg().MaxTimeout, errCallTimeout)
	defer cancel()
	return b.callError(ctx, op, do(ctx))
}

// file is call for an operation on a path.
func (b *Box) file(ctx context.Context, op, path string, do func(context.Context) error) error {
	err := b.call(ctx, op, do)
	if e, ok := errors.AsType[*Error](err); ok {
		e.Context["path"] = clip(path, 256)
		if e.Code == CodeNotFound {
			e.Code = CodeFileNotFound
		}
		if volume := frozenAt(b.volumes(), path); volume != "" && e.Code == CodePathNotAllowed && strings.Contains(e.Msg, "read-only") {
			e.Hint = fmt.Sprintf("The volume %s is over its quota: write below the home directory or /tmp instead.", volume)
		}
	}
	return err
}

// ReadFile copies a regular file to w. Relative paths are below home.
//
// Errors of all file calls: CodeFileNotFound, CodeFileExists, CodeFileTooLarge,
// CodePathNotAllowed, CodeNoSpace, CodeInvalid, CodeBusy, CodeGone,
// CodeNotReady, CodeCancelled, CodeInternal.
func (b *Box) ReadFile(ctx context.Context, req ReadRequest, w io.Writer) (info FileInfo, err error) {
	err = b.file(ctx, "read file", req.Path, func(ctx context.Context) (err error) {
		info, err = b.machine.Agent.Read(ctx, req, w)
		return err
	})
	return info, err
}

// WriteFile writes a regular file from r, whole or not at all. MaxBytes 0 means
// Config.MaxFileSize, which is also the most.
func (b *Box) WriteFile(ctx context.Context, req WriteRequest, r io.Reader) (info FileInfo, err error) {
	if req.MaxBytes <= 0 || req.MaxBytes > b.env.cfg().MaxFileSize {
		req.MaxBytes = b.env.cfg().MaxFileSize
	}
	err = b.file(ctx, "write file", req.Path, func(ctx context.Context) (err error) {
		info, err = b.machine.Agent.Write(ctx, req, r)
		return err
	})
	return info, err
}

// Stat describes a file.
func (b *Box) Stat(ctx context.Context, path string) (info FileInfo, err error) {
	err = b.file(ctx, "stat file", path, func(ctx context.Context) (err error) {
		info, err = b.machine.Agent.Stat(ctx, path)
		return err
	})
	return info, err
}

// List lists a directory.
func (b *Box) List(ctx context.Context, req ListRequest) (res ListResult, err error) {
	err = b.file(ctx, "list files", req.Path, func(ctx context.Context) (err error) {
		res, err = b.machine.Agent.List(ctx, req)
		return err
	})
	return res, err
}

// Mkdir makes a directory.
func (b *Box) Mkdir(ctx context.Context, req MkdirRequest) (info FileInfo, err error) {
	err = b.file(ctx, "make directory", req.Path, func(ctx context.Context) (err error) {
		info, err = b.machine.Agent.Mkdir(ctx, req)
		return err
	})
	return info, err
}

// Remove removes a file or directory.
func (b *Box) Remove(ctx context.Context, req RemoveRequest) error {
	return b.file(ctx, "remove file", req.Path, func(ctx context.Context) error {
		return b.machine.Agent.Remove(ctx, req)
	})
}

// Archive writes a file or directory to w as a tar stream.
func (b *Box) Archive(ctx context.Context, path string, w io.Writer) error {
	return b.file(ctx, "archive files", path, func(ctx context.Context) error {
		return b.machine.Agent.Archive(ctx, path, w)
	})
}

// Extract unpacks a tar stream below a directory.
func (b *Box) Extract(ctx context.Context, path string, r io.Reader) error {
	return b.file(ctx, "extract files", path, func(ctx context.Context) error {
		return b.machine.Agent.Extract(ctx, path, r)
	})
}
