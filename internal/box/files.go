package box

import (
	"context"
	"errors"
	"io"
)

var errCallTimeout = errors.New("it took too long")

// call runs one short operation on the agent connection beside the kernels, within
// Config.MaxTimeout.
func (s *Box) call(ctx context.Context, op string, do func(context.Context) error) error {
	end, err := s.slot(ctx, op)
	if err != nil {
		return err
	}
	defer end()
	ctx, cancel := context.WithTimeoutCause(ctx, s.env.cfg().MaxTimeout, errCallTimeout)
	defer cancel()
	return s.callError(ctx, op, do(ctx))
}

// file is call for an operation on a path.
func (s *Box) file(ctx context.Context, op, path string, do func(context.Context) error) error {
	err := s.call(ctx, op, do)
	if e, ok := errors.AsType[*Error](err); ok {
		e.Context["path"] = clip(path, 256)
		if e.Code == CodeNotFound {
			e.Code = CodeFileNotFound
		}
	}
	return err
}

// ReadFile copies a regular file to w. Relative paths are below home.
//
// Errors of all file calls: CodeFileNotFound, CodeFileExists, CodeFileTooLarge,
// CodePathNotAllowed, CodeNoSpace, CodeInvalid, CodeBusy, CodeGone,
// CodeNotReady, CodeCancelled, CodeInternal.
func (s *Box) ReadFile(ctx context.Context, req ReadRequest, w io.Writer) (info FileInfo, err error) {
	err = s.file(ctx, "read file", req.Path, func(ctx context.Context) (err error) {
		info, err = s.machine.Agent.Read(ctx, req, w)
		return err
	})
	return info, err
}

// WriteFile writes a regular file from r, whole or not at all. MaxBytes 0 means
// Config.MaxFileSize, which is also the most.
func (s *Box) WriteFile(ctx context.Context, req WriteRequest, r io.Reader) (info FileInfo, err error) {
	if req.MaxBytes <= 0 || req.MaxBytes > s.env.cfg().MaxFileSize {
		req.MaxBytes = s.env.cfg().MaxFileSize
	}
	err = s.file(ctx, "write file", req.Path, func(ctx context.Context) (err error) {
		info, err = s.machine.Agent.Write(ctx, req, r)
		return err
	})
	return info, err
}

// Stat describes a file.
func (s *Box) Stat(ctx context.Context, path string) (info FileInfo, err error) {
	err = s.file(ctx, "stat file", path, func(ctx context.Context) (err error) {
		info, err = s.machine.Agent.Stat(ctx, path)
		return err
	})
	return info, err
}

// List lists a directory.
func (s *Box) List(ctx context.Context, req ListRequest) (res ListResult, err error) {
	err = s.file(ctx, "list files", req.Path, func(ctx context.Context) (err error) {
		res, err = s.machine.Agent.List(ctx, req)
		return err
	})
	return res, err
}

// Mkdir makes a directory.
func (s *Box) Mkdir(ctx context.Context, req MkdirRequest) (info FileInfo, err error) {
	err = s.file(ctx, "make directory", req.Path, func(ctx context.Context) (err error) {
		info, err = s.machine.Agent.Mkdir(ctx, req)
		return err
	})
	return info, err
}

// Remove removes a file or directory.
func (s *Box) Remove(ctx context.Context, req RemoveRequest) error {
	return s.file(ctx, "remove file", req.Path, func(ctx context.Context) error {
		return s.machine.Agent.Remove(ctx, req)
	})
}

// Archive writes a file or directory to w as a tar stream.
func (s *Box) Archive(ctx context.Context, path string, w io.Writer) error {
	return s.file(ctx, "archive files", path, func(ctx context.Context) error {
		return s.machine.Agent.Archive(ctx, path, w)
	})
}

// Extract unpacks a tar stream below a directory.
func (s *Box) Extract(ctx context.Context, path string, r io.Reader) error {
	return s.file(ctx, "extract files", path, func(ctx context.Context) error {
		return s.machine.Agent.Extract(ctx, path, r)
	})
}
