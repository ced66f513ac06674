package tools

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/box"
)

// maxUpload bounds a file whose base64 fits the default limit of HTTP requests, 32 MiB.
const maxUpload = 23 << 20

// fileErrors is the error format of the context tools.
var fileErrors = runErrors

// expandHome replaces a leading ~ or ~user, which models write as in a shell, by a
// path relative to the home directory.
func expandHome(path string) string {
	for _, home := range []string{"~", "~user"} {
		if path == home {
			return "."
		}
		if rest, ok := strings.CutPrefix(path, home+"/"); ok {
			return "./" + strings.TrimLeft(rest, "/")
		}
	}
	return path
}

// boxStatus returns a status line with the box only.
func boxStatus(b target, created bool) (s status) {
	s.addBox(b.ref(), created)
	return s
}

// reader reads files of a live box, or the files on disk of a hibernated box whose
// memory cannot be restored.
type reader interface {
	List(context.Context, box.ListRequest) (box.ListResult, error)
	ReadFile(context.Context, box.ReadRequest, io.Writer) (box.FileInfo, error)
}

// fileSource is an open reader. The caller closes it.
type fileSource struct {
	reader
	of    boxRef
	notes []string // for the model, on where the files are read from
	close func()
}

// openFiles opens the files of a box for reading.
func (c *Call) openFiles(ctx context.Context, id string) (fileSource, error) {
	id, err := c.contextID(id)
	if err != nil {
		return fileSource{}, err
	}
	kind, err := c.Boxes.Find(c.Owner, id)
	if err != nil {
		return fileSource{}, err
	}
	if kind != "" {
		st, err := c.Boxes.StoredFiles(c.Owner, kind, id)
		if err != nil {
			return fileSource{}, err
		}
		if st != nil {
			return fileSource{st, boxRef{kind, id}, []string{st.Explain()}, st.Close}, nil
		}
	}
	b, err := c.open(ctx, openOptions{id: id, existing: true})
	if err != nil {
		return fileSource{}, err
	}
	_, notes := describeState(b.Hold, "session")
	if ctx.Value(onlyReadsKey{}) != nil {
		b.Hold.Settle(false) // now: while this call had the report, others would not get it
	} else {
		notes = append(notes, describeUndelivered(b.Hold, "session")...)
	}
	return fileSource{b, b.ref(), notes, func() {}}, nil
}

// A pathUse is what a file tool does with a path.
type pathUse int

const (
	readPath pathUse = iota
	listPath
	writePath
)

// explainPath adds a hint to the error for a path. Models take paths of the user's
// machine for paths in the sandbox.
func explainPath(use pathUse, err error) error {
	e, ok := errors.AsType[*box.Error](err)
	if !ok || e.Hint != "" {
		return err
	}
	const copyIn = "Paths are those of the sandbox. Of the user's machine it has only its volumes: pass the content of other files to upload_file."
	switch {
	case e.Code == box.CodeFileNotFound && use == readPath:
		e.Hint = copyIn + " list_files lists a directory."
	case e.Code == box.CodeFileNotFound && use == listPath:
		e.Hint = copyIn
	case e.Code == box.CodePathNotAllowed && use == writePath:
		e.Hint = "Paths are those of the sandbox, not of the user's machine: write below the home directory, in /tmp or in a writable volume."
	case e.Code == box.CodePathNotAllowed:
		e.Hint = copyIn + " For other directories of the sandbox, use execute_command."
	case e.Code == box.CodeInvalid && use == readPath:
		e.Hint = "Only regular files can be read: list_files lists a directory."
	}
	return err
}

func octal(mode uint32) string {
	s := strconv.FormatUint(uint64(mode), 8)
	for len(s) < 4 {
		s = "0" + s
	}
	return s
}

// imageType returns the MIME type of an image that clients can show, by its magic
// bytes; "" for other data.
func imageType(b []byte) string {
	has := func(at int, magic string) bool {
		return len(b) >= at+len(magic) && string(b[at:at+len(magic)]) == magic
	}
	switch {
	case has(0, "\x89PNG\r\n\x1a\n"):
		return "image/png"
	case has(0, "\xff\xd8\xff"):
		return "image/jpeg"
	case has(0, "GIF87a"), has(0, "GIF89a"):
		return "image/gif"
	case has(0, "RIFF") && has(8, "WEBP"):
		return "image/webp"
	}
	return ""
}
